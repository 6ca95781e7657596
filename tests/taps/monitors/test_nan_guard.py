"""The guard names the module that makes NaN or infinity, never those that it reaches after it."""

import math
import pickle
import warnings

import pytest
import torch
from tests.taps.monitors.waiting import Waiting, pretend_device
from tests.taps.networks import Net, Training, loader, trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookbus
from hookbus import tapping
from hookbus.taps import TapWarning
from hookbus.taps.monitors import Finding, NaNGuard, NonFiniteError, finite, nan_guard


class Fault(nn.Module):
    """Gives values that are not finite when told to; otherwise what it was given."""

    def __init__(self, value=math.nan, *, in_place=False):
        super().__init__()
        self.value, self.in_place, self.on = value, in_place, True

    def forward(self, x):
        if not self.on:
            return x * 1
        if self.in_place:
            return x.masked_fill_(torch.eye(len(x), x.shape[1], dtype=torch.bool), self.value)
        return x.masked_fill(torch.eye(len(x), x.shape[1], dtype=torch.bool), self.value)


class Poison(torch.autograd.Function):
    """Identity whose backward pass gives NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


class BadBackward(nn.Module):
    def forward(self, x):
        return Poison.apply(x)


class Code(nn.Module):
    """Has code of its own between the modules that it calls."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second, self.between = nn.Linear(4, 4), nn.Linear(4, 4), between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


def chain(fault, place, length=5):
    layers = [nn.Linear(4, 4) for _ in range(length)]
    layers[place] = fault
    return nn.Sequential(*layers)


def found(model, x=None, *, backward=False, **arguments):
    """What a guard that only warns finds in one pass."""
    guard = NaNGuard(action="warn", **arguments)
    with tapping(model, guard), warnings.catch_warnings():
        warnings.simplefilter("ignore", TapWarning)
        y = model(torch.ones(2, 4, requires_grad=backward) if x is None else x)
        if backward:
            y.sum().backward()
    return [(finding.kind, finding.name) for finding in guard.findings]


@pytest.fixture(params=["host", "device"])
def _anywhere(request, monkeypatch):
    if request.param == "device":
        pretend_device(monkeypatch)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("_anywhere")
def test_the_producer_is_named_and_no_victim(place, value):
    assert found(chain(Fault(value), place)) == [("forward", str(place))]


@pytest.mark.usefixtures("_anywhere")
def test_a_module_inside_of_others():
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Identity(), Fault()))})
    model.forward = lambda x: model["body"](x)
    assert found(model) == [("forward", "body.1.1")]


@pytest.mark.usefixtures("_anywhere")
def test_code_between_modules_is_that_of_the_module_around_it():
    model = nn.Sequential(nn.Linear(4, 4), Code(lambda x: x / 0), nn.Linear(4, 4))
    guard = NaNGuard(action="warn")
    with (
        tapping(model, guard),
        pytest.warns(TapWarning, match="'1' gives .*in its own code, before it calls '1.second'"),
    ):
        model(torch.ones(2, 4))
    assert [(finding.kind, finding.name) for finding in guard.findings] == [("forward", "1")]


@pytest.mark.usefixtures("_anywhere")
def test_what_comes_with_the_batch_is_nobodys_fault():
    assert found(Net(), torch.full((2, 4), math.nan)) == [("input", "")]


@pytest.mark.usefixtures("_anywhere")
def test_each_of_two_origins_is_named():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.join = Fault(), Fault(math.inf), nn.Linear(4, 4)

        def forward(self, x):
            return self.join(self.left(x) + self.right(x))

    assert found(Fork()) == [("forward", "left"), ("forward", "right")]


