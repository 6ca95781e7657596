"""A monitor can neither disturb nor end a run."""

import random

import numpy as np
import pytest
import torch

from hookbus.bus import Bus
from hookbus.bus.guard import guarded, refusal, role_of, undisturbed
from hookbus.callback import Callback
from hookbus.dialects import Implementation
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl


def draw():
    return random.random(), float(np.random.rand()), torch.rand(1).item()


class Meddles:
    """Does all that a monitor must not do."""

    def __init__(self, role="monitor"):
        self.role = role

    @hookimpl
    def on_train_batch_end(self):
        draw()
        torch.set_grad_enabled(False)
        return "an answer"

    @hookimpl
    def on_before_batch_transfer(self, batch):
        random.seed(0)
        return ["another batch"]

    @hookimpl
    def on_exception(self):
        random.random()
        raise ValueError("in the middle of drawing")


def bus_with(plugin):
    bus = Bus.load(autoload=False)
    bus.register(plugin, "plugin")
    return bus


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    yield
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("path", ["fire", "hook"])
def test_a_monitor_leaves_draws_grad_mode_and_results_as_they_were(path):
    random.seed(1)
    expected = draw()
    _reseed()
    bus = bus_with(Meddles())
    if path == "fire":
        assert bus.fire.on_train_batch_end(None, None, None, None, 0) == []
    else:
        names = ("trainer", "pl_module", "outputs", "batch", "batch_idx")
        assert bus.hook.on_train_batch_end(**dict.fromkeys(names)) == []
    assert bus.fire.on_before_batch_transfer(None, None, "batch", 0) == "batch"
    with pytest.warns(RuntimeWarning, match="'plugin' failed in on_exception"):
        bus.fire.on_exception(None, None, OSError())
    assert torch.is_grad_enabled()
    assert draw() == expected


def _reseed():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def test_a_mutator_may_do_all_that():
    bus = bus_with(Meddles("mutator"))
    expected = draw()
    _reseed()
    assert bus.fire.on_train_batch_end(None, None, None, None, 0) == ["an answer"]
    assert not torch.is_grad_enabled()
    assert draw() != expected
    assert bus.fire.on_before_batch_transfer(None, None, "batch", 0) == ["another batch"]
    with pytest.raises(ValueError, match="drawing"):
        bus.fire.on_exception(None, None, OSError())


def test_a_callback_can_be_a_monitor():
    class Watch(Callback):
        role = "monitor"

        def on_fit_start(self, trainer, pl_module):
            raise LookupError

    bus = bus_with(Watch())
    with pytest.warns(RuntimeWarning, match="monitor 'plugin' failed in on_fit_start: LookupError"):
        bus.fire.on_fit_start(None, None)
    assert bus.registration("plugin").role == "monitor"


def test_a_failing_predicate_of_a_monitor_is_the_monitors_error():
    class Watch:
        role = "monitor"

        @hookimpl(when=lambda batch_idx: 1 / batch_idx)
        def on_train_batch_end(self):
            raise AssertionError("not reached")

    bus = bus_with(Watch())
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        bus.fire.on_train_batch_end(None, None, None, None, 0)


def test_a_monitor_that_listens_to_errors_and_fails_itself_ends_nothing():
    class Watch:
        role = "monitor"

        @hookimpl
        def on_fit_start(self):
            raise ValueError("first")

        @hookimpl
        def on_plugin_error(self):
            raise ValueError("second")

    bus = bus_with(Watch())
    with pytest.warns(RuntimeWarning) as caught:
        bus.fire.on_fit_start(None, None)
    assert [str(w.message).partition(" failed in ")[2].partition(":")[0] for w in caught] == [
        "on_fit_start",
        "on_plugin_error",
    ]


def test_keyboard_interrupt_in_a_monitor_is_the_users():
    class Watch:
        role = "monitor"

        @hookimpl
        def on_fit_start(self):
            random.random()
            raise KeyboardInterrupt

    expected = draw()
    _reseed()
    with pytest.raises(KeyboardInterrupt):
        bus_with(Watch()).fire.on_fit_start(None, None)
    assert draw() == expected


def test_undisturbed_puts_back_whatever_happens():
    expected = draw()
    _reseed()
    with pytest.raises(ValueError), undisturbed():  # noqa: PT012
        draw()
        raise ValueError
    assert draw() == expected


def test_errors_are_reported_with_hook_and_exception():
    reports = []

    def fails(batch):
        raise OSError(batch)

    made = guarded(Implementation("x", fails, ("batch",)), lambda hook, error: reports.append((hook, str(error))))
    assert made.function("b") is None
    assert reports == [("x", "b")]
    assert made.location == f"{__file__}:{fails.__code__.co_firstlineno}"


@pytest.mark.parametrize("kind", ["wrapper", "hookwrapper"])
def test_wrappers_are_refused(kind):
    def wraps():
        yield

    hookimpl(**{kind: True})(wraps)
    assert "a monitor cannot wrap 'x'" in refusal(Implementation("x", wraps, (), options=wraps.hookbus_impl))
    assert refusal(Implementation("x", wraps, ())) is None


@pytest.mark.parametrize(
    ("given", "role"), [("monitor", "monitor"), ("mutator", "mutator"), (None, "unspecified"), (7, "unspecified")]
)
def test_roles(given, role):
    assert role_of(type("P", (), {"role": given})()) == role
    assert role_of(object()) == "unspecified"


def test_another_word_is_no_role():
    with pytest.raises(ValueError, match="role must be 'monitor' or 'mutator', got 'watcher'"):
        role_of(type("P", (), {"role": "watcher"})())


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_start"])
def test_a_misconfiguration_is_raised_before_the_first_batch(hook):
    class Needs(Callback):
        role = "monitor"

    def refuse(*args):
        raise MisconfigurationException("this needs a logger")

    callback = Needs()
    setattr(callback, hook, refuse)
    bus = Bus.load(())
    bus.register(callback)
    with pytest.raises(MisconfigurationException, match="needs a logger"):
        getattr(bus.fire, hook)(*[None] * len(getattr(bus.hook, hook).shape.parameters))


def test_a_misconfiguration_later_on_does_not_end_the_run():
    class Late(Callback):
        role = "monitor"

        def on_train_epoch_start(self, trainer, pl_module):
            raise MisconfigurationException("too late to say so")

    bus = Bus.load(())
    bus.register(Late())
    with pytest.warns(RuntimeWarning, match="too late to say so; the run goes on"):
        bus.fire.on_train_epoch_start(None, None)
