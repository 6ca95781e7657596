"""Loading what was planned: import, call factories, register; one broken plugin is named and does not stop the others.

:func:`load_plugins` gives a :class:`LoadReport`, which knows of each plugin whether it is active, blocked or broken,
and why.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hookbus.bus import discovery
from hookbus.bus.config import PluginSelection
from hookbus.bus.discovery import UnknownPluginError, short_name
from hookbus.bus.plan import Planned, plan
from hookbus.bus.unpack import NotAPluginError, object_name, plugins_in
from hookbus.dialects.callback import is_callback
from hookbus.hookspecs import nearest

if TYPE_CHECKING:
    from hookbus.bus.bus import Bus

Status = Literal["active", "blocked", "broken"]


class PluginLoadError(RuntimeError):
    """A plugin cannot be loaded and strict is set; the cause is the original error."""


class PluginWarning(UserWarning):
    """A plugin cannot be loaded, and the run goes on without it."""


@dataclass
class PluginStatus:
    """What became of one plugin.

    Attributes:
        name: its name, as ``-p`` takes it.
        distribution: the distribution that brings it, empty if it was asked for by import path.
        version: the distribution's version, or empty.
        source: where it comes from, or who blocked it: ``"entry point"``, ``"-p"``, ``"pyproject.toml"``, ...
        status: ``"active"``, ``"blocked"`` (not imported) or ``"broken"``.
        reason: why it is not active, or what is odd about it.
        registered: the names under which its objects take part; several if it brings several.
        planned: what was to be done.
    """

    name: str
    distribution: str
    version: str
    source: str
    status: Status
    reason: str = ""
    registered: tuple[str, ...] = ()
    planned: Planned | None = field(default=None, repr=False)

    @classmethod
    def of(cls, planned: Planned) -> PluginStatus:
        """The status before loading: active if it will be loaded."""
        status: Status = "active" if planned.load else "blocked"
        return cls(
            planned.name, planned.distribution, planned.version, planned.source, status, planned.reason, planned=planned
        )

    @property
    def unasked(self) -> bool:
        """Whether it is left out only because installed plugins are not loaded unless asked for."""
        return self.planned is not None and not self.planned.load and self.planned.choice is None

    def __str__(self) -> str:
        return f"{self.name!r} ({self.distribution} {self.version})" if self.distribution else repr(self.name)


@dataclass
class LoadReport:
    """What became of all plugins, in the order of loading.

    Attributes:
        plugins: one entry for each that is installed or was asked for.
        notices: what is odd, in sentences: clashing names, one object offered twice.
    """

    plugins: list[PluginStatus] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[PluginStatus]:
        return iter(self.plugins)

    def having(self, status: Status) -> list[PluginStatus]:
        """The plugins with this status."""
        return [plugin for plugin in self.plugins if plugin.status == status]

    def header(self) -> str:
        """The line for the start of a run: ``plugins: tensorboard-0.3.1, gradcam-0.1.0 (1 blocked: wandb)``."""
        tokens = dict.fromkeys(
            f"{short_name(p.distribution)}-{p.version}" if p.distribution else p.name
            for p in self.having("active")
            if p.registered
        )
        blocked = [p.name for p in self.having("blocked") if not p.unasked]
        broken = [p.name for p in self.having("broken")]
        unasked = sum(p.unasked for p in self.plugins)
        aside = [f"{len(blocked)} blocked: {', '.join(blocked)}"] if blocked else []
        aside += [f"{len(broken)} broken: {', '.join(broken)}"] if broken else []
        aside += [f"autoload off: {unasked} not loaded"] if unasked else []
        return f"plugins: {', '.join(tokens) or 'none'}" + (f" ({'; '.join(aside)})" if aside else "")

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits over names and versions of the active plugins in order, to compare processes by."""
        import hashlib

        text = "\n".join(f"{plugin.name} {plugin.version}" for plugin in self.having("active"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def load_plugins(bus: Bus, selection: PluginSelection, *, others: Collection[str] = ()) -> LoadReport:
    """Load and register what is installed and asked for. What is blocked is never imported.

    Args:
        bus: where to register; a plugin whose name is blocked there already stays out.
        selection: what was said about plugins.
        others: names that may be blocked though no plugin that can be discovered has them (those of defaults).

    Returns:
        What became of each plugin. Broken ones are warned of (:class:`PluginWarning`) and announced to
        ``on_plugin_error``.

    Raises:
        UnknownPluginError: for a name that nothing has.
        PluginLoadError: for the first broken plugin, if ``selection.strict``.
    """
    report = LoadReport(notices=list(discovery.notices()))
    broken: list[tuple[PluginStatus, BaseException]] = []
    entries = plan(selection, discovery.find(), others=others, notices=report.notices)
    for name in {c.name for c in selection.blocked} & set(others) | {p.name for p in entries if not p.load}:
        bus.set_blocked(name)
    for planned in entries:
        status = PluginStatus.of(planned)
        report.plugins.append(status)
        if not planned.load:
            continue
        if bus.is_blocked(planned.name):
            status.status, status.source, status.reason = "blocked", "code", "blocked by set_blocked()"
            continue
        try:
            objects = plugins_in(_imported(planned), bus.parse_hookimpl_opts, vars(bus.hook))
            _register(bus, objects, status, report.notices)
        except UnknownPluginError:
            raise
        except (Exception, SystemExit) as error:
            status.status, status.reason = "broken", _reason(error)
            if selection.strict:
                raise PluginLoadError(f"plugin {status}, {planned.path}: {status.reason}") from error
            broken.append((status, error))
    for status, cause in broken:  # when all others are there to hear of it
        _announce(bus, status, cause)
    return report


def _imported(planned: Planned) -> object:
    """What the import path points at.

    Raises:
        UnknownPluginError: a path that somebody typed leads nowhere. (What an entry point says is its author's affair.)
    """
    module_path, _, attributes = planned.path.partition(":")
    try:
        found: object = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if planned.candidate is None and error.name and f"{module_path}.".startswith(f"{error.name}."):
            raise UnknownPluginError(f"{planned.source}: there is no plugin and no module {module_path!r}") from error
        raise
    for attribute in filter(None, attributes.split(".")):
        if planned.candidate is None and not hasattr(found, attribute):
            guess = nearest(attribute, dir(found))
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise UnknownPluginError(f"{planned.source}: {module_path} has no {attribute!r}{hint}")
        found = getattr(found, attribute)
    return found


def _register(bus: Bus, objects: Sequence[object], status: PluginStatus, notices: list[str]) -> None:
    """Register all objects of one entry point, or none."""
    assert status.planned is not None
    named = _named(objects, status, notices)
    parts = status.planned.parts
    names = [part for part, _ in named]
    for part, choice in parts.items():
        if part not in names:
            guess = nearest(part, names)
            hint = f"did you mean {guess!r}?" if guess else f"it brings {', '.join(names) or 'nothing'}"
            raise UnknownPluginError(f"{choice.source}: plugin {status.name!r} brings no {part!r}; {hint}")
    present = {id(plugin): name for name, plugin in bus.list_name_plugin() if plugin is not None}
    done: list[str] = []
    try:
        for part, plugin in named:
            name = status.name if len(named) == 1 else f"{status.name}:{part}"
            if part in parts and parts[part].blocked:
                bus.set_blocked(name)
                notices.append(f"{name} is blocked by {parts[part].source}")
                continue
            if id(plugin) in present:
                notices.append(f"plugin {status} offers what is registered as {present[id(plugin)]!r} already")
                continue
            owner = "callback" if is_callback(plugin) else "plugin"  # a Trainer puts it into its list of callbacks
            given = bus.register(plugin, name, owner=owner, source=f"{status.source} {status}")
            if given is not None:
                done.append(given)
    except BaseException:
        for name in done:
            bus.unregister(name=name)
        raise
    status.registered = tuple(done)


def _named(objects: Sequence[object], status: PluginStatus, notices: list[str]) -> list[tuple[str, object]]:
    """Each object once, with a name of its own: its class's, numbered from the second of a class on."""
    named: list[tuple[str, object]] = []
    seen: set[int] = set()
    counts: dict[str, int] = {}
    for plugin in objects:
        name = object_name(plugin)
        if id(plugin) in seen:
            notices.append(f"plugin {status} returned the same {name} twice; it takes part once")
            continue
        seen.add(id(plugin))
        counts[name] = counts.get(name, 0) + 1
        named.append((name if counts[name] == 1 else f"{name}#{counts[name]}", plugin))
    return named


def _reason(error: BaseException) -> str:
    """The error in words, its kind first."""
    if isinstance(error, NotAPluginError):
        return str(error)
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _announce(bus: Bus, status: PluginStatus, error: BaseException) -> None:
    assert status.planned is not None
    warnings.warn(
        f"plugin {status} is left out; {status.planned.path} {_verb(error)}{status.reason}", PluginWarning, stacklevel=4
    )
    listeners = getattr(bus.hook, "on_plugin_error", None)
    if listeners is not None and listeners.has_spec():
        listeners.call_historic(kwargs={"plugin": None, "name": status.name, "hook": None, "exception": error})


def _verb(error: BaseException) -> str:
    return "" if isinstance(error, NotAPluginError) else "raised "
