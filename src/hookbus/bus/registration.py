"""What the bus keeps of each registered plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pluggy

from hookbus.bus.filters import Filter
from hookbus.bus.order import Ranked
from hookbus.dialects import Implementation
from hookbus.dialects.callback import MethodSnapshot


class Entry(NamedTuple):
    """One implementation that takes part.

    Attributes:
        read: as the plugin defines it.
        called: as it is called, inside its filters and its guard.
        impl: as pluggy knows it.
        gate: its filter, if it has one.
    """

    read: Implementation
    called: Implementation
    impl: pluggy.HookImpl
    gate: Filter | None


@dataclass
class Registration:
    """One plugin as the bus knows it.

    Attributes:
        plugin: the object.
        name: its name on this bus.
        owner: the kind of owner, one of :data:`hookbus.markers.OWNERS`.
        source: where it came from, in words.
        role: ``monitor``, ``mutator`` or ``unspecified``.
        position: its place among those of its owner.
        listed: whether it stands in a list that :meth:`Bus.sync` follows; those come before others of their owner.
        entries: its implementations.
        snapshot: the methods of a callback as they were when they were last read.
        state_key: the key of its state in checkpoints, as it was at registration; None if it has no state.
        failed: the hooks in which it failed, as a monitor.
    """

    plugin: object
    name: str
    owner: str
    source: str
    role: str
    position: int
    listed: bool = False
    entries: list[Entry] = field(default_factory=list)
    snapshot: MethodSnapshot | None = None
    state_key: str | None = None
    failed: set[str] = field(default_factory=set)

    @property
    def implementations(self) -> list[Implementation]:
        """What it implements, as called."""
        return [entry.called for entry in self.entries]

    @property
    def filters(self) -> dict[str, Filter]:
        """The filters of its implementations, by hook, or by hook and function where the function has another name."""
        return {_filter_key(entry.read): entry.gate for entry in self.entries if entry.gate is not None}

    def ranked(self, implementation: Implementation, owners: Sequence[str]) -> Ranked:
        """An implementation with its place among those of all plugins, for a hook with this order of owners."""
        rank = (owners.index(self.owner), not self.listed, self.position)
        return Ranked(implementation, self.plugin, self.name, rank)


def _filter_key(implementation: Implementation) -> str:
    name = getattr(implementation.function, "__name__", implementation.hook)
    return implementation.hook if name == implementation.hook else f"{implementation.hook} ({name})"
