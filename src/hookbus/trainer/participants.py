"""Who takes part in a run besides the discovered plugins: the module, its data, and the callbacks in the list.

The bus learns here of the module's methods and of every change of ``trainer.callbacks``; the loops ask at the
boundaries of stages, epochs and batches.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from hookbus.bus import Bus
from hookbus.dialects import Implementation
from hookbus.dialects import module as module_dialect
from hookbus.dialects import native as native_dialect
from hookbus.dialects.callback import is_callback
from hookbus.dialects.misspelt import warn_of_misspelt_methods
from hookbus.errors import MisconfigurationException
from hookbus.trainer import roster
from hookbus.trainer.compiled import from_compiled, is_compiled
from hookbus.trainer.data import PassedLoaders
from hookbus.trainer.module_checks import check_steps, warn_of_claims, warn_of_half_a_validation
from hookbus.trainer.states import TrainerFn

if TYPE_CHECKING:
    from hookbus.bus.hook import Hook
    from hookbus.trainer.trainer import Trainer


#: So many batches at the beginning of a loop, and then every so-manieth, are preceded by a look at all attributes.
FIRST: Final = 16


def next_look(batch_idx: int) -> int:
    """Before which batch to :meth:`Participants.follow` next, whether or not anything shows that is cheaper to look at.

    To look at the attributes of ten callbacks takes as long as a callback's method.
    """
    return batch_idx + 1 if batch_idx < FIRST else (batch_idx // FIRST + 1) * FIRST


class Participants:
    """Keeps the bus in step with the module and with the live list of callbacks.

    Args:
        trainer: whose bus, module, data module and callbacks.

    Attributes:
        known: the list of callbacks as it was at the last look, the same object.
        length: its length then.
        space: the attributes of the module.
        size: their number then; -1 if there is a method among any object's attributes, so that it never equals. These four
            are cheap enough to compare before each batch.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._seen: list[Any] = []
        self._read: list[Any] = []
        self._read_data: list[Any] = []
        self.known: list[Any] = []
        self.length = -1
        self.space: dict[str, Any] = {}
        self.size = 0
        self._spaces: list[dict[str, Any]] = []
        self._total = 0
        self._assigned: list[tuple[dict[str, Any], str, Any]] = []

    def attach(self, fn: TrainerFn, model: Any, datamodule: Any, loaders: dict[str, Any]) -> None:
        """Register module, data module and passed loaders for one entry point, in place of those of the last one.

        Args:
            fn: the entry point.
            model: the module.
            datamodule: gives the loaders; None if there is none.
            loaders: passed loaders, by the prefix of their hook.

        Raises:
            MisconfigurationException: the module lacks the step, or for fit the optimiser; or a step takes
                ``dataloader_iter``.
        """
        bus = self._trainer.bus
        for name in ("module", "datamodule", "dataloaders"):
            if bus.has_plugin(name):
                bus.unregister(name=name)
        warn_of_misspelt_methods(model, tuple(vars(bus.hook)))
        check_steps(model, fn, bus)
        bus.register(model, "module", owner="module", source="model", implementations=self._hooks_of_module(False))
        self._read = self._methods_of_module(False)
        if datamodule is not None:
            bus.register(datamodule, "datamodule", owner="datamodule", source="datamodule")
            self._read_data = _methods_of(datamodule, module_dialect.DATA_HOOKS)
        passed = PassedLoaders(loaders)
        made = passed.implementations()
        if made:
            bus.register(passed, "dataloaders", owner="datamodule", source="arguments", implementations=made)
        if fn is TrainerFn.FITTING:
            warn_of_half_a_validation(bus, model, self._trainer.settings.limit_val_batches)
        if datamodule is not None:
            warn_of_claims(model, datamodule)

    def read_module(self, *, several_loaders: bool = False) -> None:
        """Read the module's methods again, if one was assigned since, or steps are now to get ``dataloader_idx``."""
        methods = self._methods_of_module(several_loaders)
        if _differ(methods, self._read) or self._read_datamodule():
            self._trainer.bus.refresh(self._trainer.lightning_module, self._hooks_of_module(several_loaders))
            self._read = methods

    def _read_datamodule(self) -> bool:
        """Read the data module's methods again, if one was assigned since; whether that was so."""
        datamodule = self._trainer.datamodule
        if datamodule is None:
            return False
        methods = _methods_of(datamodule, module_dialect.DATA_HOOKS)
        if not _differ(methods, self._read_data):
            return False
        self._trainer.bus.refresh(datamodule)
        self._read_data = methods
        return True

    @property
    def moved(self) -> bool:
        """Whether the list or the module have changed at a glance; the training loop has this written out."""
        callbacks = self._trainer.callbacks
        return callbacks is not self.known or len(callbacks) != self.length or len(self.space) != self.size

    def follow(self) -> None:
        """:meth:`sync`, if anything has changed since that shows at a glance: the list, or a method assigned on an object.

        An attribute that is there for the first time shows, too; methods of classes do not.
        """
        callbacks = self._trainer.callbacks
        if (
            callbacks is not self.known
            or len(callbacks) != self.length
            or sum(map(len, self._spaces)) != self._total
            or (self._assigned and any(space.get(name) is not value for space, name, value in self._assigned))
        ):
            self.sync()

    def sync(self, *, just_attached: bool = False) -> bool:
        """Let the bus follow the list, and methods that were assigned since.

        Args:
            just_attached: the module's methods have been read this very moment.

        Returns:
            Whether the list has changed since the last time.
        """
        trainer, callbacks = self._trainer, self._trainer.callbacks
        changed = len(self._seen) != len(callbacks) or any(map(operator.is_not, self._seen, callbacks))
        if changed:
            roster.given(callbacks)  # refuses what is no callback
        if changed or just_attached:
            roster.number_twins(callbacks)
        trainer.bus.sync("callback", callbacks, source="callbacks=[…]")
        self._seen = list(callbacks)
        if trainer.lightning_module is not None and trainer.bus.has_plugin("module"):
            if not just_attached:
                self.read_module(several_loaders=trainer._several_loaders)
            if changed or just_attached:
                _lend_logging(callbacks, trainer.lightning_module)
        self._glance()
        return changed

    def _glance(self) -> None:
        """Note what :meth:`follow` looks at."""
        trainer, callbacks = self._trainer, self._trainer.callbacks
        self.known, self.length = callbacks, len(callbacks)
        objects = (*callbacks, trainer.lightning_module, trainer.datamodule)
        self._spaces = spaces = [vars(o) for o in objects if o is not None and hasattr(o, "__dict__")]
        self._total = sum(map(len, spaces))
        hooks = vars(trainer.bus.hook)
        self._assigned = [
            (s, name, s[name]) for s in spaces if not hooks.keys().isdisjoint(s) for name in hooks if name in s
        ]
        self.space = {} if trainer.lightning_module is None else vars(trainer.lightning_module)
        self.size = -1 if self._assigned else len(self.space)

    def __getstate__(self) -> dict[str, Any]:
        """A copy looks for itself."""
        return {**vars(self), "length": -1, "space": {}, "size": -1, "_spaces": [], "_total": -1, "_assigned": []}

    def only_passed(self, hook: str) -> bool:
        """Whether a hook that asks for loaders is answered by those alone that were passed to the entry point."""
        found: Hook = getattr(self._trainer.bus.hook, hook)
        return [impl.plugin_name for impl in found.get_hookimpls()] == ["dataloaders"]

    def attach_model_callbacks(self) -> None:
        """Ask ``configure_callbacks``, and put what it gives into the list.

        Raises:
            TypeError: it gave something that is no callback.
        """
        trainer = self._trainer
        answers = trainer.bus.fire.configure_callbacks(trainer, trainer.lightning_module)
        if any(answer for answer in answers):
            trainer.callbacks = roster.with_model_callbacks(trainer.callbacks, answers)
        if trainer.bus.implemented("configure_callbacks"):
            self.sync()

    def set_up(self, fn: TrainerFn) -> None:
        """Fire ``setup``; callbacks that appear in the list meanwhile are set up in the same pass, as in Lightning."""
        trainer = self._trainer
        module, before = trainer.lightning_module, list(trainer.callbacks)
        if not trainer.bus.implemented("setup"):
            trainer.bus.fire.setup(trainer, module, fn.value)
            return

        def set_up_latecomers() -> None:
            nonlocal before
            while self.sync():
                added = [c for c in trainer.callbacks if not any(c is b for b in before)]
                before = list(trainer.callbacks)
                for callback in added:
                    callback.setup(trainer, module, stage=fn.value)

        latecomers = Implementation("setup", set_up_latecomers, ())
        place: dict[str, Any] = {"owner": "default", "implementations": [latecomers], "announce": False}
        with trainer.bus.registered(latecomers, "added in setup", **place):  # after the callbacks, before the module
            trainer.bus.fire.setup(trainer, module, fn.value)
        set_up_latecomers()

    def _methods_of_module(self, several_loaders: bool) -> list[Any]:
        """What the module's implementations are made from; much faster to look at than to read."""
        return [several_loaders, *_methods_of(self._trainer.lightning_module, vars(self._trainer.bus.hook))]

    def _hooks_of_module(self, several_loaders: bool) -> list[Implementation]:
        trainer = self._trainer
        module, bus = trainer.lightning_module, trainer.bus
        claimed = () if trainer.datamodule is None else module_dialect.claimed_transfers(trainer.datamodule)
        made = native_dialect.implementations(module, bus.parse_hookimpl_opts, bus.mark)
        return made + module_dialect.implementations(
            module, bus.arguments, without=claimed, several_loaders=several_loaders
        )


