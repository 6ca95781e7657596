"""Where the loop may do itself, in a line, what a hook's default would do through several calls.

``optimizer_step``, ``backward``, ``optimizer_zero_grad`` and ``transfer_batch_to_device`` have a default in the base class
of modules, which for most modules is all there is. Then the way through the hook changes nothing and costs, together
with the calls around it, more than the rest of the loop. This is the one place that decides whether that is so; it
looks again whenever a hook's implementations change. (A plugin that comes while a step runs has a say in these from the
next step on.) ``tests/trainer/test_shortcuts.py`` compares the two ways.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hookbus.module import LightningModule

if TYPE_CHECKING:
    from hookbus.bus import Bus
    from hookbus.bus.hook import Hook

_DEFAULTS = (
    "transfer_batch_to_device",
    "optimizer_step",
    "backward",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
)
#: As they are defined; somebody may put others in their places later.
_OWN = {name: getattr(LightningModule, name) for name in (*_DEFAULTS, "clip_gradients")}
_SILENT = ("on_before_batch_transfer", "on_after_batch_transfer", "on_train_batch_end")


class Shortcuts:
    """What is nobody's but the default's, on one bus, during one run.

    Args:
        bus: whose hooks are looked at. Until :meth:`begin` there are no shortcuts.

    Attributes:
        transfer: a batch is moved to the device and otherwise left alone.
        step: gradients are cleared by the optimiser's own ``zero_grad``, the loss is differentiated by its own
            ``backward``, and the optimiser is told to step.
        clip: gradients are clipped by the bound that the trainer was given, if any.
        no_outputs: nobody listens to the end of a training batch, so what the step returned interests nobody.
    """

    __slots__ = (
        "_bus",
        "_default",
        "_silent",
        "_watching",
        "clip",
        "no_outputs",
        "step",
        "transfer",
    )

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._watching: list[tuple[Hook, Callable[[], None]]] = []
        self.end()

    def begin(self) -> None:
        """Look at the hooks, and go on looking until :meth:`end`."""
        self.end()
        for name in (*_DEFAULTS, *_SILENT):
            hook, tell = getattr(self._bus.hook, name), partial(self._look, name)
            hook.watchers.append(tell)
            self._watching.append((hook, tell))
            tell()

    def end(self) -> None:
        """Take the plain way from now on."""
        for hook, tell in self._watching:
            hook.watchers.remove(tell)
        self._watching.clear()
        self._default = dict.fromkeys(_DEFAULTS, False)
        self._silent = dict.fromkeys(_SILENT, False)
        self._conclude()

    def _look(self, name: str) -> None:
        hook: Hook = getattr(self._bus.hook, name)
        if name in self._silent:
            self._silent[name] = len(hook) == 0 and not self._bus.monitored
        else:
            self._default[name] = _is_default(hook.sole_function(), name)
        self._conclude()

    def _conclude(self) -> None:
        default, silent = self._default, self._silent
        around_transfer = silent["on_before_batch_transfer"] and silent["on_after_batch_transfer"]
        self.transfer = default["transfer_batch_to_device"] and around_transfer
        self.step = default["optimizer_step"] and default["backward"] and default["optimizer_zero_grad"]
        self.clip = default["configure_gradient_clipping"]
        self.no_outputs = silent["on_train_batch_end"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Shortcuts, (self._bus,)  # a copy of a trainer looks for itself


def _is_default(function: Callable[..., Any] | None, name: str) -> bool:
    """Whether ``function`` is hookbus's own method of a module, and what it calls in turn is not overridden either."""
    if getattr(function, "__func__", None) is not _OWN[name]:
        return False
    if name != "configure_gradient_clipping":
        return True
    clips = getattr(function, "__self__").clip_gradients  # noqa: B009 - mypy knows no __self__ of a callable
    return getattr(clips, "__func__", None) is _OWN["clip_gradients"]
