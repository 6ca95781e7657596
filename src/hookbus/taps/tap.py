"""``Tap``: a function that hears of a part of the network, as a plugin that anybody can register and close."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

from hookbus.hookspecs import nearest
from hookbus.markers import hookimpl
from hookbus.taps.errors import TapWarning
from hookbus.taps.event import TapEvent
from hookbus.taps.selection import Selection, Which, schedule
from hookbus.taps.subscriber import HOOKS, Direct

if TYPE_CHECKING:
    from typing_extensions import Self

    from hookbus.bus import Bus

OnError = Literal["raise", "warn", "disable"]


class Tap:
    """A plugin that calls one function for events of the kinds and modules that it selects.

    Made by :meth:`hookbus.taps.Taps.tap`, which registers it; or by hand, for ``Trainer(plugins=[Tap(…)])``. It is a
    context manager: what it needs on the network is gone when the block ends.

    Args:
        modules: which modules; see :class:`hookbus.taps.Selection`.
        handler: called with the event.
        kinds: of the events: some of ``forward_pre``, ``forward``, ``forward_error``, ``grad_output``, ``grad_input`` and
            ``parameter_grad``.
        on_error: what an exception in ``handler`` does: ``raise`` it, ``warn`` each time, or ``disable`` the tap with a
            warning.
        on_missing: as in :class:`hookbus.taps.Selection`.
        **others: the other attributes of :class:`hookbus.taps.Selection`; one value may stand for several.

    Attributes:
        tap_selection: what is selected.
        kinds: of the events.

    Raises:
        TypeError: an argument that there is not, with the nearest name; a handler that cannot be called; an argument of
            another type.
        ValueError: a kind that there is not, or an editing tap whose errors are not to be raised.
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None,
        handler: Callable[[TapEvent], Any],
        *,
        kinds: str | Collection[str] = "forward",
        on_error: OnError = "raise",
        on_missing: Literal["error", "warn", "ignore"] = "error",
        **others: Any,
    ) -> None:
        self._refuse_unknown(others)
        if not callable(handler):
            raise TypeError(f"handler must be a function of one event, got {handler!r}")
        self.tap_selection: Selection = schedule(modules=modules, on_missing=on_missing, **others)
        self.kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        unknown = [kind for kind in self.kinds if kind not in HOOKS]
        if unknown or not self.kinds:
            raise ValueError(f"kinds must be some of {', '.join(HOOKS)}; got {', '.join(unknown) or 'none'}")
        if on_error not in ("raise", "warn", "disable"):
            raise ValueError(f"on_error must be 'raise', 'warn' or 'disable', got {on_error!r}")
        if self.tap_selection.edits and on_error != "raise":
            raise ValueError("a tap with edits=True must raise its errors: the network would go on with half an edit")
        self.__name__ = getattr(handler, "__name__", type(handler).__name__)
        self._handler = handler
        self._on_error = on_error
        self._disabled = False
        self._bus: Bus | None = None
        delivery = Direct(handler) if on_error == "raise" else _Delivery(self)
        for kind in self.kinds:  # marked methods on the instance, so that a bus reads this like any other plugin
            setattr(self, HOOKS[kind], delivery.deliver)

    def _refuse_unknown(self, given: Collection[str]) -> None:
        """Refuse arguments that neither this class nor a selection has.

        Raises:
            TypeError: names them, and what was probably meant.
        """
        own = [p.name for p in inspect.signature(type(self)).parameters.values() if p.kind is p.KEYWORD_ONLY]
        known = dict.fromkeys((*own, *(field.name for field in dataclasses.fields(Selection))))
        unknown = [name for name in given if name not in known]
        if unknown:
            guess = nearest(unknown[0], known)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise TypeError(
                f"{type(self).__name__.lower()} has no argument {', '.join(map(repr, unknown))}{hint} "
                f"(it takes {', '.join(known)})"
            )

    def opened(self, bus: Bus) -> Self:
        """Register on ``bus`` and remember it for :meth:`close`."""
        bus.register(self, owner="plugin", source="taps")
        self._bus = bus
        return self

    def close(self) -> None:
        """Take the tap off the network. May be called twice."""
        bus, self._bus = self._bus, None
        if bus is not None and bus.is_registered(self):
            bus.unregister(self)

    def _deliver(self, event: TapEvent) -> Any:
        if self._disabled:
            return None
        try:
            return self._handler(event)
        except Exception as error:  # noqa: BLE001 - reported: so it was asked for
            self._disabled = self._on_error == "disable"
            after = "and is disabled" if self._disabled else "and goes on"
            warnings.warn(
                f"tap {self.__name__!r} raised {type(error).__name__}: {error} for {event!r}, {after}",
                TapWarning,
                stacklevel=2,
            )
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_bus": None}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__name__} on {self.tap_selection}>"


class _Delivery:
    """An implementation that calls the handler by way of the tap, which looks after its errors."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.hookbus_handler = tap._handler  # what messages name

    @hookimpl
    def deliver(self, event: TapEvent) -> Any:
        """Hand the event on."""
        return self._tap._deliver(event)