@pytest.mark.usefixtures("_anywhere")
def test_modules_that_work_in_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Fault(in_place=True), nn.ReLU(inplace=True), nn.Linear(4, 4))
    assert found(model) == [("forward", "2")]
    behind = nn.Sequential(nn.Linear(4, 4), Fault(), nn.ReLU(inplace=True), nn.Flatten())
    assert found(behind) == [("forward", "1")]
    guard = NaNGuard(action="warn")
    blurred = Code(lambda x: x.abs() / 0)
    blurred.second = nn.ReLU(inplace=True)
    with (
        tapping(blurred, guard),
        pytest.warns(TapWarning, match="cannot be seen any more: it may be the code before it"),
    ):
        blurred(torch.ones(2, 4))
    with tapping(model, guard), torch.inference_mode(), pytest.warns(TapWarning):
        model(torch.ones(2, 4))
    assert guard.findings[-1].name == "2"


def test_sums_that_overflow_are_no_alarm():
    huge = nn.Sequential(nn.Identity(), nn.Identity())
    assert found(huge, torch.full((100, 4), 3e38)) == []
    assert found(huge, torch.full((100, 4), 6e4, dtype=torch.float16)) == []
    assert found(huge, torch.full((100, 4), 3e38, dtype=torch.bfloat16)) == []
    assert found(huge, torch.tensor([[3e38, 3e38, math.inf, 0.0]])) == [("input", "")]


@pytest.mark.usefixtures("_anywhere")
def test_other_kinds_of_tensors():
    class Kinds(nn.Module):
        def forward(self, x):
            whole = torch.zeros(2, dtype=torch.int64)
            empty = x[:0]
            spectrum = torch.fft.fft(x)
            return {
                "whole": whole,
                "empty": empty,
                "sparse": x.to_sparse(),
                "more": [spectrum, x.to(torch.float8_e5m2)],
            }

    assert found(Kinds()) == []
    model = nn.Sequential(nn.Identity(), Kinds())
    model[1].register_forward_hook(lambda module, args, output: {**output, "more": [output["more"][0] * math.inf]})
    assert found(model) == [("forward", "1")]


@pytest.mark.usefixtures("_anywhere")
def test_masks_of_attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head, self.mask = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2), None

        def forward(self, x):
            y, _ = self.attention(x, x, x, attn_mask=self.mask)
            return self.head(y)

    model, x = Attention(), torch.ones(1, 3, 4)
    model.mask = nn.Transformer.generate_square_subsequent_mask(3)
    assert found(model, x) == []
    model.mask = torch.full((3, 3), -math.inf)  # nothing is left to attend to: softmax gives NaN
    model.mask[1:, 0] = 0
    assert found(model, x) == [("forward", "attention")]


@pytest.mark.usefixtures("_anywhere")
def test_what_is_allowed():
    masked = chain(Fault(-math.inf), 2, 3)
    assert found(masked, allow="2") == found(masked, allow={"*": "-inf"}) == found(masked, allow=["2", "1"]) == []
    assert found(masked, allow={"2": ("nan", "inf")}) == [("forward", "2")]
    assert found(chain(Fault(math.nan), 2, 3), allow={"**": "-inf"}) == [("forward", "2")]
    both = nn.Sequential(Fault(-math.inf), Fault(math.nan), nn.Linear(4, 4))
    assert found(both, allow={"0": "-inf", "1": "-inf"}) == [("forward", "1")]
    assert found(chain(Fault(math.inf), 2, 3), allow={"2": "nan"}) == [("forward", "2")]


@pytest.mark.parametrize("place", range(1, 4))
@pytest.mark.usefixtures("_anywhere")
def test_gradients(place):
    assert found(chain(BadBackward(), place), backward=True) == [("backward", str(place))]
    assert found(chain(BadBackward(), place), backward=True, gradients=False) == []


@pytest.mark.usefixtures("_anywhere")
def test_gradients_that_no_module_spoils():
    between = nn.Sequential(nn.Linear(4, 4), Code(Poison.apply), nn.Linear(4, 4))
    assert found(between, backward=True) == [("backward", "1")]
    guard = NaNGuard(action="warn")
    with tapping(Net(), guard) as taps, pytest.warns(TapWarning, match="look at the loss"):
        Poison.apply(taps._model(torch.ones(2, 4))).sum().backward()
    assert [(finding.kind, finding.name) for finding in guard.findings] == [("gradient", "head")]


