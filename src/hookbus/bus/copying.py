"""Copying and pickling a bus, for worker processes that are started with a copy of the trainer.

Compiled functions and pluggy's tables do not travel; what does is who is registered, where, and with which counters.
The copy has copies of the plugins (modules excepted) and no monitors, tracing or clock. Plugins that cannot be copied
or pickled say so themselves.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hookbus.bus.registration import Registration
from hookbus.dialects import callback

if TYPE_CHECKING:
    from hookbus.bus.bus import Bus


class _ModuleReference:
    """A module by its name; becomes the module itself when it is copied or unpickled."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        name = self.module.__name__
        if sys.modules.get(name) is not self.module:
            raise TypeError(f"cannot copy a bus with {self.module!r}: the module cannot be imported by its name")
        return importlib.import_module, (name,)


def state_of(bus: Bus) -> dict[str, Any]:
    """What ``bus`` is made of, in terms that can be copied if its plugins can."""
    return {
        "arguments": (bus.project_name, bus.list_order, bus.closed),
        "specifications": [_portable(namespace) for namespace in bus._specifications],
        "plugins": [_described(registration) for registration in bus._registrations.values()],
        "blocked": [name for name, plugin in bus._name2plugin.items() if plugin is None],
        "distributions": [(_portable(plugin), found) for plugin, found in bus._plugin_distinfo],
        "history": {
            name: [
                ({key: _portable(value) for key, value in kwargs.items()}, call) for kwargs, call in hook._call_history
            ]
            for name, hook in vars(bus.hook).items()
            if hook._call_history
        },
        "given": {"report": bus.report, "_sequence": bus._sequence, "_given_rank": bus._given_rank},
    }


def restore(bus: Bus, state: dict[str, Any]) -> None:
    """Make ``bus``, of which nothing is there yet, from the copied ``state``."""
    project_name, list_order, closed = state["arguments"]
    bus.__init__(project_name, list_order=list_order, closed=closed)  # type: ignore[misc]
    for namespace in state["specifications"]:
        bus.add_hookspecs(namespace)
    for described in state["plugins"]:
        plugin, reads, counters = described.pop("plugin"), described.pop("reads"), described.pop("counters")
        registration = Registration(plugin, **described)
        if callback.is_callback(plugin):
            registration.snapshot = callback.MethodSnapshot(plugin)
        bus._name2plugin[registration.name] = plugin
        bus._registrations[registration.name] = registration
        for read in reads:
            bus._add(registration, read, replay=False)
        for key, gate in registration.filters.items():
            gate.load_state_dict(counters[key])
    for name in state["blocked"]:
        bus.set_blocked(name)
    bus._plugin_distinfo.extend(state["distributions"])
    for name, calls in state["history"].items():
        bus._hook(name)._call_history = calls
    vars(bus).update(state["given"])


def _described(registration: Registration) -> dict[str, Any]:
    words = ("name", "owner", "source", "role", "position", "listed", "state_key", "failed")
    return {
        **{word: getattr(registration, word) for word in words},
        "plugin": _portable(registration.plugin),
        "reads": [entry.read for entry in registration.entries],
        "counters": {key: gate.state_dict() for key, gate in registration.filters.items()},
    }


def _portable(value: object) -> object:
    return _ModuleReference(value) if isinstance(value, ModuleType) else value
