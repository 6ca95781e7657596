"""What a part of a network gives, without running the rest: nothing left behind, nobody disturbed. FSDP: test_distributed."""

import copy
import gc
import pickle
import re
import threading
import warnings
import weakref

import pytest
import torch
from tests.taps.networks import Many, Net, Training, Wrapper, hooks_on, loader, trainer
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from hookbus import hookimpl, tapping
from hookbus.taps import Capture, FeatureTap, SelectionError, StaleCaptureError, TapError, TapWarning

X = torch.linspace(-1, 1, 8).view(2, 4)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Deep(nn.Module):
    """Four layers, each of which notes that it has been called."""

    def __init__(self):
        super().__init__()
        self.called = []
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        for number, layer in enumerate(self.layers):
            layer.register_forward_pre_hook(lambda module, args, number=number: self.called.append(number))

    def forward(self, x):
        return self.layers(x)


def captured(model, *names):
    """The oracle: what a capture has of a whole forward pass."""
    with tapping(model) as taps, taps.capture(list(names)) as capture:
        model(X)
    return [capture[name] for name in names]


# -- what is given, and how far the network runs -------------------------------------------------------------------------


def test_the_network_runs_as_far_as_the_layer_and_no_further():
    model = Deep()
    (wanted,) = captured(model, "layers.1")
    model.called.clear()
    assert torch.equal(FeatureTap(model, "layers.1")(X), wanted)
    assert model.called == [0, 1]


@pytest.mark.parametrize(
    "which", [["layers.2", "layers.0"], "layers.[02]", re.compile(r"layers\.[02]$"), ["layers.0", "layers.[2]"]]
)
def test_several_layers_are_a_dictionary_and_the_last_of_them_ends_the_pass(which):
    model = Deep()
    wanted = dict(zip(["layers.0", "layers.2"], captured(model, "layers.0", "layers.2"), strict=True))
    model.called.clear()
    features = FeatureTap(model, which)
    found = features(X)
    assert model.called == [0, 1, 2]
    assert list(found) == list(features.names)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_list_of_one_name_is_a_dictionary_too():
    assert list(FeatureTap(Deep(), ["layers.1"])(X)) == ["layers.1"]


def test_a_module_itself_and_the_network_itself():
    model = Deep()
    assert torch.equal(FeatureTap(model, model.layers[1])(X), captured(model, "layers.1")[0])
    assert torch.equal(FeatureTap(model, "")(X), model(X))


def test_classes_of_modules():
    model = Net()
    assert FeatureTap(model, None, types=nn.Linear).names == ("stem", "blocks.0.conv", "blocks.1.conv", "head")
    assert FeatureTap(model, "blocks.**", types=[nn.ReLU]).names == ("blocks.0.act", "blocks.1.act")


def test_a_layer_and_what_contains_it():
    found = FeatureTap(Net(), ["blocks.0", "blocks.0.conv"])(X)
    assert found.keys() == {"blocks.0", "blocks.0.conv"}


@pytest.mark.parametrize("shape", ["tensor", "tuple", "list", "dict", "named", "dataclass", "structseq"])
@pytest.mark.parametrize("stop", [True, False])
def test_outputs_of_every_structure(shape, stop):
    model = nn.Sequential(Many(shape), Wrapper(nn.Identity()))
    given = FeatureTap(model, "0", stop=stop)(X)
    assert type(given) is type(model[0](X))
    tensor = given if shape == "tensor" else given.logits if shape == "dataclass" else None
    tensor = given["a"] if shape == "dict" else given[0] if tensor is None else tensor
    assert tensor.requires_grad


def test_arguments_are_those_of_the_network():
    model = Many("tensor")
    assert torch.equal(FeatureTap(model, "")(x=X, scale=3.0), 3 * X)


def test_a_shared_module_goes_by_the_name_that_was_asked_for():
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4)})
    model["decoder"] = model["encoder"]
    model.forward = lambda x: model["decoder"](model["encoder"](x))
    assert list(FeatureTap(model, ["decoder"])(X)) == ["decoder"]
    found = FeatureTap(model, ["decoder", "encoder"])(X)
    assert torch.equal(found["decoder"], found["encoder"])


