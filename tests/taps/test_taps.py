"""Taps are on a network while somebody wants them, tell what happens there, and leave nothing behind."""

import gc
import weakref

import pytest
import torch
from tests.taps.networks import Many, Net, Wrapper, hooks_on
from torch import nn
from torch.nn.utils import parametrizations, prune

import hookbus
from hookbus import hookimpl, tapping
from hookbus.taps import Selection, SelectionError, TapError, Taps

X = torch.linspace(-1, 1, 8).view(2, 4)
SHAPES = ("tensor", "tuple", "list", "dict", "named", "dataclass", "structseq")


class Listener:
    """Records name and call of whatever it hears."""

    def __init__(self):
        self.calls = []

    @hookimpl(modules="blocks.*.act")
    def on_module_forward(self, event):
        self.calls.append((event.name, event.call_index))


def names(model, modules=None, run=lambda model: model(X), **options):
    heard = []
    with tapping(model) as taps, taps.tap(modules, lambda event: heard.append(event.name), **options):
        run(model)
    return heard


# -- nothing while nobody subscribes, nothing afterwards -------------------------------------------------------------


def test_nothing_is_on_the_network_while_nobody_subscribes():
    model = Net()
    with tapping(model) as taps:
        assert hooks_on(model) == 0
        with taps.tap("head", print):
            assert hooks_on(model) > 0
        assert hooks_on(model) == 0
        assert taps.hooks() == []


def test_hooks_go_with_their_plugin_and_others_stay():
    model, listener = Net(), Listener()
    with tapping(model, listener) as taps:
        tap = taps.tap("head", lambda event: None)
        taps.bus.unregister(listener)
        assert {hook.name for hook in taps.hooks()} == {"", "head"}
        model(X)
        assert listener.calls == []
        tap.close()
        tap.close()
        assert hooks_on(model) == 0


def test_the_bus_taps_too():
    model, heard = Net(), []
    with tapping(model) as taps:
        with taps.bus.tap("head", lambda event: heard.append(event.name)), taps.bus.capture("stem") as kept:
            model(X)
        model(X)
        bus = taps.bus
    assert heard == ["head"]
    assert kept["stem"].shape == (2, 6)
    del taps
    gc.collect()
    with pytest.raises(RuntimeError, match=r"no taps serve this bus: use that of a trainer"):
        bus.tap("head", print)
    with pytest.raises(RuntimeError, match="no taps serve this bus"):
        hookbus.bus.Bus().capture("head")


def test_a_plugin_may_select_otherwise_between_runs():
    class Plugin:
        tap_selection = Selection(modules="head")

        @hookimpl
        def on_module_forward(self, event):
            heard.append(event.name)

    model, heard, plugin = Net(), [], Plugin()
    with tapping(model, plugin) as taps:
        model(X)
        taps.detach()
        plugin.tap_selection = Selection(modules="stem", every=2)
        taps.attach(model)
        for _ in range(4):
            model(X)
    assert heard == ["head", "stem", "stem"]


def test_unregistering_from_inside_a_tap():
    model = Net()
    taps = tapping(model)
    heard = []

    def once(event):
        heard.append(event.name)
        tap.close()

    tap = taps.tap("**.act", once)
    model(X)
    assert heard == ["blocks.0.act"]
    assert hooks_on(model) == 0


def test_subscribing_from_inside_a_tap_works_from_the_next_module_on():
    model, heard = Net(), []
    taps = tapping(model)
    taps.tap("stem", lambda event: taps.tap("head", lambda e: heard.append(e.name)) and None, once=True)
    model(X)
    assert heard == ["head"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_hooks_are_gone_after_an_exception_in_forward(error):
    model = Net()
    foreign = []
    model.stem.register_forward_hook(lambda *_: foreign.append(1))

    def fail(*_):
        raise error("stop here")

    model.head.register_forward_pre_hook(fail)
    before = hooks_on(model)

    def tapped():
        with tapping(model, Listener()) as taps:
            taps.capture("stem", grads=True)
            model(X)

    with pytest.raises(error, match="stop here"):
        tapped()
    assert hooks_on(model) == before
    model.head._forward_pre_hooks.clear()
    model(X)
    assert len(foreign) == 2


def test_an_exception_in_a_tap_names_plugin_and_module_and_leaves_nothing():
    model = Net()

    class Broken:
        @hookimpl(modules="blocks.1")
        def on_module_forward(self, event):
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError) as caught, tapping(model, Broken()):
        model(X)
    assert "plugin 'Broken' in hook 'on_module_forward' for <forward of blocks.1" in caught.value.__notes__[0]
    assert hooks_on(model) == 0


