"""``Taps``: puts what a bus's plugins want to hear of on a network, for as long as they want it."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from hookbus.bus import Bus
from hookbus.hookspecs import SPEC_MODULES
from hookbus.markers import PROJECT
from hookbus.taps.capture import Capture
from hookbus.taps.conductor import RootConductor, TrainerConductor
from hookbus.taps.errors import TapWarning
from hookbus.taps.event import Moment, TapEvent
from hookbus.taps.listing import InstalledHook, installed_hooks
from hookbus.taps.plan import Plan
from hookbus.taps.report import TapReport, report, warn_of_silence
from hookbus.taps.selection import Which
from hookbus.taps.site import Clock, Site
from hookbus.taps.subscriber import HOOKS, Subscriber, subscribers
from hookbus.taps.tap import OnError, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

    from hookbus.bus.hook import Hook


#: What the sites have been told when nobody is due.
_NOBODY: Final = ((), ())


class _Held:
    """What is on a network. Taps have it, and whoever cleans up after them; it does not know them."""

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self.root: RootConductor | None = None
        self.watching: list[tuple[list[Callable[[], None]], Callable[[], None]]] = []

    def release(self) -> None:
        for site in self.sites.values():
            site.clear()
        self.sites = {}
        if self.root is not None:
            self.root.install(False)
            self.root = None

    def unwatch(self) -> None:
        for watchers, tell in self.watching:
            with contextlib.suppress(ValueError):
                watchers.remove(tell)
        self.watching = []


class Taps:
    """The taps of one bus on one network.

    A trainer has one as ``trainer.taps``; :func:`tapping` makes one outside of any trainer. While nobody on the bus
    implements a tap nothing is on the network, and what is put on is taken off: when a tap is closed, its plugin is
    unregistered, the run or block ends in whatever way, or this object is forgotten.

    Args:
        bus: whose implementations are served.

    Attributes:
        bus: the same.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._model: nn.Module | None = None
        self._plan: Plan | None = None
        self._known: dict[int, Subscriber] = {}
        self._conductor: TrainerConductor | None = None
        self._clock = Clock()
        self._due: list[Subscriber] = []
        self._state: Literal["idle", "forward", "backward"] = "idle"
        self._told: tuple[Any, ...] | None = None
        self._late = False
        self._notes: list[str] = []
        self._eager: AbstractContextManager[Any] | None = None
        self._held = held = _Held()
        weakref.finalize(self, _clean_up, held).atexit = False
        bus.serve_taps(self)
        tell = _weakly(self._changed)
        for name in HOOKS.values():
            hook: Hook | None = getattr(bus.hook, name, None)
            if hook is None or not hook.is_tap:
                raise ValueError("taps need a bus with hookbus's catalogue of hooks, such as Bus.load() makes")
            hook.watchers.append(tell)
            held.watching.append((hook.watchers, tell))

    # -- subscribing -------------------------------------------------------------------------------------------------

    def tap(
        self,
        modules: Which | Collection[Which] | None,
        handler: Callable[[TapEvent], Any],
        *,
        kinds: str | Collection[str] = "forward",
        on_error: OnError = "raise",
        **selection: Any,
    ) -> Tap:
        """Call ``handler`` for what happens in some modules.

        Args:
            modules: which modules; see :class:`hookbus.taps.Selection`.
            handler: called with the event, without gradients; returns None unless ``edits=True``.
            kinds: of the events: see :class:`hookbus.taps.Tap`.
            on_error: what an exception in ``handler`` does: see :class:`hookbus.taps.Tap`.
            **selection: where else, when, and how: ``types``, ``where``, ``every``, ``at``, ``once``, ``phases``, ``ranks``,
                ``micro``, ``recompute``, ``edits``, ``allow_shape_change``, ``on_missing`` (here ``"error"`` by default).

        Returns:
            The tap, a context manager with ``close()``.

        Raises:
            SelectionError: no module of the network is meant; before a run has begun it is raised when it begins.
            TypeError, ValueError: as of :class:`hookbus.taps.Tap`.
        """
        return Tap(modules, handler, kinds=kinds, on_error=on_error, **selection).opened(self.bus)

    def capture(self, modules: Which | Collection[Which] | None, **options: Any) -> Capture:
        """Keep what some modules give, take, or get as gradients; arguments as of :class:`hookbus.taps.Capture`.

        Raises:
            SelectionError: as :meth:`tap`.
        """
        return Capture(modules, **options).opened(self.bus)

    # -- attaching to a network --------------------------------------------------------------------------------------

    def attach(self, model: nn.Module, *, trainer: bool = False) -> None:
        """Serve this network from now on.

        Args:
            model: the network.
            trainer: whether a trainer's steps are the forward passes; otherwise calls of ``model`` are.

        Raises:
            SelectionError: an implementation selects modules that this network does not have, and insists on them.
        """
        self.detach()
        self._model = model
        self._late = False
        for subscriber in self._known.values():
            subscriber.seen = subscriber.heard = False
        if trainer:
            self._conductor = TrainerConductor(self)
        else:
            self._held.root = RootConductor(self, model)
        try:
            self._changed()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Take everything off the network and forget it."""
        self._compile_again()
        self._state, self._due, self._told = "idle", [], None
        self._clock.number = 0
        self._clock.open.clear()
        self._held.release()
        if self._conductor is not None and self.bus.is_registered(self._conductor):
            self.bus.unregister(self._conductor)
        self._model = self._plan = self._conductor = None

    def close(self) -> None:
        """Detach, and listen to the bus no longer."""
        self.detach()
        self._held.unwatch()

    # -- forward passes ----------------------------------------------------------------------------------------------

    def begin(self, moment: Moment) -> None:
        """A forward pass begins: arm whoever is due."""
        plan = self._plan
        if plan is None or self._model is None:
            return
        self._compile_again()
        due = [s for s in plan.subscribers if s.due(moment)] if plan.scheduled else plan.subscribers
        if due and plan.structure.changed():
            plan = self._replan()
            due = [s for s in plan.subscribers if s.due(moment)]
        for subscriber in due if plan.scheduled else ():
            if subscriber.selection.once:
                subscriber.spent = (moment.phase, moment.number)
        self._clock.begin(moment)
        self._due, self._state = due, "forward"
        if plan.compiled and (self._late or any(s.selection.scheduled for s in due)):
            # A compiled network does not notice hooks that come after its first call.
            self._eager = torch.compiler.set_stance("force_eager")
            self._eager.__enter__()
        if due or self._told != _NOBODY:
            self._tell()

    def end_forward(self, *, careful: bool = False, early: bool = False) -> None:
        """It is over; what remains until :meth:`finish` is what the backward pass needs.

        Args:
            careful: whether torch may be walking over the hooks of the network, which must not be touched then.
            early: whether it was ended before all modules have been called, on purpose.
        """
        self._compile_again()
        self._clock.number = 0
        self._state = "backward"
        plan = self._plan
        if plan is None or (not self._due and self._told == _NOBODY):
            return
        if careful:
            for site in plan.sites.values():
                site.silence()
            self._told = None
            return
        if not early:
            self._notes += warn_of_silence(plan, self._due, late=self._look_for_late_hooks(plan))
        self._tell()

    def finish(self) -> None:
        """The backward pass is over, too."""
        self._state, self._due = "idle", []
        if self._told != _NOBODY:
            self._tell()
        conductor, plan = self._conductor, self._plan
        if conductor is not None and plan is not None and not plan.subscribers and self.bus.is_registered(conductor):
            self.bus.unregister(conductor)

    def abandon(self, error: BaseException) -> None:
        """A forward pass has been left by an exception."""
        for call in reversed(self._clock.open):  # torch tells hooks of Exceptions only
            with contextlib.suppress(Exception):
                call.site.tell_of_failure(call, error)
        self._clock.open.clear()
        self._compile_again()
        self._clock.number = 0
        self.finish()

    def at(
        self,
        *,
        step: int | None = None,
        epoch: int | None = None,
        phase: str | None = None,
        micro_step: int | None = None,
        last_micro: bool | None = None,
    ) -> None:
        """Say what the next forward passes are, in a hand-written loop; what is not said is found out.

        Args:
            step: optimiser steps before this one; by default forward passes are counted.
            epoch: the training epoch.
            phase: one of :data:`hookbus.markers.PHASES`; by default ``train`` or ``val``, as ``model.training`` says.
            micro_step: the place of the batch in its accumulation window.
            last_micro: whether the window ends with it.

        Raises:
            RuntimeError: these taps belong to a trainer, which knows better, or to no network.
        """
        root = self._held.root
        if root is None:
            raise RuntimeError("taps.at(…) is for taps of tapping(model); a trainer says itself where it is")
        given = {"step": step, "epoch": epoch, "phase": phase, "micro_step": micro_step, "last_micro": last_micro}
        root.said.update({key: value for key, value in given.items() if value is not None})

    # -- looking at it -----------------------------------------------------------------------------------------------

    def report(self) -> TapReport:
        """Who taps which modules, how often those were called, and which never."""
        return report(self._plan, self._notes)

    def hooks(self) -> list[InstalledHook]:
        """All hooks that are on the network now, those of others included; empty if there is no network."""
        return [] if self._model is None else installed_hooks(self._model)

    @property
    def sites(self) -> dict[int, Site]:
        """The tapped modules of the network, by identity."""
        return self._held.sites

    def hears_before(self, module: nn.Module) -> bool:
        """Whether there is a pre-hook on this module."""
        site = self._held.sites.get(id(module))
        return site is not None and site.hooked_before

    # -- inside ------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Implementations on the bus have come, gone or moved."""
        if self._model is None:
            return
        if self._plan is None and not any(self.bus.implemented(name) for name in HOOKS.values()):
            return
        plan = self._replan()
        moment = self._clock.moment
        self._due = [] if self._state == "idle" else [s for s in self._due if s.open]
        if self._state == "forward":
            self._due = [s for s in plan.subscribers if s.due(moment)]
        self._tell()

    def _replan(self) -> Plan:
        assert self._model is not None
        plan = Plan(self._model, subscribers(self.bus, self._known), self._clock, self._held.sites)
        for key, site in self._held.sites.items():
            if plan.sites.get(key) is not site:
                site.clear()
        self._held.sites = plan.sites
        self._plan, self._told = plan, None
        if plan.compiled:
            permanent = [s for s in plan.subscribers if not s.selection.scheduled]
            for site in {site for s in permanent for site in plan.chosen[s]}:
                site.pinned = True
            plan.tell(permanent)
        if self._held.root is not None:
            self._held.root.install(bool(plan.subscribers))
        elif self._conductor is not None and plan.subscribers and not self.bus.is_registered(self._conductor):
            if self.bus.has_plugin("taps"):  # of the run of which this trainer is a copy
                self.bus.unregister(name="taps")
            self.bus.register(self._conductor, "taps", owner="default", source="trainer", announce=False)
        return plan

    def _tell(self) -> None:
        """Let the network's sites tell whoever is to be told in this state."""
        plan, root = self._plan, self._held.root is not None
        if plan is None:
            return
        if root and not plan.scheduled and not plan.by_parameter and self._told is not None:
            return  # everybody has been told to begin with
        lasting = [s for s in self._due if s.lasting or s.kind == "parameter_grad"]
        if root:  # calls of parts of the network, outside of any pass, count as well
            permanent = [s for s in plan.subscribers if not s.selection.scheduled]
            first = self._due if self._state == "forward" else permanent
            lasting = [s for s in lasting if s.selection.scheduled]
        else:
            first = self._due if self._state == "forward" else []
        key = (tuple(map(id, first)), tuple(map(id, lasting if self._state == "backward" else ())))
        # Parameters are looked at when a pass begins: during one, FSDP has others in their places.
        look = plan.by_parameter and self._told is None
        if self._state == "forward" and plan.by_parameter and any(s.kind == "parameter_grad" for s in first):
            look |= plan.parameters_changed() or key != self._told
        if key != self._told or look:
            self._told = key
            plan.tell(first, lasting if self._state == "backward" else [], look=look)

    def _compile_again(self) -> None:
        """Let compiled code run again, if it was held off."""
        eager, self._eager = self._eager, None
        if eager is not None:
            eager.__exit__(None, None, None)

    def _look_for_late_hooks(self, plan: Plan) -> bool:
        """Whether nothing fired because the network was compiled and called before there were hooks."""
        if not plan.compiled or self._late:
            return False
        permanent = [s for s in self._due if not s.selection.scheduled and s.kind in ("forward_pre", "forward")]
        sites = [site for s in permanent for site in plan.chosen[s]]
        if not sites or any(site.calls for site in sites):
            return False
        self._late = True
        message = (
            "no tap has fired, probably because the network was compiled and called before there were any: torch.compile "
            "does not notice hooks that come later. From now on steps with taps run without compilation; to avoid that, tap "
            "before the first call, or give the taps a schedule (every=100)"
        )
        warnings.warn(message, TapWarning, stacklevel=2)
        self._notes.append(message)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.abandon(error)
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"bus": self.bus}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["bus"])  # type: ignore[misc]


