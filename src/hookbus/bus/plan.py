"""Which plugins will be loaded and which not, and why: decided from names alone, before anything is imported."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from hookbus.bus.config import FLEET_SOURCES, Choice, PluginSelection
from hookbus.bus.discovery import Candidate, UnknownPluginError, matching, unknown


@dataclass
class Planned:
    """One plugin, installed or asked for by import path, and what is to be done with it.

    Attributes:
        name: its name on the bus.
        path: what to import: ``"pkg.mod"`` or ``"pkg.mod:attribute"``.
        load: whether to load it.
        source: where it comes from, or who left it out.
        reason: why it is left out, empty if it is loaded.
        candidate: the entry point, None for one asked for by import path.
        choice: what was said about it; None if nothing was.
        parts: what was said about single ones of the objects that it may bring, by the object's name.
    """

    name: str
    path: str
    load: bool
    source: str
    reason: str = ""
    candidate: Candidate | None = None
    choice: Choice | None = None
    parts: dict[str, Choice] = field(default_factory=dict)

    @property
    def distribution(self) -> str:
        """The distribution that brings it, empty if it was asked for by import path."""
        return self.candidate.distribution if self.candidate else ""

    @property
    def version(self) -> str:
        """The distribution's version, empty if it was asked for by import path."""
        return self.candidate.version if self.candidate else ""

    def decide(self, choice: Choice) -> None:
        """Follow what somebody said about it."""
        self.choice, self.load, self.source = choice, not choice.blocked, choice.source
        self.reason = f"blocked by {choice.source}" if choice.blocked else ""


def plan(
    selection: PluginSelection,
    candidates: Sequence[Candidate],
    *,
    others: Collection[str] = (),
    notices: list[str] | None = None,
) -> list[Planned]:
    """What to do with each plugin, in the order of loading: the installed by name, then the others as asked for.

    Args:
        selection: what was said.
        candidates: what is installed, in order.
        others: names that may be blocked though no plugin that can be discovered has them.
        notices: gets a sentence for each block from a fleet-wide place of a plugin that is not installed here.

    Raises:
        UnknownPluginError: for any other name that nothing has, with who used it and the nearest name.
    """
    planned = {candidate.plugin: _installed(candidate, selection) for candidate in candidates}
    for choice in selection.choices:  # import paths first: what is asked for anywhere may be blocked anywhere
        if not choice.blocked and not _fitting(choice, candidates, planned) and _may_be_imported(choice.name):
            planned[choice.name] = Planned(choice.name, choice.name, True, choice.source)
    for choice in selection.choices:
        fitting = _fitting(choice, candidates, planned)
        for entry in fitting:
            entry.decide(choice)
        if fitting or (choice.blocked and choice.name in others):
            continue
        whole, _, part = choice.name.rpartition(":")
        owners = _fitting(replace(choice, name=whole), candidates, planned, modules=False)
        if not owners:
            known = [name for name, entry in planned.items() if entry.candidate is None]
            problem = f"{choice.source}: {unknown(choice.name, candidates, [*known, *others])}"
            if not (choice.blocked and choice.source in FLEET_SOURCES):
                raise UnknownPluginError(problem)
            if notices is not None:
                notices.append(problem)
        for entry in owners:
            entry.parts[part] = choice
            if not choice.blocked and not entry.load:
                entry.decide(choice)
    return list(planned.values())


def _installed(candidate: Candidate, selection: PluginSelection) -> Planned:
    if selection.autoload:
        return Planned(candidate.plugin, candidate.path, True, "entry point", candidate=candidate)
    reason = f"not loaded unless asked for ({selection.autoload_source})"
    return Planned(candidate.plugin, candidate.path, False, selection.autoload_source, reason, candidate)


def _fitting(
    choice: Choice, candidates: Sequence[Candidate], planned: dict[str, Planned], *, modules: bool = True
) -> list[Planned]:
    """The plugins that a choice is about. A package's name blocks what lies in it, but does not ask for all of it."""
    found = matching(choice.name, candidates, modules=modules, packages=modules and choice.blocked)
    if found:
        return [planned[candidate.plugin] for candidate in found]
    return [planned[choice.name]] if choice.name in planned else []


def _may_be_imported(path: str) -> bool:
    """Whether there is such a top-level module; finding out imports nothing."""
    module, _, attribute = path.partition(":")
    parts = [*module.split("."), *(attribute.split(".") if attribute else ())]
    if not all(part.isidentifier() for part in parts):
        return False
    try:
        return parts[0] in sys.modules or find_spec(parts[0]) is not None
    except (ImportError, ValueError):
        return False