def test_calls_of_a_module_that_is_called_several_times():
    model = Net()
    with tapping(model) as taps, taps.capture("relu", keep="all") as capture:
        model(X)
    first, second = [record.value for record in capture.records("relu")]
    assert torch.equal(FeatureTap(model, "relu")(X), first)
    assert torch.equal(FeatureTap(model, "relu", call=1)(X), second)
    both = FeatureTap(model, "relu", call="all")(X)
    assert [torch.equal(*pair) for pair in zip(both, [first, second], strict=True)] == [True, True]
    found = FeatureTap(model, ["relu", "stem"], call="all")(X)
    assert {name: len(values) for name, values in found.items()} == {"relu": 2, "stem": 1}


def test_to_the_end_if_that_is_wished():
    model = Deep()
    assert torch.equal(FeatureTap(model, "layers.0", stop=False)(X), captured(model, "layers.0")[0])
    model.called.clear()
    FeatureTap(model, "layers.0", stop=False)(X)
    assert model.called == [0, 1, 2, 3]


# -- gradients, memory, modes --------------------------------------------------------------------------------------------


def test_features_can_be_trained_through():
    model = Net()
    FeatureTap(model, "blocks.0")(X).sum().backward()
    got = [(name, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()]
    model.zero_grad()
    x = model.relu(model.stem(X))
    model.blocks[0](x).sum().backward()
    for (name, grad), (_, parameter) in zip(got, model.named_parameters(), strict=True):
        assert (grad is None) == (parameter.grad is None), name
        assert grad is None or torch.equal(grad, parameter.grad), name
    assert {name.split(".")[0] for name, grad in got if grad is not None} == {"stem", "blocks"}


def test_later_features_can_be_differentiated_by_earlier_ones():
    model = Net()
    found = FeatureTap(model, ["stem", "blocks.1"])(X)
    (grad,) = torch.autograd.grad(found["blocks.1"].sum(), found["stem"])
    assert grad.shape == (2, 6)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("options", [{}, {"detach": True}, {"stop": False}, {"call": "all"}], ids=str)
def test_operations_in_place_that_follow_do_not_change_what_is_given(options):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    given = FeatureTap(model, ["0", "2"], **options)(X)["0"]
    given = given[0] if isinstance(given, list) else given
    assert (given < 0).any()
    assert torch.equal(given, model[0](X))
    with torch.no_grad():
        again = FeatureTap(model, ["0", "2"])(X)["0"]
    assert torch.equal(again, given)


@pytest.mark.parametrize("detach", [True, False])
def test_sharing_memory_is_refused_where_it_was_overwritten(detach):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    with pytest.raises(StaleCaptureError, match=r"a Linear gave .* overwritten"):
        FeatureTap(model, ["0", "2"], clone="never", detach=detach)(X)
    assert hooks_on(model) == 0
    assert FeatureTap(model, ["1", "2"], clone="never", detach=detach)(X)["1"].min() == 0
    assert (FeatureTap(model, "0", clone="never")(X) < 0).any()  # nothing follows


def test_detached():
    found = FeatureTap(Net(), ["stem", "head"], detach=True)(X)
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_are_those_of_the_caller(mode):
    model = Net()
    with mode():
        (wanted, _), outer = captured(model, "blocks.0", "stem"), torch.is_grad_enabled()
        found = FeatureTap(model, ["stem", "blocks.0"])(X)["blocks.0"]
        alone = FeatureTap(model, "blocks.0")(X)
        assert torch.is_grad_enabled() == outer
    assert torch.equal(alone, found)
    assert torch.equal(found, wanted)
    assert found.dtype == wanted.dtype
    assert found.requires_grad == outer
    assert found.is_inference() == (mode is torch.inference_mode)


def test_training_mode_buffers_and_random_numbers_are_those_of_a_forward_pass():
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4))

    model, plain = made(), made()
    torch.manual_seed(1)
    given, state = FeatureTap(model, "2")(X), torch.get_rng_state()
    torch.manual_seed(1)
    wanted = plain[:3](X)
    assert torch.equal(given, wanted)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))
    assert model[1].num_batches_tracked == 1
    assert model[3].num_batches_tracked == 0
    assert all(module.training for module in model.modules())
    model.eval()
    before = model[1].running_mean.clone()
    FeatureTap(model, "2")(X)
    assert torch.equal(model[1].running_mean, before)
    assert not any(module.training for module in model.modules())