def tapping(model: nn.Module, *plugins: object) -> Taps:
    """Taps outside of any trainer: in a hand-written loop, a notebook, a test.

    Each call of ``model`` is a forward pass and counts as one step of a schedule; see :meth:`Taps.at`.

    Args:
        model: the network; may be wrapped by DistributedDataParallel, ``torch.compile`` and the like.
        *plugins: plugins with taps, such as the monitors of :mod:`hookbus.taps.monitors`.

    Returns:
        A context manager that takes everything off the network at the end; or call ``close()``.

    Raises:
        SelectionError: a plugin selects modules that the network does not have, and insists on them.

    Example:
        >>> import torch
        >>> from hookbus import tapping
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> with tapping(model) as taps, taps.capture("0") as captured:
        ...     _ = model(torch.ones(3, 4))
        >>> captured["0"].shape
        torch.Size([3, 8])
    """
    bus = Bus(PROJECT, list_order=True, closed=True)
    for specs in SPEC_MODULES:
        bus.add_hookspecs(specs)
    for plugin in plugins:
        bus.register(plugin)
    taps = Taps(bus)
    taps.attach(model)
    return taps


def _clean_up(held: _Held) -> None:
    held.release()
    held.unwatch()


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """The method, for as long as somebody else keeps its object."""
    reference = weakref.WeakMethod(method)

    def tell() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return tell