def test_a_backward_pass_that_fails_does_not_spoil_the_next():
    model, guard = chain(BadBackward(), 2), NaNGuard(action="raise")

    def stop(grad):
        raise RuntimeError("stop")

    with tapping(model, guard):
        y = model(torch.ones(2, 4))
        y.register_hook(lambda grad: grad)
        handle = model[0].weight.register_hook(stop)
        with pytest.raises(RuntimeError, match="stop"):
            y.sum().backward()
        handle.remove()
        with pytest.raises(NonFiniteError, match="the backward pass of '2'"):
            model(torch.ones(2, 4)).sum().backward()


def test_the_error_says_what_where_and_when():
    class Model(Training):
        def __init__(self):
            super().__init__(nn.Sequential(nn.Linear(4, 4), Fault(math.inf), nn.Linear(4, 3)))
            self.net[1].on = False

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.net[1].on = dataloader_idx == 1
            self.net(batch)

    guard = NaNGuard()
    run = trainer(guard, num_sanity_val_steps=0)
    with pytest.raises(NonFiniteError) as caught:
        run.fit(Model(), loader(3), [loader(1), loader(2)])
    finding = caught.value.finding
    assert finding == guard.findings[0]
    assert (finding.kind, finding.name, finding.phase, finding.step) == ("forward", "net.1", "val", 3)
    assert (finding.batch_idx, finding.dataloader_idx, finding.what) == (0, 1, "2 inf of 8")
    words = "'net.1' gives 2 inf of 8, and was given finite values only; val step 3, epoch 0, batch 0 of dataloader 1"
    assert str(finding) == words
    assert str(caught.value).startswith(words + "; if that is meant, allow it: NaNGuard(allow={'net.1': …})")
    assert pickle.loads(pickle.dumps(caught.value)).finding == finding
    assert isinstance(caught.value, FloatingPointError)


class Spoilt(Training):
    """Something is wrong from the third batch on."""

    def __init__(self, loss=lambda loss: loss, fault=False):
        super().__init__(nn.Sequential(nn.Linear(4, 4), Fault(), nn.Linear(4, 3)))
        self.loss, self.fault, self.net[1].on = loss, fault, False

    def training_step(self, batch, batch_idx):
        self.net[1].on = self.fault and batch_idx >= 2
        loss = super().training_step(batch, batch_idx)
        return self.loss(loss) if batch_idx >= 2 else loss


@pytest.mark.parametrize("where", ["host", "device"])
def test_the_weights_are_saved_from_the_step(where, monkeypatch):
    if where == "device":
        pretend_device(monkeypatch)
    for model in (
        Spoilt(fault=True),
        Spoilt(loss=lambda loss: loss * math.nan),
        Spoilt(loss=lambda x: Poison.apply(x)),
    ):
        run = trainer(NaNGuard())
        with pytest.raises(NonFiniteError, match="train step 2, epoch 0, batch 2"):
            run.fit(model, loader(5))
        assert run.global_step == 2
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_loss_that_is_not_finite():
    with pytest.raises(NonFiniteError, match="the loss is not finite, though what every tapped module gave was"):
        trainer(NaNGuard()).fit(Spoilt(loss=lambda loss: loss * math.inf), loader(5))


def test_gradients_of_the_first_layer_show_in_its_parameters_only():
    class Model(Training):
        def training_step(self, batch, batch_idx):
            self.net.stem.weight.register_hook(lambda grad: grad * math.nan)
            return super().training_step(batch, batch_idx)

    with pytest.raises(NonFiniteError, match=r"before the optimizer steps, of 'net.stem.weight'"):
        trainer(NaNGuard()).fit(Model(), loader(2))
    trainer(NaNGuard(gradients=False)).fit(Model(), loader(1))


