"""Lightning's callbacks, as they are written in the wild."""

import abc
import functools
import warnings
from dataclasses import dataclass
from unittest.mock import MagicMock

import pytest
import torch

from hookbus.bus import Bus, RegistrationError
from hookbus.callback import CALLBACK_HOOKS, Callback
from hookbus.dialects import callback as dialect
from hookbus.markers import hookimpl


@pytest.fixture
def bus():
    return Bus.load(autoload=False)


def fire_batch_end(bus):
    return bus.fire.on_train_batch_end("trainer", "module", "outputs", "batch", 7)


def test_overridden_methods_are_called_by_position_whatever_their_parameters_are_called(bus):
    class Renamed(Callback):
        def on_train_batch_end(self, t, m, o, b, i):
            self.got = (t, m, o, b, i)

    callback = Renamed()
    bus.register(callback)
    fire_batch_end(bus)
    assert callback.got == ("trainer", "module", "outputs", "batch", 7)


def test_star_args(bus):
    class Star(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            self.got = args

    callback = Star()
    bus.register(callback)
    fire_batch_end(bus)
    assert callback.got == ("outputs", "batch", 7)


def test_fewer_parameters(bus):
    class Fewer(Callback):
        def on_train_batch_end(self, trainer, batch_idx):
            self.got = (trainer, batch_idx)

        def on_train_start(self):
            self.started = True

    callback = Fewer()
    bus.register(callback)
    fire_batch_end(bus)
    bus.fire.on_train_start("trainer", "module")
    assert callback.got == ("trainer", 7)
    assert callback.started


def test_answers_do_not_count(bus):
    class Answers(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            return -1

    bus.register(Answers())
    assert bus.fire.on_train_batch_start(None, None, None, 0) == []
    assert bus.hook.on_train_batch_start(trainer=None, pl_module=None, batch=None, batch_idx=0) == []


def test_a_marked_method_gets_arguments_by_name_and_its_answer_counts(bus):
    class Marked(Callback):
        @hookimpl
        def on_train_batch_start(self, batch_idx):
            return -1

        @hookimpl(wrapper=True)
        def backward(self, loss):
            return (loss, (yield))

    bus.register(Marked())
    assert bus.fire.on_train_batch_start(None, None, None, 0) == [-1]
    assert bus.fire.backward(None, None, "loss") == ("loss", None)


def test_a_method_that_cannot_be_called_is_named_with_its_class(bus):
    class Unrunnable(Callback):
        def on_fit_start(self, trainer, pl_module, mood):
            pass

        def on_train_end(self, *, trainer):
            pass

    with pytest.raises(RegistrationError) as caught:
        bus.register(Unrunnable(), "bad")
    text = str(caught.value)
    assert text.startswith("plugin 'bad': Unrunnable.on_fit_start takes (trainer, pl_module, mood), but the hook has")
    assert "Unrunnable.on_train_end takes the keyword-only argument(s) trainer" in text
    assert bus.names() == []


def test_a_mock_of_a_callback_hears_every_hook(bus):
    mock = MagicMock(spec=Callback)
    bus.register(mock)
    assert {made.hook for made in bus.implementations("MagicMock")} == set(CALLBACK_HOOKS)
    bus.fire.on_fit_start("trainer", "module")
    fire_batch_end(bus)
    mock.on_fit_start.assert_called_once_with("trainer", "module")
    mock.on_train_batch_end.assert_called_once_with("trainer", "module", "outputs", "batch", 7)
    bus.sync("callback", [mock])
    bus.unregister(mock)


@pytest.mark.parametrize("order", ["module first", "callback first"])
def test_a_callback_that_is_a_module_of_torch(bus, order):
    bases = (torch.nn.Module, Callback) if order == "module first" else (Callback, torch.nn.Module)

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.metric = torch.nn.Linear(1, 1)

    def on_validation_end(self, trainer, pl_module):
        self.seen = pl_module

    callback = type("Evaluator", bases, {"__init__": __init__, "on_validation_end": on_validation_end})()
    bus.register(callback)
    bus.fire.on_validation_end("trainer", "module")
    assert callback.seen == "module"
    assert [made.hook for made in bus.implementations("Evaluator")] == ["on_validation_end"]


def test_a_callback_whose_metaclass_is_abcmeta(bus):
    class Base(Callback, metaclass=abc.ABCMeta):
        @abc.abstractmethod
        def on_fit_start(self, trainer, pl_module): ...

    class Concrete(Base):
        def on_fit_start(self, trainer, pl_module):
            self.called = True

    callback = Concrete()
    bus.register(callback)
    bus.fire.on_fit_start(None, None)
    assert callback.called


def test_a_callback_that_never_called_its_bases_init(bus):
    class NoSuper(Callback):
        def __init__(self, values):
            self.values = values

        def on_fit_start(self, trainer, pl_module):
            self.values.append(1)

    bus.sync("callback", [callback := NoSuper([])])
    bus.fire.on_fit_start(None, None)
    assert callback.values == [1]


def test_a_dataclass_of_which_two_are_equal_and_none_can_be_hashed(bus):
    @dataclass
    class Data(Callback):
        calls: int = 0

        def on_fit_start(self, trainer, pl_module):
            self.calls += 1

    callbacks = [Data(), Data()]
    bus.sync("callback", callbacks)
    bus.fire.on_fit_start(None, None)
    callbacks[1].on_fit_start = functools.partial(lambda a, trainer, pl_module: None, 1)
    bus.sync("callback", callbacks)
    bus.fire.on_fit_start(None, None)
    assert [callback.calls for callback in callbacks] == [2, 1]


def test_several_callbacks_in_one_class(bus):
    class A(Callback):
        def on_fit_start(self, trainer, pl_module):
            self.a = True

    class B(Callback):
        def on_fit_end(self, trainer, pl_module):
            self.b = True

    both = type("Both", (A, B), {})()
    bus.register(both)
    bus.fire.on_fit_start(None, None)
    bus.fire.on_fit_end(None, None)
    assert (both.a, both.b) == (True, True)


def test_a_callback_of_the_real_lightning_is_known_by_its_base(bus):
    class Base:
        def on_fit_start(self, trainer, pl_module):
            raise AssertionError

    Base.on_fit_start.__qualname__ = "Callback.on_fit_start"
    Base.__name__, Base.__module__ = "Callback", "lightning.pytorch.callbacks.callback"

    class Foreign(Base):
        def on_fit_end(self, trainer, pl_module):
            self.ended = True

    callback = Foreign()
    bus.register(callback)
    bus.fire.on_fit_start(None, None)
    bus.fire.on_fit_end(None, None)
    assert callback.ended


def test_misspelt_methods_are_warned_of_with_the_right_name(bus):
    class Misspelt(Callback):
        def on_train_epoch_ends(self, trainer, pl_module):
            pass

        def on_checkpoint_saved(self, path):
            pass

        def on_my_own_helper_thing(self):
            pass

        on_a_constant = 3

        @property
        def on_a_property(self):
            raise AssertionError("properties are not looked at")

    with pytest.warns(dialect.HookNameWarning) as caught:
        bus.register(Misspelt())
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 3
    assert "Misspelt.on_checkpoint_saved is not a callback hook" in texts[0]
    assert "mark it with @hookbus.hookimpl" in texts[0]
    assert texts[1].endswith("rename it if it is a helper")
    assert texts[2].endswith("did you mean 'on_train_epoch_end'?")


def test_well_spelt_and_marked_methods_are_not_warned_of(bus):
    class Fine(Callback):
        def on_fit_start(self, trainer, pl_module):
            pass

        @hookimpl
        def on_checkpoint_saved(self, path):
            self.path = path

        @hookimpl(specname="on_fit_end")
        def on_the_end(self):
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bus.register(callback := Fine())
    bus.fire.on_checkpoint_saved(None, None, "a.ckpt", {})
    assert callback.path == "a.ckpt"


def test_a_snapshot_differs_with_the_methods_only():
    class Quiet(Callback):
        def on_fit_end(self, trainer, pl_module):
            pass

    callback = Quiet()
    before = dialect.MethodSnapshot(callback)
    callback.attribute = 1
    assert not before.differs(callback)
    callback.on_fit_end = lambda trainer, pl_module: None
    assert before.differs(callback)
    assert not dialect.MethodSnapshot(callback).differs(callback)
    del callback.on_fit_end
    assert not before.differs(callback)
    Quiet.on_fit_end = lambda self, trainer, pl_module: None
    assert before.differs(callback)


def test_a_snapshot_of_methods_that_are_looked_up_differs_with_what_is_found():
    class Lookup(Callback):
        found = None

        @property
        def on_fit_end(self):
            return self.found

    callback = Lookup()
    before = dialect.MethodSnapshot(callback)
    assert not before.differs(callback)
    callback.found = lambda trainer, pl_module: None
    assert before.differs(callback)


def test_hooks_that_the_bus_lacks_are_left_out():
    class Both(Callback):
        def on_fit_start(self, trainer, pl_module):
            pass

        def on_fit_end(self, trainer, pl_module):
            pass

    found = dialect.implementations(Both(), {"on_fit_end": ("trainer", "pl_module")})
    assert [(made.hook, made.args, made.silent) for made in found] == [("on_fit_end", ("trainer", "pl_module"), True)]
