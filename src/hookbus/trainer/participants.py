"""Who takes part in a run besides the discovered plugins: the module, its data, and the callbacks in the list.

The bus learns here of the module's methods and of every change of ``trainer.callbacks``; the loops ask at the
boundaries of stages, epochs and batches.
"""

from __future__ import annotations

import operator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from hookbus.bus import Bus
from hookbus.dialects import Implementation
from hookbus.dialects import module as module_dialect
from hookbus.dialects import native as native_dialect
from hookbus.dialects.base import overridden
from hookbus.dialects.callback import is_callback
from hookbus.dialects.misspelt import warn_of_misspelt_methods
from hookbus.dialects.signature import parameters_of
from hookbus.errors import MisconfigurationException
from hookbus.trainer import roster
from hookbus.trainer.compiled import from_compiled, is_compiled
from hookbus.trainer.data import PassedLoaders
from hookbus.trainer.states import TrainerFn

if TYPE_CHECKING:
    from hookbus.bus.hook import Hook
    from hookbus.trainer.trainer import Trainer

_STEPS = {
    TrainerFn.FITTING: "training_step",
    TrainerFn.VALIDATING: "validation_step",
    TrainerFn.TESTING: "test_step",
    TrainerFn.PREDICTING: "predict_step",
}


class Participants:
    """Keeps the bus in step with the module and with the live list of callbacks.

    Args:
        trainer: whose bus, module, data module and callbacks.

    Attributes:
        known: the list of callbacks as it was at the last look, the same object.
        known_length: its length then. Whether a list is another one, or has another length, is cheap to ask for each batch.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._seen: list[Any] = []
        self.known: list[Any] = []
        self.known_length = -1
        self._read: list[Any] = []

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
        _check_steps(model, fn, bus)
        bus.register(model, "module", owner="module", source="model", implementations=self._hooks_of_module(False))
        self._read = self._methods_of_module(False)
        if datamodule is not None:
            bus.register(datamodule, "datamodule", owner="datamodule", source="datamodule")
        passed = PassedLoaders(loaders)
        made = passed.implementations()
        if made:
            bus.register(passed, "dataloaders", owner="datamodule", source="arguments", implementations=made)

    def read_module(self, *, several_loaders: bool = False) -> None:
        """Read the module's methods again, if one was assigned since, or steps are now to get ``dataloader_idx``."""
        methods = self._methods_of_module(several_loaders)
        if len(methods) != len(self._read) or any(map(operator.is_not, methods, self._read)):
            self._trainer.bus.refresh(self._trainer.lightning_module, self._hooks_of_module(several_loaders))
            self._read = methods

    def sync(self, *, just_attached: bool = False) -> bool:
        """Let the bus follow the list, and methods that were assigned since.

        Args:
            just_attached: the module's methods have been read this very moment.

        Returns:
            Whether the list has changed since the last time.
        """
        trainer, callbacks = self._trainer, self._trainer.callbacks
        changed = len(self._seen) != len(callbacks) or any(map(operator.is_not, self._seen, callbacks))
        if changed or just_attached:
            roster.number_twins(callbacks)
        trainer.bus.sync("callback", callbacks, source="callbacks=[…]")
        self._seen, self.known, self.known_length = list(callbacks), callbacks, len(callbacks)
        if trainer.lightning_module is not None and trainer.bus.has_plugin("module"):
            if not just_attached:
                self.read_module(several_loaders=trainer._several_loaders)
            if changed or just_attached:
                _lend_logging(callbacks, trainer.lightning_module)
        return changed

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
                    callback.setup(trainer, module, fn.value)

        latecomers = Implementation("setup", set_up_latecomers, ())
        place: dict[str, Any] = {"owner": "default", "implementations": [latecomers], "announce": False}
        with trainer.bus.registered(latecomers, "added in setup", **place):  # after the callbacks, before the module
            trainer.bus.fire.setup(trainer, module, fn.value)
        set_up_latecomers()

    def _methods_of_module(self, several_loaders: bool) -> list[Any]:
        """What the module's implementations are made from; much faster to look at than to read."""
        module = self._trainer.lightning_module
        inherited = map(getattr, repeat(type(module)), vars(self._trainer.bus.hook), repeat(None))
        return [several_loaders, *inherited, *(value for value in vars(module).values() if callable(value))]

    def _hooks_of_module(self, several_loaders: bool) -> list[Implementation]:
        trainer = self._trainer
        module, bus = trainer.lightning_module, trainer.bus
        claimed = () if trainer.datamodule is None else module_dialect.claimed_transfers(trainer.datamodule)
        made = native_dialect.implementations(module, bus.parse_hookimpl_opts, bus.mark)
        return made + module_dialect.implementations(
            module, bus.arguments, without=claimed, several_loaders=several_loaders
        )


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


def _check_steps(model: Any, fn: TrainerFn, bus: Bus) -> None:
    """The module must have the step of the entry point, and for fit an optimiser, unless a plugin brings them.

    Raises:
        MisconfigurationException: there is none, or it wants the loader's iterator.
    """
    step, name = _STEPS[fn], type(model).__name__

    def missing(hook: str) -> bool:
        return overridden(model, hook) is None and not bus.order(hook)

    if step != "predict_step" and missing(step):
        raise MisconfigurationException(
            f"Trainer.{fn.value}() calls {step}(), which {name} does not define; define it in the module "
            f"(def {step}(self, batch, batch_idx)), or let a plugin implement it"
        )
    for hook in (step, "validation_step") if fn is TrainerFn.FITTING else (step,):
        method = overridden(model, hook)
        if method is not None and any(p.name == "dataloader_iter" for p in parameters_of(method) or ()):
            raise MisconfigurationException(
                f"{name}.{hook}() takes dataloader_iter, the iterator of the loader, which hookbus does not pass: each step "
                f"gets one batch; define it as {hook}(self, batch, batch_idx)"
            )
    if fn is TrainerFn.FITTING and missing("configure_optimizers"):
        raise MisconfigurationException(
            f"Trainer.fit() needs an optimizer: {name} does not define configure_optimizers(); return one there, such as "
            "torch.optim.AdamW(self.parameters())"
        )
