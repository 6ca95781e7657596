"""Which selections have been called and which never: a hook that does not fire does not complain by itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from hookbus.taps.errors import TapWarning
from hookbus.taps.plan import Plan
from hookbus.taps.select import Place
from hookbus.taps.site import Site
from hookbus.taps.subscriber import HOOKS, Subscriber


@dataclass(frozen=True)
class Row:
    """One module that a plugin has selected.

    Attributes:
        plugin: the plugin's name.
        hook: the hook that it implements.
        module: the module's dotted name.
        aliases: its other names.
        calls: calls of the module, or gradients there, since the plugin came, while anybody was listening.
    """

    plugin: str
    hook: str
    module: str
    aliases: tuple[str, ...]
    calls: int


@dataclass(frozen=True)
class TapReport:
    """What has been tapped so far.

    Attributes:
        rows: one for each module of each selection.
        notes: what is odd, in sentences.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def never_fired(self) -> tuple[Row, ...]:
        """The rows of modules that were selected and never called."""
        return tuple(row for row in self.rows if not row.calls)

    def __str__(self) -> str:
        lines = [f"{'calls':>8}  module ({'plugin'}, {'hook'})"]
        for row in self.rows:
            also = f" = {' = '.join(row.aliases)}" if row.aliases else ""
            lines.append(f"{row.calls or 'never':>8}  {row.module or '(the network)'}{also} ({row.plugin}, {row.hook})")
        return "\n".join([*lines, *self.notes])


def report(plan: Plan | None, notes: Iterable[str]) -> TapReport:
    """What has been tapped by a plan so far; empty before there is one."""
    rows = [
        Row(subscriber.plugin, HOOKS[subscriber.kind], site.name, site.aliases, _calls(subscriber, site))
        for subscriber, sites in (plan.chosen.items() if plan is not None else ())
        for site in sites
    ]
    return TapReport(tuple(rows), tuple(notes))


def warn_of_silence(plan: Plan, due: Sequence[Subscriber], *, late: bool) -> list[str]:
    """Warn of selections that nothing came of in the pass that has ended; each is looked at once.

    A selection is silent if none of its modules was called, or one that it names was not.

    Args:
        plan: with the counts.
        due: who was listening in that pass.
        late: whether hooks came after the first call of a compiled network, which explains all.

    Returns:
        The warnings.
    """
    said = []
    for subscriber in due:
        if subscriber.heard or subscriber.kind in ("grad_output", "grad_input", "parameter_grad"):
            continue
        subscriber.heard = True
        selection, sites = subscriber.selection, plan.chosen[subscriber]
        if selection.on_missing == "ignore" or selection.modules is None or late:
            continue
        silent = [site for site in sites if not _calls(subscriber, site)]
        named = [site for site in silent if any(name in selection.wanted for name in (site.name, *site.aliases))]
        named += [site for site in silent if any(site.module is which for which in selection.wanted)]
        if silent and (named or len(silent) == len(sites)):
            names = ", ".join(repr(site.name) for site in (named or silent)[:4])
            why = why_silent(plan.places, silent[0].name)
            said.append(f"{subscriber.who} selected {names}, which was never called in its first forward pass: {why}")
    for message in said:
        warnings.warn(message, TapWarning, stacklevel=2)
    return said


def _calls(subscriber: Subscriber, site: Site) -> int:
    return site.count_for(subscriber.kind) - subscriber.missed.get(id(site), 0)


def why_silent(places: Sequence[Place], name: str) -> str:
    """A guess at why a module, one of these places, is not called."""
    parent_name = name.rpartition(".")[0]
    parent = next((place.module for place in places if place.name == parent_name), None)
    if isinstance(parent, nn.MultiheadAttention):
        return "MultiheadAttention uses the weights of its out_proj without calling it; tap the attention itself"
    return "whoever contains it calls its forward() directly, uses its weights without calling it, or takes another path here"
