"""Compiled networks: few frames, no recompilation by the state that plugins keep, late taps noticed."""

import warnings

import pytest
import torch
from tests.taps.networks import Net, Training, hooks_on, loader, trainer
from torch import nn

import hookbus
from hookbus import tapping
from hookbus.taps import TapWarning

X = torch.linspace(-1, 1, 8).view(2, 4)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def frames():
    return torch._dynamo.utils.counters["frames"]["total"]


def compiled():
    return torch.compile(Net(), backend="eager")


def test_taps_before_the_first_call_fire_at_every_call_and_compile_twice_at_most():
    """Once for what comes before the tap and once for what follows, however often it is called and whatever is kept."""
    model, heard = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), []
    fast = torch.compile(model, backend="eager")
    with tapping(fast) as taps:
        taps.tap("0", lambda event: heard.append((event.name, len(heard))))
        fast(X)
        first = frames()
        assert first <= 2
        for _ in range(11):
            fast(X)
        assert frames() == first
        assert len(heard) == 12
        assert heard[0][0] == "0"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert hooks_on(model) == 0


class Three(nn.Module):
    """Three layers in a row, and no loop, which the compiler does not take up again in its midst."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)

    def forward(self, x):
        return self.c(self.b(self.a(x)))


@pytest.mark.parametrize(
    ("made", "which", "most"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), "0", 2),
        (Three, "c", 2),  # what comes before, and the layer
        (Three, "b", 3),  # and what follows
        (Net, "head", 2),
    ],
)
@pytest.mark.parametrize("kinds", ["forward", ["forward_pre", "forward", "forward_error", "grad_output"]])
def test_no_frame_is_compiled_but_the_network_s_own(made, which, most, kinds):
    model = torch.compile(made(), backend="eager")
    with tapping(model) as taps:
        taps.tap(which, lambda event: None, kinds=kinds)
        for _ in range(5):
            model(X)
    assert 0 < frames() <= most


class Moody(nn.Module):
    def forward(self, x):
        if len(x) == 3:
            raise ValueError("three")
        return x + 1


@pytest.mark.parametrize("way", ["before", "after", "in place"])
def test_errors_are_told(way):
    model, heard = nn.Sequential(nn.Linear(4, 4), Moody()), []
    fast = torch.compile(model, backend="eager") if way == "before" else model
    if way == "in place":
        model.compile(backend="eager")
    with tapping(fast) as taps:
        taps.tap("1", lambda e: heard.append((e.kind, str(e.exception))), kinds=["forward", "forward_error"])
        fast = torch.compile(model, backend="eager") if way == "after" else fast
        for size in (2, 3, 2):
            try:
                fast(torch.ones(size, 4))
            except ValueError:
                heard.append("raised")
    assert heard == [("forward", "None"), ("forward_error", "three"), "raised", ("forward", "None")]
    assert hooks_on(model) == 0


def test_names_and_gradients_are_those_of_the_plain_network():
    model, heard = compiled(), []
    with tapping(model) as taps:
        taps.tap(
            "blocks.*.act", lambda e: heard.append((e.kind, e.name, e.call_index)), kinds=["forward", "grad_output"]
        )
        model(X).sum().backward()
    assert heard == [
        *(("forward", "blocks.0.act", 0), ("forward", "blocks.1.act", 0)),
        *(("grad_output", "blocks.1.act", 0), ("grad_output", "blocks.0.act", 0)),
    ]


def test_compiling_after_tapping():
    model, heard = Net(), []
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(event.name))
        fast = torch.compile(model, backend="eager")
        for _ in range(3):
            fast(X)
    assert heard == ["head"] * 3


def in_place():
    model = Net()
    model.compile(backend="eager")
    return model


KINDS = pytest.mark.parametrize("made", [compiled, in_place])


@KINDS
def test_taps_after_the_first_call_are_noticed_and_work_from_then_on(made):
    model, heard = made(), []
    model(X)
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(event.step), phases=["train", "val", "sanity", "test", "predict"])
        model(X)
        assert heard == [0]  # a schedule, so run without compilation
    heard.clear()
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(event.step))
        with pytest.warns(TapWarning, match="compiled and called before"):
            model(X)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(X)
            model(X)
        assert "compiled and called before" in str(taps.report())
    assert heard == [1, 2]
    assert hooks_on(model) == 0


@KINDS
def test_scheduled_steps_run_without_compilation_and_the_others_with_it(made):
    model, heard = made(), []
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(event.step), every=3)
        for _ in range(7):
            model(X)
        before = frames()
        model(X)
        assert frames() == before
    assert heard == [2, 5]


def test_disarming_is_noticed():
    model, heard = compiled(), []
    with tapping(model) as taps:
        with taps.tap("head", lambda event: heard.append(1)):
            model(X)
        model(X)
    model(X)
    assert heard == [1]


@pytest.mark.parametrize("first", ["compiled", "tapped"])
def test_compile_in_place(first):
    model, heard = Net(), []
    if first == "compiled":
        model.compile(backend="eager")
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(event.step))
        taps.tap("stem", lambda event: heard.append("stem"), every=3)
        if first == "tapped":
            model.compile(backend="eager")
        own = model._compiled_call_impl
        for _ in range(3):
            model(X)
        with pytest.raises(TypeError):
            model()
    assert heard == [0, 1, "stem", 2]
    assert hooks_on(model) == 0
    if first == "tapped":
        assert model._compiled_call_impl is own
    model(X)


@pytest.mark.parametrize("options", [{}, {"every": 2}], ids=["always", "scheduled"])
@pytest.mark.parametrize("what", ["part", "module"])
def test_a_compiled_module_is_trained(what, options):
    model, heard = Training(), []
    if what == "part":
        model.net = torch.compile(model.net, backend="eager")
    run = trainer(max_epochs=2)
    run.taps.tap("net.head", lambda event: heard.append(event.step), phases=None, **options)
    run.fit(torch.compile(model, backend="eager") if what == "module" else model, loader(4))
    assert heard == (list(range(8)) if not options else [1, 3, 5, 7])
    assert hooks_on(model) == 0


def test_eager_networks_never_import_the_compiler():
    import subprocess
    import sys

    code = (
        "import sys, torch, hookbus\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 2))\n"
        "with hookbus.tapping(model) as taps:\n"
        "    taps.capture('0', grads=True)\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_bus_does_not_import_torch_for_taps():
    assert hookbus.taps.Taps