# -- hooks: ours and those of others -------------------------------------------------------------------------------------


def test_nothing_is_left_on_the_network():
    model = Net()
    features = FeatureTap(model, ["stem", "relu", "head"])
    assert hooks_on(model) == 0
    features(X)
    assert hooks_on(model) == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_exception(error):
    model = Deep()
    before = hooks_on(model)

    def fail(*_):
        raise error("no")

    handle = model.layers[1].register_forward_hook(fail)
    features = FeatureTap(model, ["layers.0", "layers.3"])
    with pytest.raises(error, match="no"):
        features(X)
    handle.remove()
    assert hooks_on(model) == before
    assert features(X)["layers.3"].shape == (2, 4)


def test_hooks_of_others_stay_and_those_that_are_called_always_do_not_hear_of_the_stop():
    model, heard = Deep(), []
    model.register_forward_hook(lambda *_: heard.append("network"), always_call=True)
    model.layers.register_forward_hook(lambda *_: heard.append("layers"), always_call=True)
    model.layers[1].register_forward_hook(lambda *_: heard.append("1"), always_call=True)
    before = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    FeatureTap(model, "layers.1")(X)
    assert heard == ["1"]
    assert [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()] == before


def test_what_hooks_of_others_make_of_an_output_is_what_is_given():
    model = Deep()
    model.layers[1].register_forward_hook(lambda module, args, output: output * 0 + 5)

    def adds_another(module, args):
        model.layers[1].register_forward_hook(lambda module, args, output: output + 1)
        handle.remove()

    handle = model.layers[0].register_forward_pre_hook(adds_another)
    assert torch.equal(FeatureTap(model, "layers.1")(X), torch.full((2, 4), 6.0))


def test_except_exception_in_a_network_does_not_see_the_stop():
    class Careful(Deep):
        def forward(self, x):
            try:
                return self.layers(x)
            except Exception:
                self.called.append("caught")
                raise

    model = Careful()
    FeatureTap(model, "layers.0")(X)
    assert model.called == [0]


class Greedy(Deep):
    """Catches everything; then does what it is told."""

    def __init__(self, then):
        super().__init__()
        self.then = then

    def forward(self, x):
        try:
            return self.layers(x)
        except BaseException as error:
            return self.then(x, error)


def test_a_network_that_catches_everything_is_told_of():
    model = Greedy(lambda x, error: x)
    with pytest.warns(
        TapWarning, match=r"Greedy caught the exception .* at line \d+ of .*test_features.py, and went on"
    ):
        given = FeatureTap(model, "layers.0")(X)
    assert torch.equal(given, model.layers[0](X))
    assert FeatureTap(model, "layers.0", stop=False)(X).shape == (2, 4)


def test_a_network_that_tries_again_comes_to_an_end():
    model = Greedy(lambda x, error: model.layers(x))
    with pytest.warns(TapWarning, match="Greedy caught"):
        assert FeatureTap(model, "layers.0")(X).shape == (2, 4)
    assert model.called == [0, 0, 1, 2, 3]


def test_a_network_that_makes_another_exception_of_it_is_told_of():
    def other(x, error):
        raise RuntimeError("something went wrong") from error

    model = Greedy(other)
    with pytest.raises(TapError, match=r"Greedy caught .* and raised RuntimeError; catch Exception there") as caught:
        FeatureTap(model, "layers.0")(X)
    assert str(caught.value.__cause__) == "something went wrong"


def test_a_stop_holds_no_frames():
    class Big:
        pass

    model, kept = Deep(), []

    def forward(x):
        big = Big()
        kept.append(weakref.ref(big))
        return model.layers(x)

    model.forward = forward
    features = FeatureTap(model, "layers.1")
    gc.disable()
    try:
        features(X)
        assert kept[0]() is None
    finally:
        gc.enable()


# -- among other taps ----------------------------------------------------------------------------------------------------