def _methods_of(obj: Any, hooks: Iterable[str]) -> list[Any]:
    """What an object may answer hooks with: functions of its class, and whatever it has of its own that can be called."""
    return [*map(getattr, repeat(type(obj)), hooks, repeat(None)), *filter(callable, vars(obj).values())]


def _differ(now: list[Any], then: list[Any]) -> bool:
    return len(now) != len(then) or any(map(operator.is_not, now, then))


def module_of(model: Any, fn: TrainerFn) -> Any:
    """The LightningModule that was passed, out of ``torch.compile``'s wrapper if need be.

    Raises:
        TypeError: it is none.
    """
    if model is None:
        raise TypeError(f"Trainer.{fn.value}() needs a LightningModule, for none was passed to an earlier call")
    module = model
    if is_compiled(model) and module_dialect.is_module(model._orig_mod):
        module = from_compiled(model)
    if not module_dialect.is_module(module):
        raise TypeError(f"model must be a LightningModule, got {type(model).__name__}: {model!r}")
    return module


def data_of(fn: TrainerFn, loaders: dict[str, Any], datamodule: Any) -> tuple[dict[str, Any], Any]:
    """Loaders and data module as meant: a data module may be passed in the place of loaders.

    Raises:
        MisconfigurationException: both were passed.
    """
    passed = {name: value for name, value in loaders.items() if value is not None}
    first = next(iter(passed.values()), None)
    if datamodule is None and first is not None and module_dialect.is_datamodule(first):
        return {}, first
    if passed and datamodule is not None:
        names = ", ".join(f"{name}_dataloaders" for name in passed)
        raise MisconfigurationException(f"{fn.value}() takes dataloaders ({names}) or a datamodule, not both")
    return loaders, datamodule


def adopt_discovered(bus: Bus) -> list[Any]:
    """The discovered callbacks, which from now on stand in the list like any other, under their own names."""
    found = [r for r in map(bus.registration, bus.names()) if is_callback(r.plugin)]
    for registration in found:
        registration.listed = True
    return [registration.plugin for registration in found]


def _lend_logging(callbacks: list[Any], module: Any) -> None:
    """Give callbacks ``self.log`` and ``self.log_dict``, which are the module's, unless they have their own."""
    for callback in callbacks:
        for name in ("log", "log_dict"):
            if not hasattr(type(callback), name):
                setattr(callback, name, getattr(module, name))