def test_warn_once_for_each_origin_and_go_on():
    guard = NaNGuard(action="warn")
    model = chain(Fault(), 1)
    with tapping(model, guard), pytest.warns(TapWarning) as caught:
        [model(torch.ones(2, 4)) for _ in range(4)]
    assert [str(one.message)[:22] for one in caught] == ["'1' gives 2 NaN of 8, "]
    assert [finding.step for finding in guard.findings] == [0, 1, 2, 3]
    run = trainer(guard)
    with pytest.warns(TapWarning, match=r"'net\.0' gives 8 NaN .* \(its weight is not finite\)"):
        run.fit(Spoilt(fault=True), loader(6))
    assert run.global_step == 6


def test_stop_ends_the_training():
    run = trainer(NaNGuard(action="stop"))
    with pytest.warns(TapWarning, match=r"'net\.1'"):
        run.fit(Spoilt(fault=True), loader(6))
    assert run.global_step == 3
    assert run.control.history[0].reason.startswith("'net.1' gives 2 NaN of 8")


def test_the_search_for_a_scale_is_no_fault():
    guard = NaNGuard()
    run = trainer(guard, precision="16-mixed")
    skipped = []

    class Count(hookbus.Callback):
        @hookbus.hookimpl
        def on_optimizer_step_skipped(self):
            skipped.append(1)

    run.bus.register(Count())
    run.fit(Training(), loader(8))
    assert skipped
    assert guard.findings == []


def test_with_a_selection_what_comes_from_outside_is_said_at_once():
    model = chain(Fault(), 1)
    assert found(model, modules=["2", "3"]) == [("input", "2")]
    assert found(model, types=Fault) == [("forward", "1")]


def test_the_first_batch_of_a_trainer_and_code_of_its_step():
    class Model(Training):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch * math.nan, batch_idx)

    with pytest.raises(NonFiniteError, match="'net' was given values that are not finite"):
        trainer(NaNGuard()).fit(Model(), loader(2))


def test_checkpointed_layers_and_a_module_that_is_called_twice():
    class Again(nn.Module):
        def __init__(self, reentrant, bad):
            super().__init__()
            self.reentrant = reentrant
            self.layer, self.inner, self.end = (
                nn.Linear(4, 4),
                nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
                nn.Tanh(),
            )
            if bad == "inner.1":
                self.inner.insert(1, BadBackward())
            elif bad:
                self.add_module(bad, BadBackward())

        def forward(self, x):
            return self.end(checkpoint(self.inner, self.layer(self.layer(x)), use_reentrant=self.reentrant))

    for reentrant in (False, True):
        for bad in ("inner.1", "end", "layer"):
            assert found(Again(reentrant, bad), backward=True) == [("backward", bad)], (reentrant, bad)
        assert found(Again(reentrant, None), backward=True) == []
    model = nn.Sequential(relu := Fault(), nn.Linear(4, 4), relu)
    calls = iter([False, True])
    relu.register_forward_pre_hook(lambda module, args: setattr(module, "on", next(calls)))
    guard = NaNGuard()
    with tapping(model, guard), pytest.raises(NonFiniteError, match=r"'0' \(call 1\) gives"):
        model(torch.ones(2, 4))


def test_a_device_is_waited_for_once_per_pass(monkeypatch):
    pretend_device(monkeypatch)
    reads = []
    monkeypatch.setattr(nan_guard, "read_flags", lambda flags: reads.append(len(flags)) or finite.read_flags(flags))
    with tapping(model := chain(nn.Tanh(), 2), NaNGuard()), Waiting() as waiting:
        y = model(torch.ones(2, 4))
        assert waiting.count == {"tolist": 1}
        y.sum().backward()
    assert len([number for number in reads if number > 1]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "ignore"}, "action must be one of 'raise', 'warn', 'stop'"),
        ({"allow": {"mask": "infinity"}}, "allow must name modules"),
        ({"allow": {"mask": ()}}, "allow must name modules"),
        ({"allow": [3]}, "allow must name modules"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        NaNGuard(**arguments)


def test_a_finding_without_a_name_speaks_of_the_network():
    assert str(Finding("input", "", phase="val")).startswith("the network was given values that are not finite")