def test_taps_hear_of_the_part_that_is_run_and_of_no_error():
    model, heard = Deep(), []
    with tapping(model) as taps:
        taps.tap("**", lambda e: heard.append((e.kind, e.name)), kinds=["forward", "forward_error"])
        FeatureTap(model, "layers.1")(X)
        assert heard == [("forward", "layers.0"), ("forward", "layers.1")]
        heard.clear()
        model(X)
        assert [kind for kind, _ in heard] == ["forward"] * 5
        model.layers[3].forward = lambda x: 1 / 0
        heard.clear()
        with pytest.raises(ZeroDivisionError):
            model(X)
        assert [name for kind, name in heard if kind == "forward_error"] == ["layers.3", "layers"]
    assert not [
        hook for m in model.modules() for hook in m._forward_hooks.values() if "hookbus" in type(hook).__module__
    ]


def test_scheduled_taps_hear_of_the_last_layer_too_and_selections_beyond_it_are_not_said_to_be_silent():
    model, heard = Deep(), []
    with tapping(model) as taps, warnings.catch_warnings():
        warnings.simplefilter("error")
        taps.tap(["layers.1", "layers.3"], lambda e: heard.append((e.name, e.step)), every=2)
        features = FeatureTap(model, "layers.1")
        for _ in range(4):
            features(X)
        assert heard == [("layers.1", 1), ("layers.1", 3)]
        assert len(model.layers[1]._forward_hooks) == 0  # armed at due steps only, also after a pass that was cut short


def test_an_interrupt_after_a_stop_is_not_told_of_modules_that_the_stop_has_left():
    heard = []

    class Uses(Training):
        def __init__(self):
            super().__init__()
            self.features = None

        def training_step(self, batch, batch_idx):
            FeatureTap(self.net, "blocks.0.conv")(batch)
            raise KeyboardInterrupt

    model = Uses()
    run = trainer()
    run.taps.tap("net.**", lambda e: heard.append(e.name), kinds="forward_error")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.fit(model, loader(1))
    assert heard == []
    assert hooks_on(model) == 0


def test_a_pass_in_the_midst_of_another_does_not_end_that():
    model, heard = Deep(), []

    def inside(*_):
        handle.remove()
        FeatureTap(model, "")(X)

    with tapping(model) as taps:
        taps.tap(["layers.1", "layers.3"], lambda e: heard.append((e.name, e.call_index)), every=1, phases="train")
        handle = model.layers[1].register_forward_hook(inside)
        model(X)
    assert heard == [("layers.1", 0), ("layers.3", 0), ("layers.1", 1), ("layers.3", 1)]


def test_in_a_training_step():
    class Distils(Training):
        def __init__(self):
            super().__init__()
            self.teacher = Net().requires_grad_(False)

        def training_step(self, batch, batch_idx):
            wanted = FeatureTap(self.teacher, "blocks.0")(batch)
            return (FeatureTap(self.net, "blocks.0")(batch) - wanted).square().mean()

    class Counts:
        def __init__(self):
            self.calls = []

        @hookimpl(modules="net.blocks.0")
        def on_module_forward(self, event):
            self.calls.append((event.step, event.call_index))

    model, counts = Distils(), Counts()
    before = [p.clone() for p in model.net.parameters()]
    trainer(counts).fit(model, loader(3))
    assert counts.calls == [(0, 0), (1, 0), (2, 0)]
    assert [not torch.equal(a, b) for a, b in zip(before, model.net.parameters(), strict=True)] == [True] * 4 + [
        False
    ] * 4
    assert hooks_on(model) == 0


def test_inside_of_another():
    """In a hook of a network whose features are wanted: of another network, and of the same."""
    model, other = Deep(), Deep()
    inner = []

    def hook(module, args, output):
        handle.remove()
        inner.append(FeatureTap(other, "layers.1")(X))
        inner.append(FeatureTap(model, "layers.2")(X))
        model(X)

    wanted = captured(model, "layers.0", "layers.1", "layers.2")
    handle = model.layers[0].register_forward_hook(hook)
    found = FeatureTap(model, ["layers.0", "layers.1"])(X)
    assert torch.equal(found["layers.0"], wanted[0])
    assert torch.equal(found["layers.1"], wanted[1])
    assert torch.equal(inner[0], captured(other, "layers.1")[0])
    assert torch.equal(inner[1], wanted[2])
    assert all(not layer._forward_hooks for layer in model.layers)


def test_a_network_that_looks_at_its_own_features():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return self.last(FeatureTap(self.body, "1")(x))

    model = Looks()
    assert torch.equal(FeatureTap(model, "last")(X), model(X))
    with pytest.raises(SelectionError, match=r"'body\.2', which was not called"):
        FeatureTap(model, "body.2")(X)


