"""What differs between the run that was saved and the one that goes on from it."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import importlib_metadata

_PLAIN: Final = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        kind: ``plugin``, ``version`` or ``setting``.
        name: of the plugin, the distribution or the argument.
        saved: what it was in the saved run; None if it was not there.
        now: what it is; None if it is not there.
        mutates: whether it is about a plugin that may change the training.
    """

    kind: str
    name: str
    saved: Any
    now: Any
    mutates: bool = False

    def __str__(self) -> str:
        if self.saved is None and self.kind == "plugin":
            return f"plugin {self.name} is new ({self.now})"
        if self.now is None and self.kind == "plugin":
            return f"plugin {self.name} is gone (was {self.saved})"
        return f"{self.kind} {self.name}: {self.saved} then, {self.now} now"


def versions() -> dict[str, str]:
    """The versions on which results depend."""
    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__), "hookbus": _own_version()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = str(numpy.__version__)
    return found


@functools.cache
def _own_version() -> str:
    """Kept, for it takes longer to read than a small checkpoint to write."""
    try:
        return importlib_metadata.version("hookbus")
    except importlib_metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def settings_of(trainer: Any) -> dict[str, Any]:
    """The trainer's arguments that are plain, with precision and number of processes."""
    settings = dict(vars(trainer.settings))
    plain = {name: value for name, value in settings.items() if type(value) in _PLAIN and name != "default_root_dir"}
    return {**plain, "precision": trainer.precision, "world_size": trainer.world_size}


def plugins_of(bus: Any) -> list[dict[str, Any]]:
    """One entry for each plugin on the bus, in order."""
    brought = {}
    report = getattr(bus, "report", None)
    for plugin in report.plugins if report is not None else ():
        for name in plugin.registered or (plugin.name,):
            brought[name] = (plugin.distribution, plugin.version)
    found = []
    for order, name in enumerate(bus.names()):
        registration = bus.registration(name)
        plugin = registration.plugin
        kind = plugin if isinstance(plugin, type) or not hasattr(plugin, "__dict__") else type(plugin)
        module = str(getattr(plugin, "__name__", "") if type(plugin).__name__ == "module" else kind.__module__)
        distribution, version = brought.get(name, ("", ""))
        found.append(
            {
                "name": name,
                "order": order,
                "owner": registration.owner,
                "source": registration.source,
                "role": registration.role,
                "class": module if type(plugin).__name__ == "module" else f"{module}.{kind.__qualname__}",
                "distribution": distribution,
                "version": version or str(getattr(sys.modules.get(module.partition(".")[0]), "__version__", "")),
                "state_key": registration.state_key,
            }
        )
    return found


def compare(saved: dict[str, Any], trainer: Any) -> list[Change]:
    """What differs, the plugins first.

    Args:
        saved: what stands under ``hookbus`` in the checkpoint.
        trainer: the one that goes on.
    """
    return [
        *_plugin_changes(saved.get("plugins") or [], plugins_of(trainer.bus)),
        *_changes("version", saved.get("versions") or {}, versions()),
        *_changes("setting", saved.get("settings") or {}, settings_of(trainer)),
    ]


def _changes(kind: str, saved: dict[str, Any], now: dict[str, Any]) -> Iterator[Change]:
    for name in saved.keys() & now.keys() if kind == "version" else saved.keys() | now.keys():
        if saved.get(name) != now.get(name):
            yield Change(kind, name, saved.get(name), now.get(name))


def _plugin_changes(saved: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[Change]:
    before = {entry["name"]: entry for entry in saved if _counts(entry)}
    after = {entry["name"]: entry for entry in now if _counts(entry)}
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        mutates = any(entry is not None and entry.get("role") == "mutator" for entry in (old, new))
        if old is None or new is None:
            yield Change("plugin", name, old and _said(old), new and _said(new), mutates)
        elif (old["class"], old["version"], old["role"]) != (new["class"], new["version"], new["role"]):
            yield Change("plugin", name, _said(old), _said(new), mutates)
    kept = [name for name in before if name in after]
    order = sorted(kept, key=lambda name: after[name]["order"])
    if kept != order:
        mutates = any(before[name].get("role") == "mutator" for name in kept)
        yield Change("plugin", "order", ", ".join(kept), ", ".join(order), mutates)


def _counts(entry: dict[str, Any]) -> bool:
    """Whether it is a plugin; the module, its data and the loaders come anew with each call."""
    return entry.get("owner") not in ("module", "datamodule")


def _said(entry: dict[str, Any]) -> str:
    version = f" {entry['version']}" if entry.get("version") else ""
    return f"{entry['class']}{version}, {entry['role']}"