@pytest.mark.parametrize("kind", ["forward_pre", "forward", "grad_output", "grad_input", "parameter_grad"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_a_tap_of_any_kind_leaves_nothing(kind, error):
    def fail(event):
        raise error("stop here")

    model, foreign = Net(), []
    model.head.register_forward_hook(lambda *_: foreign.append("module"))
    model.head.weight.register_post_accumulate_grad_hook(lambda _: foreign.append("parameter"))
    before = hooks_on(model)
    with tapping(model) as taps:
        taps.tap("head", fail, kinds=kind)
        with pytest.raises(error, match="stop here") as caught:
            model(X).sum().backward()
    notes = "".join(getattr(caught.value, "__notes__", ()))
    if error is ValueError:
        assert "raised by plugin 'fail' in hook 'on_" in notes
        assert ("half-way" in notes) == ("grad" in kind)
    assert hooks_on(model) == before
    foreign.clear()
    model(X).sum().backward()
    assert foreign == ["module", "parameter"]


def test_passes_are_counted_right_after_a_keyboard_interrupt_that_was_caught():
    model = Net()
    steps = []
    with tapping(model) as taps:
        taps.tap("relu", lambda event: steps.append((event.step, event.call_index)), every=1, phases="train")
        interrupt = model.head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model(X)
        interrupt.remove()
        model(X)
    assert steps == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_forgotten_taps_take_themselves_off():
    model, listener = Net(), Listener()
    taps = tapping(model, listener)
    assert hooks_on(model)
    gone = weakref.ref(listener)
    del taps, listener
    gc.collect()
    assert hooks_on(model) == 0
    assert gone() is None


def test_a_network_does_not_keep_plugins_alive():
    model = Net()
    captured = tapping(model).capture("head")  # which knows the bus, which knows it
    gone = weakref.ref(captured)
    del captured
    gc.collect()
    assert gone() is None
    assert hooks_on(model) == 0


def test_taps_do_not_keep_the_bus_busy_after_close():
    bus = hookbus.Bus.load(autoload=False)
    taps = Taps(bus)
    assert bus.hook.on_module_forward.watchers
    taps.close()
    assert not bus.hook.on_module_forward.watchers
    with pytest.raises(ValueError, match="catalogue"):
        Taps(hookbus.Bus())


def test_two_sets_of_taps_on_one_network_do_not_touch_each_other():
    model = Net()
    heard = []
    with tapping(model) as outer:
        outer.tap("head", lambda event: heard.append("outer"))
        with tapping(model) as inner:
            inner.tap("head", lambda event: heard.append("inner"))
            model(X)
        model(X)
    assert heard == ["outer", "inner", "outer"]


def test_hooks_of_others_are_never_touched():
    model = Net()
    parametrizations.weight_norm(model.head)
    prune.random_unstructured(model.stem, "weight", amount=0.5)
    before = hooks_on(model)
    assert before
    with tapping(model) as taps:
        taps.capture(None, grads=True)
        model(X).sum().backward()
    assert hooks_on(model) == before


# -- what is told ------------------------------------------------------------------------------------------------------


def test_order_of_modules_and_numbers_of_calls():
    model = Net()
    heard = []
    with tapping(model) as taps:
        taps.tap(["relu", "blocks.*"], lambda event: heard.append((event.name, event.call_index)))
        model(X)
        model(X)
        assert heard == [("relu", 0), ("blocks.0", 0), ("blocks.1", 0), ("relu", 1)] * 2
        heard.clear()
        model.relu(X)  # by hand, outside of any pass
        model.relu(X)
        assert heard == [("relu", 0), ("relu", 0)]


def test_numbers_of_calls_agree_between_kinds():
    heard = []
    model = Net()
    with tapping(model) as taps:
        taps.tap(
            "relu",
            lambda event: heard.append((event.kind, event.call_index)),
            kinds=["forward_pre", "forward", "grad_output", "grad_input"],
        )
        model(X).sum().backward()
    assert heard == [
        *(("forward_pre", 0), ("forward", 0), ("forward_pre", 1), ("forward", 1)),
        *(("grad_output", 1), ("grad_input", 1), ("grad_output", 0), ("grad_input", 0)),
    ]


def test_a_network_that_calls_itself():
    class Twice(Net):
        def forward(self, x, again=True):
            return self(x, again=False) + super().forward(x) if again else super().forward(x)

    model, heard = Twice(), []
    with tapping(model) as taps:
        taps.tap("relu", lambda event: heard.append((event.step, event.call_index)), phases="train")
        model(X)
        model(X)
    assert heard == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_of_every_structure(shape):
    model = Wrapper(Many(shape))
    plain = model(X)
    heard, grads = [], {}
    with tapping(model) as taps:
        taps.tap("inner", lambda event: heard.append(event.output))
        taps.tap("inner", lambda event: grads.update({event.path: event.grad}), kinds="grad_output")
        output = model(X)
        loss = sum(t.sum() for _, t in hookbus.taps.leaves.tensors(output) if t.requires_grad)
        loss.backward()
    assert type(heard[0]) is type(plain) is type(output)
    paths = {path: t for path, t in hookbus.taps.leaves.tensors(plain) if t.requires_grad}
    assert grads.keys() == paths.keys()
    expected = [3.0, 1.0] if len(paths) == 2 else [1.0]  # the second of two tensors is twice the first
    assert [float(grads[path].unique()) for path in paths] == expected


def test_keyword_arguments_only():
    model = Wrapper(Many("tensor"))
    heard = []
    x = X.clone().requires_grad_()
    with tapping(model) as taps:
        taps.tap(
            "inner", lambda event: heard.append((event.kind, event.args, sorted(event.kwargs))), kinds=["forward_pre"]
        )
        taps.tap("inner", lambda event: heard.append((event.path, event.grad)), kinds="grad_input")
        model(x=x, scale=torch.tensor(2.0)).sum().backward()
    assert heard[0] == ("forward_pre", (), ["scale", "x"])
    ((path, grad),) = heard[1:]
    assert path == ("x",)
    assert torch.equal(grad, x.grad)


def test_a_gradient_for_an_output_that_nobody_uses_is_none():
    model = Wrapper(nn.LSTM(4, 3))
    heard = {}
    with tapping(model) as taps:
        taps.tap("inner", lambda event: heard.update({event.path: event.grad}), kinds="grad_output")
        _, (h, _) = model(X.view(2, 1, 4))
        h.sum().backward()
    assert torch.equal(heard[(1, 0)], torch.ones(1, 1, 3))
    assert all(grad is None for path, grad in heard.items() if path not in ((1, 0), (0,)))


def test_gradients_are_those_of_autograd():
    model = Net()
    grads = {}
    with tapping(model) as taps:
        taps.tap("blocks.*.conv", lambda event: grads.update({event.name: event.grad.clone()}), kinds="grad_output")
        kept = taps.capture("blocks.*.conv", attached=True)
        loss = model(X).square().sum()
        oracle = torch.autograd.grad(loss, [kept["blocks.0.conv"], kept["blocks.1.conv"]], retain_graph=True)
        loss.backward()
    assert torch.allclose(grads["blocks.0.conv"], oracle[0])
    assert torch.allclose(grads["blocks.1.conv"], oracle[1])


def test_frozen_layers_have_no_gradients_and_harm_nobody():
    model = Net().requires_grad_(False)
    model.blocks[1].requires_grad_(True)
    heard = names(model, "**.conv", kinds=["grad_output", "grad_input"], run=lambda m: m(X).sum().backward())
    assert set(heard) == {"blocks.1.conv"}
    model.requires_grad_(False)
    assert names(model, "**.conv", kinds=["grad_output", "grad_input"]) == []


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    def run(model):
        with mode():
            model(X)

    assert names(Net(), "head", run=run, kinds=["forward", "grad_output", "forward_pre"]) == ["head", "head"]


def test_in_place_operations_after_a_tap():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    oracle = nn.Sequential(model[0], nn.ReLU(), model[2])
    pre = model[0](X)
    with tapping(model) as taps:
        kept = taps.capture("0", grads=True)
        model(X).sum().backward()
    hidden = oracle[0](X)
    (grad,) = torch.autograd.grad(oracle[2](oracle[1](hidden)).sum(), hidden)
    assert torch.equal(kept["0"], pre)
    assert torch.equal(kept.grad("0"), grad)


def test_observers_get_tensors_that_hold_no_graph():
    model = Wrapper(Many("dict"))
    kept = []
    with tapping(model) as taps:
        taps.tap("inner", lambda event: kept.append((event.output, event.args, event.grad_enabled)))
        out = model(X.clone().requires_grad_())
    ((output, args, grad_enabled),) = kept
    assert not output["a"].requires_grad
    assert not output["b"]["c"].requires_grad
    assert not args[0].requires_grad
    assert out["a"].requires_grad
    assert grad_enabled


def test_parameters_tell_of_their_gradients_under_all_their_names():
    model = Net()
    model.tied = nn.Linear(4, 6)
    model.tied.weight = model.stem.weight
    heard = []
    with tapping(model) as taps:
        tap = taps.tap(
            ["stem", "head", "tied"], lambda e: heard.append((e.name, e.aliases, e.grad)), kinds="parameter_grad"
        )
        model(X).sum().backward()
        found = {name: (aliases, grad) for name, aliases, grad in heard}
        assert set(found) == {"stem.weight", "stem.bias", "head.weight", "head.bias"}
        assert len(heard) == 4
        assert found["stem.weight"][0] == ("tied.weight",)
        assert torch.equal(found["head.bias"][1], model.head.bias.grad)
        heard.clear()
        model.head.weight = nn.Parameter(torch.zeros(3, 6))  # a new one, as load_state_dict(assign=True) makes
        model(X).sum().backward()
        assert "head.weight" in [name for name, *_ in heard]
        tap.close()
    assert hooks_on(model) == 0


def test_errors_are_told_from_the_inside_out():
    model = Net()
    heard = []

    def fail(*_):
        raise ValueError("bad input")

    failing = model.blocks[1].conv.register_forward_pre_hook(fail)
    with tapping(model) as taps:
        taps.tap(None, lambda e: heard.append((e.name, type(e.exception), e.args[0].shape)), kinds="forward_error")
        with pytest.raises(ValueError, match="bad input"):
            model(X)
        assert [name for name, *_ in heard] == ["blocks.1.conv", "blocks.1", ""]
        assert {kind for _, kind, _ in heard} == {ValueError}
        heard.clear()
        failing.remove()
        try:
            raise KeyError  # that another exception is being handled does not make a success an error
        except KeyError:
            model(X)
    assert heard == []


def test_keyboard_interrupt_is_told_when_the_block_is_left():
    class Impatient(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model, heard = Net(), []
    model.head = Impatient()

    def tapped():
        with tapping(model) as taps:
            taps.tap(None, lambda event: heard.append((event.name, type(event.exception))), kinds="forward_error")
            model(X)

    with pytest.raises(KeyboardInterrupt):
        tapped()
    assert heard == [("head", KeyboardInterrupt), ("", KeyboardInterrupt)]


def test_phase_step_and_schedule_of_hand_written_loops():
    model = Net()
    heard = []
    with tapping(model) as taps:
        taps.tap("head", lambda e: heard.append((e.phase, e.step, e.epoch)), every=2)
        for _ in range(4):
            model(X)
        model.eval()
        model(X)
        model(X)
        assert heard == [("train", 1, 0), ("train", 3, 0), ("val", 1, 0)]
        heard.clear()
        taps.at(step=9, epoch=3, phase="test")
        model(X)
        assert heard == [("test", 9, 3)]


def test_hooks_are_on_for_due_steps_only():
    model = Net()
    counts = []
    probe = model.head.register_forward_pre_hook(lambda *_: counts.append(len(model.stem._forward_hooks)))
    with tapping(model) as taps:
        taps.tap("stem", lambda event: None, every=3)
        for _ in range(6):
            model(X)
            assert len(model.stem._forward_hooks) == 0
    probe.remove()
    assert counts == [0, 0, 1, 0, 0, 1]


def test_once_is_once():
    model, heard = Net(), []
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(event.step), once=True, phases="train")
        for _ in range(3):
            model(X)
    assert heard == [0]


def test_modules_that_come_later_are_found():
    model, heard = Net(), []
    with tapping(model) as taps:
        taps.tap("blocks.*.conv", lambda event: heard.append(type(event.module).__name__))
        model(X)
        model.blocks[1].conv = nn.Sequential(nn.Linear(6, 6))
        model(X)
        assert heard == ["Linear", "Linear", "Linear", "Sequential"]
    assert hooks_on(model) == 0


def test_order_is_that_of_the_bus_and_can_be_seen_there():
    model, heard = Net(), []

    def listener(name, **options):
        @hookimpl(modules="head", **options)
        def on_module_forward(event):
            heard.append(name)

        return type(name, (), {"on_module_forward": staticmethod(on_module_forward)})()

    with tapping(model, listener("a", trylast=True), listener("b"), listener("c", tryfirst=True)) as taps:
        taps.tap("head", lambda event: heard.append("tap"))
        model(X)
        assert heard == ["c", "b", "tap", "a"]
        assert [row.plugin for row in taps.bus.order("on_module_forward")][:2] == ["c", "b"]
        assert "modules=head" in taps.bus.order("on_module_forward")[0].flags


def test_predicates_of_marks_are_asked_for_each_event():
    heard = []

    class Second:
        @hookimpl(modules="relu", when=lambda event: event.call_index == 1)
        def on_module_forward(self):
            heard.append("second")

    with tapping(Net(), Second()) as taps:
        taps.bus.registration("Second")
        taps._model(X)
    assert heard == ["second"]


def test_the_clock_of_the_bus_times_taps_too():
    model = Net()
    with tapping(model, Listener()) as taps:
        with taps.bus.timed() as timing:
            model(X)
        assert timing.spent["on_module_forward", "Listener"].calls == 2
        model(X)
        assert timing.spent["on_module_forward", "Listener"].calls == 2


def test_wrong_names_are_told_at_once_and_nothing_stays():
    model = Net()
    with tapping(model) as taps:
        with pytest.raises(SelectionError, match="did you mean 'stem'"):
            taps.tap("steam", print)
        assert taps.bus.names() == []
        assert hooks_on(model) == 0


def test_attaching_to_another_network_lets_go_of_the_first():
    first, second = Net(), Net()
    taps = tapping(first, Listener())
    taps.attach(second)
    assert hooks_on(first) == 0
    assert hooks_on(second)
    taps.close()
    assert hooks_on(second) == 0


def test_moments_are_for_hand_written_loops():
    with pytest.raises(RuntimeError, match="a trainer says itself"):
        Taps(hookbus.Bus.load(autoload=False)).at(step=1)


# -- manners -----------------------------------------------------------------------------------------------------------


def test_a_monitor_can_neither_disturb_nor_end_a_run():
    class Rude:
        role = "monitor"

        @hookimpl(modules="head")
        def on_module_forward(self, event):
            torch.rand(5)
            torch.set_grad_enabled(False)
            raise RuntimeError("oops")

    model = Net()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with tapping(model, Rude()), pytest.warns(RuntimeWarning, match="monitor 'Rude' failed in on_module_forward"):
        model(X)
    assert torch.is_grad_enabled()
    assert torch.equal(torch.rand(1), expected)


def test_a_monitor_may_not_edit():
    class Editor:
        role = "monitor"

        @hookimpl(modules="head", edits=True)
        def on_module_forward(self, event):
            return event.output

    with pytest.raises(hookbus.bus.RegistrationError, match="a monitor cannot edit"):
        tapping(Net(), Editor())


def test_an_answer_that_was_not_announced_is_an_error():
    model = Net()
    with tapping(model) as taps:
        taps.tap("head", lambda event: event.output * 2)
        with pytest.raises(TapError, match=r"returned a Tensor for <forward of head.*declare edits=True"):
            model(X)


def test_taps_cannot_be_wrapped_nor_their_options_used_elsewhere():
    class Wrapping:
        @hookimpl(wrapper=True)
        def on_module_forward(self):
            return (yield)

    class Elsewhere:
        @hookimpl(modules="a")
        def on_train_start(self): ...

    with pytest.raises(hookbus.bus.RegistrationError, match="cannot be wrapped"):
        tapping(Net(), Wrapping())
    with pytest.raises(hookbus.bus.RegistrationError, match="modules= has a meaning for hooks inside the network only"):
        tapping(Net(), Elsewhere())


def test_taps_of_the_network_itself_on_a_schedule():
    model, heard = Net(), []
    with tapping(model) as taps:
        kinds = ["forward_pre", "forward", "grad_output"]
        taps.tap("", lambda event: heard.append((event.kind, event.step, event.call_index)), every=2, kinds=kinds)
        for _ in range(4):
            model(X).sum().backward()
    assert heard == [(kind, step, 0) for step in (1, 3) for kind in kinds]


@pytest.mark.parametrize("kinds", ["grad_input", "grad_output"])
def test_an_input_that_is_given_again_and_again_keeps_no_hooks(kinds):
    """As where an image is what is optimised: it is a leaf, which outlives the graphs."""
    model, heard = nn.Sequential(nn.Identity(), nn.Linear(4, 2)), []
    x = X.clone().requires_grad_()
    with tapping(model) as taps:
        taps.tap("0", lambda event: heard.append(event.step), kinds=kinds)
        for _ in range(3):
            model(x).sum().backward()
        assert len(x._backward_hooks) == 1
    assert heard == [0, 1, 2]
    assert not x._backward_hooks


def test_lazy_parameters_are_heard_of_once_they_are_there():
    model, heard = nn.Sequential(nn.LazyLinear(2), nn.ReLU()), []
    with tapping(model) as taps:
        taps.tap("0", lambda event: heard.append((event.step, event.name)), kinds="parameter_grad")
        for _ in range(2):
            model(X).sum().backward()
    assert sorted(heard) == [(1, "0.bias"), (1, "0.weight")]