def test_two_threads_with_two_networks():
    models = [Deep(), Deep()]
    wanted = [captured(model, "layers.2")[0] for model in models]
    meeting, wrong = threading.Barrier(2), []

    def wait(*_):
        meeting.wait(10)

    def work(number):
        model = models[number]
        model.layers[1].register_forward_hook(wait)
        for _ in range(20):
            if not torch.equal(FeatureTap(model, "layers.2")(X), wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not meeting.broken
    assert wrong == []
    assert [hooks_on(model) for model in models] == [5, 5]


def test_a_call_of_another_thread_does_not_count():
    model, inside = Deep(), []

    def elsewhere(module, args, output):
        handle.remove()
        thread = threading.Thread(target=lambda: inside.append(model(2 * X)))
        thread.start()
        thread.join()

    handle = model.layers[0].register_forward_hook(elsewhere)
    found = FeatureTap(model, "layers.1")(X)
    assert torch.equal(found, model.layers[:2](X))
    assert torch.equal(inside[0], model(2 * X))


# -- what is around a network --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["wrapper", "in place", "a part", "called before"])
def test_compiled_networks_run_without_compilation(way):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = Net()
    wanted = captured(model, "blocks.0.conv")[0]
    fast = model
    if way == "in place":
        model.compile(backend="eager")
    elif way == "a part":
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    else:
        fast = torch.compile(model, backend="eager")
    if way != "wrapper":
        fast(X)
    before = torch._dynamo.utils.counters["frames"]["total"]
    features = FeatureTap(fast, "blocks.0.conv")
    for _ in range(2):
        assert torch.equal(features(X), wanted)
    assert torch._dynamo.utils.counters["frames"]["total"] == before
    assert torch.equal(fast(X), model(X))
    assert torch._dynamo.utils.counters["frames"]["total"] > 0  # compilation is on again
    assert hooks_on(model) == 0
    torch._dynamo.reset()


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_what_is_around_a_network_is_left_out(wrap):
    model, heard = Net(), []
    wrapped = wrap(model)
    wrapped.register_forward_pre_hook(lambda *_: heard.append("wrapper"))
    assert torch.equal(FeatureTap(wrapped, "stem")(X), model.stem(X))
    assert heard == []


def test_a_compiled_network_with_taps_is_compiled_again_after_a_stop():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, heard = Net(), []
    fast = torch.compile(model, backend="eager")
    model.compile(backend="eager")
    with tapping(model) as taps:
        taps.tap("stem", lambda event: heard.append(event.step), every=1, phases="train")
        assert FeatureTap(fast, "blocks.0")(X).shape == (2, 6)
    assert heard == [0]
    model(X)
    assert torch._dynamo.utils.counters["frames"]["total"] > 0
    torch._dynamo.reset()


def test_inside_of_a_compiled_function():
    torch._dynamo.reset()
    model = Net()
    features = FeatureTap(model, "stem")

    @torch.compile(backend="eager")
    def doubled(x):
        return 2 * features(x + 1)

    assert torch.allclose(doubled(X), 2 * model.stem(X + 1))
    torch._dynamo.reset()


@pytest.mark.parametrize("impl", [CheckpointImpl.NO_REENTRANT, CheckpointImpl.REENTRANT])
def test_checkpointed_parts(impl):
    model = Net()
    wanted = FeatureTap(model, ["blocks.0.conv", "blocks.1.conv"])(X)
    wanted["blocks.1.conv"].sum().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for number in range(2):
        model.blocks[number] = checkpoint_wrapper(model.blocks[number], impl)
    found = FeatureTap(model, ["blocks.0.conv", "blocks.1.conv"])(X)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    if impl is CheckpointImpl.NO_REENTRANT:  # what is inside of the other kind is not in the graph
        found["blocks.1.conv"].sum().backward()
        for grad, parameter in zip(grads, model.parameters(), strict=True):
            assert (grad is None) == (parameter.grad is None)
            assert grad is None or torch.allclose(grad, parameter.grad)
        model.zero_grad()
    model(X).sum().backward()  # as ever
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_checkpointing_around_the_whole_and_backward_inside_of_it():
    """A repeated forward pass in a backward pass that the network itself runs is none of ours."""

    class Meta(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)

        def forward(self, x):
            x = x.clone().requires_grad_()
            y = checkpoint(self.inner, x, use_reentrant=False)
            (grad,) = torch.autograd.grad(y.sum(), x)
            return self.last(self.inner(grad))

    model = Meta()
    assert [len(FeatureTap(model, name, call="all")(X)) for name in ("inner.0", "last")] == [2, 1]


def test_saved_tensor_hooks_of_a_checkpoint_are_gone_after_a_stop():
    packed = []
    model = nn.Sequential(checkpoint_wrapper(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), nn.Linear(4, 1))
    given = FeatureTap(model, "0.0")(X)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        (given * given).sum().backward()
    assert packed
    w = torch.ones(3, requires_grad=True)
    (w * w).sum().backward()
    assert torch.equal(w.grad, torch.full((3,), 2.0))


# -- what goes wrong -----------------------------------------------------------------------------------------------------


def test_a_name_that_does_not_exist():
    with pytest.raises(SelectionError, match=r"FeatureTap selects 'blocks\.0\.cnv'.* did you mean 'blocks\.0\.conv'"):
        FeatureTap(Net(), "blocks.0.cnv")
    with pytest.raises(SelectionError, match="'blocks', a ModuleList, which is never called"):
        FeatureTap(Net(), "blocks")
    with pytest.raises(SelectionError, match="no part of the network"):
        FeatureTap(Net(), nn.Linear(1, 1))
    with pytest.raises(SelectionError, match="Conv2d"):
        FeatureTap(Net(), "blocks.*", types=nn.Conv2d)


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer3(self.layer1(x))


def test_a_module_that_is_never_called():
    with pytest.raises(
        SelectionError, match=r"'layer2', which was not called in this forward pass.* 'layer[13]', 'layer[13]'"
    ):
        FeatureTap(Skips(), ["layer1", "layer2"])(X)
    model = nn.MultiheadAttention(4, 1)
    with pytest.raises(SelectionError, match="uses the weights of its out_proj without calling it"):
        FeatureTap(model, "out_proj")(X, X, X)
    assert hooks_on(model) == 0
    with pytest.raises(SelectionError, match="'layer2'"):
        FeatureTap(Skips(), re.compile("layer2"))(X)


def test_a_pattern_may_match_modules_that_are_not_called():
    assert list(FeatureTap(Skips(), "layer*")(X)) == ["layer1", "layer3"]


def test_a_call_that_does_not_take_place():
    with pytest.raises(SelectionError, match="wants call 5 of 'relu', counted from 0, but it was called 2 times"):
        FeatureTap(Net(), "relu", call=5)(X)


def test_arguments_without_a_meaning():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        FeatureTap("net", "stem")
    with pytest.raises(TypeError, match="classes go to types"):
        FeatureTap(Net(), nn.Linear)
    for call in (-1, True, "last", 1.5):
        with pytest.raises(ValueError, match="call must be"):
            FeatureTap(Net(), "stem", call=call)
    with pytest.raises(ValueError, match="clone must be one of auto, never"):
        FeatureTap(Net(), "stem", clone="always")


# -- over time -----------------------------------------------------------------------------------------------------------


def test_replaced_modules_are_found():
    model = Deep()
    features = FeatureTap(model, "layers.1")
    features(X)
    model.layers[1] = nn.Linear(4, 7)
    assert features(X).shape == (2, 7)
    model.layers = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(SelectionError, match=r"layers\.1"):
        features(X)


def test_copies_are_of_the_network_too():
    features = FeatureTap(Net(), ["stem", "head"])
    features(X)
    for other in (copy.deepcopy(features), pickle.loads(pickle.dumps(features))):
        assert other.model is not features.model
        assert torch.equal(other(X)["head"], features(X)["head"])
        other.model.head = nn.Linear(6, 1)
        assert other(X)["head"].shape == (2, 1)
    assert repr(features) == "<FeatureTap of 'stem', 'head' in Net>"


def test_a_capture_and_features_agree():
    model = Net()
    with tapping(model, capture := Capture(["stem"])):
        given = FeatureTap(model, "stem")(X)
    assert torch.equal(capture["stem"], given)
