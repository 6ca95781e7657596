"""One implementation of a tap on the bus, as it is called: with its selection, its place in the order, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hookbus.bus import Bus, add_note
from hookbus.markers import hookimpl
from hookbus.taps.errors import TapError
from hookbus.taps.event import Moment, TapEvent
from hookbus.taps.selection import Selection

#: The kinds of events, and the hooks that hear of them.
HOOKS: Final = {
    "forward_pre": "on_module_forward_pre",
    "forward": "on_module_forward",
    "forward_error": "on_module_forward_error",
    "grad_output": "on_module_grad_output",
    "grad_input": "on_module_grad_input",
    "parameter_grad": "on_parameter_grad",
}


class Direct:
    """An implementation that does no more than to call ``handler``, whatever kind of event it is registered for.

    Args:
        handler: called with the event; it is what messages name.
    """

    def __init__(self, handler: Callable[[TapEvent], Any]) -> None:
        self.hookbus_handler = handler

    @hookimpl
    def deliver(self, event: TapEvent) -> Any:
        """Hand the event on."""
        return self.hookbus_handler(event)


class Subscriber:
    """One implementation.

    Attributes:
        kind: of the events that it hears of.
        plugin: the name of its plugin.
        function: calls it.
        selection: where and when.
        open: False once its plugin has been unregistered; then events that are still under way do not reach it.
        seen: whether its selection has been applied to the network before, so that what is missing has been said.
        heard: whether its first forward pass is over, so that a selection that was never called has been said.
        spent: for ``once``: the phase and number of its only step.
        missed: by the identity of a site, what had been called there before this one came.
    """

    __slots__ = (
        "_implementation",
        "function",
        "heard",
        "kind",
        "location",
        "missed",
        "open",
        "plugin",
        "seen",
        "selection",
        "spent",
    )

    def __init__(self, kind: str, plugin: str, implementation: Any, selection: Selection, function: Any) -> None:
        self.kind = kind
        self.plugin = plugin
        self.selection = selection
        self.location: str = implementation.location
        self.function: Callable[[TapEvent], Any] = function
        self.open = True
        self.seen = self.heard = False
        self.spent: tuple[str, int] | None = None
        self.missed: dict[int, int] = {}
        self._implementation = implementation

    @property
    def who(self) -> str:
        """Plugin and hook, for messages."""
        return f"plugin {self.plugin!r}, hook {HOOKS[self.kind]!r} ({self.location}),"

    @property
    def lasting(self) -> bool:
        """Whether it must also hear of forward passes that activation checkpointing repeats.

        Edits belong into both runs, or the second would not compute what the first did. Gradients come from the first
        run or from the second, as the kind of checkpointing will have it; only one of them is differentiated.
        """
        return self.selection.recompute or self.selection.edits or self.kind in ("grad_output", "grad_input")

    def due(self, moment: Moment) -> bool:
        """Whether the step that begins is one of its own."""
        if not self.selection.due(moment):
            return False
        return not self.selection.once or self.spent in (None, (moment.phase, moment.number))

    def observe(self, event: TapEvent) -> None:
        """Call it where it may not change anything.

        Raises:
            TapError: it has returned something.
        """
        answer = self.function(event)
        if answer is not None:
            raise self.refusal(event, answer)

    def refusal(self, event: TapEvent, answer: object) -> TapError:
        """The error for an answer that it has not announced."""
        return TapError(
            f"{self.who} returned a {type(answer).__name__} for {event!r}, but did not announce that it changes what it is "
            "given; return None, or declare edits=True"
        )

    def blame(self, error: BaseException, event: TapEvent) -> None:
        """Note on an error that it came from here."""
        add_note(error, f"raised by plugin {self.plugin!r} in hook {HOOKS[self.kind]!r} for {event!r}")
        if event.kind in ("grad_output", "grad_input", "parameter_grad"):
            add_note(error, "the backward pass was left half-way, so some gradients are accumulated and others are not")


def subscribers(bus: Bus, known: dict[int, Subscriber]) -> list[Subscriber]:
    """Everybody who implements a tap, kind by kind, each kind in the order of the bus.

    Args:
        bus: whose implementations.
        known: those that were there before, by the identity of the implementation; brought up to date.
    """
    found: dict[int, Subscriber] = {}
    for kind, name in HOOKS.items():
        hook = getattr(bus.hook, name, None)
        for call, entry in hook.calls() if hook is not None else ():
            key = id(entry.implementation)
            subscriber = known.get(key)
            function = _with_event(call)
            own = getattr(entry.plugin, "tap_selection", None)
            if subscriber is None or (isinstance(own, Selection) and own is not subscriber.selection):
                selection = own if isinstance(own, Selection) else Selection.of(entry.implementation.options)
                if selection.edits and bus.registration(entry.name).role == "monitor":
                    raise TapError(
                        f"plugin {entry.name!r} is a monitor, so it cannot edit; declare role = 'mutator', or drop edits=True"
                    )
                if subscriber is not None:
                    subscriber.open = False
                subscriber = Subscriber(kind, entry.name, entry.implementation, selection, function)
            subscriber.function = function  # a clock may have been put around it, or taken away
            found[key] = subscriber
    for key, subscriber in known.items():
        if key not in found:
            subscriber.open = False
    known.clear()
    known.update(found)
    return list(found.values())


def _with_event(call: Any) -> Callable[[TapEvent], Any]:
    """The implementation as a function of the event, whether or not it asks for it."""
    function = call.function
    if call.args:
        owner = getattr(function, "__self__", None)
        return owner.hookbus_handler if isinstance(owner, Direct) else function
    if call.keywords:
        return lambda event: function(event=event)
    return lambda _: function()
