"""Who taps which modules, worked out once and kept until the network or the bus changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import nn

from hookbus.taps.select import Place, Structure, places, select
from hookbus.taps.site import NOBODY, Bundle, Clock, Site
from hookbus.taps.subscriber import Subscriber


class Plan:
    """Subscribers and sites of one network.

    Args:
        model: the network.
        subscribers: everybody who implements a tap, in order.
        clock: that the sites share.
        before: the sites of the plan that this one follows; those of modules that are still there are kept.

    Attributes:
        sites: by the identity of the module, in the order of definition.
        chosen: for each subscriber the sites that it selects.
        compiled: whether ``torch.compile`` has been applied to a part of the network.
        scheduled: whether there is anybody who is not due at every step.
        by_parameter: whether there is anybody who hears of gradients of parameters.
    """

    def __init__(
        self, model: nn.Module, subscribers: Sequence[Subscriber], clock: Clock, before: dict[int, Site]
    ) -> None:
        self.structure = Structure(model)
        self.subscribers = list(subscribers)
        self.compiled = is_compiled(model)
        self.scheduled = any(s.selection.scheduled for s in self.subscribers)
        self.by_parameter = any(s.kind == "parameter_grad" for s in self.subscribers)
        self.places = found = places(model)
        by_module = {id(place.module): place for place in found}
        chosen: dict[Subscriber, list[Place]] = {}
        for subscriber in subscribers:
            called = subscriber.kind != "parameter_grad"
            chosen[subscriber] = select(
                found, subscriber.selection, called=called, who=subscriber.who, complain=not subscriber.seen
            )
        for subscriber in subscribers:  # only now: a later one may have raised
            subscriber.seen = True
        wanted = {id(place.module) for some in chosen.values() for place in some}
        self.sites: dict[int, Site] = {}
        for key, place in by_module.items():
            if key in wanted:
                old = before.get(key)
                same = old is not None and (old.name, old.aliases) == (place.name, place.aliases)
                self.sites[key] = old if old is not None and same else Site(place, clock)
        self.chosen = {
            subscriber: [self.sites[id(place.module)] for place in some] for subscriber, some in chosen.items()
        }
        for subscriber, sites in self.chosen.items():
            for site in sites:
                subscriber.missed.setdefault(id(site), site.count_for(subscriber.kind))
        self._parameters: list[Any] | None = None
        self._bundles: dict[Any, list[tuple[Site, Bundle, Bundle, tuple[Subscriber, ...]]]] = {}

    def tell(self, first: Sequence[Subscriber], lasting: Sequence[Subscriber] = (), *, look: bool = True) -> None:
        """Let all sites tell these subscribers, and no others.

        Args:
            first: of ordinary forward passes, and of gradients of parameters.
            lasting: of what the rest of the backward pass brings only.
            look: whether to look for parameters that have been replaced.
        """
        key = (tuple(map(id, first)), tuple(map(id, lasting)))
        bundles = self._bundles.get(key)
        if bundles is None:
            bundles = self._bundles[key] = self._bundle(set(first), set(lasting))
        # Their names are looked up each time: parameters may be replaced without any module noticing.
        names = names_of_parameters(self.places) if self.by_parameter and look else None
        for site, ordinary, again, parameters in bundles:
            site.tell(ordinary, again, parameters, names)

    def parameters_changed(self) -> bool:
        """Whether a parameter has been replaced, filled (lazy ones), frozen or thawed, since this was asked last."""
        own = list(chain.from_iterable(place.module._parameters.values() for place in self.places))
        now = [*own, *map(type, own), *(parameter is not None and parameter.requires_grad for parameter in own)]
        before, self._parameters = self._parameters, now
        return before is None or len(before) != len(now) or not all(map(is_, before, now))

    def _bundle(
        self, first: set[Subscriber], lasting: set[Subscriber]
    ) -> list[tuple[Site, Bundle, Bundle, tuple[Subscriber, ...]]]:
        members: dict[int, list[Subscriber]] = {key: [] for key in self.sites}
        for subscriber in self.subscribers:
            if subscriber in first or subscriber in lasting:
                for site in self.chosen[subscriber]:
                    members[id(site.module)].append(subscriber)
        made = []
        for key, site in self.sites.items():
            everybody = members[key]
            ordinary = tuple(s for s in everybody if s in first)
            again = tuple(s for s in everybody if s.lasting)
            parameters = tuple(s for s in everybody if s.kind == "parameter_grad")
            made.append(
                (site, Bundle(ordinary) if ordinary else NOBODY, Bundle(again) if again else NOBODY, parameters)
            )
        return made


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` has been applied to the network, to a part of it, or to the steps of a LightningModule."""
    if getattr(model, "_compiler_ctx", None) is not None:
        return True
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def names_of_parameters(found: Sequence[Place]) -> dict[int, tuple[str, ...]]:
    """All dotted names of each parameter; several for one that is tied."""
    names: dict[int, list[str]] = {}
    for place in found:
        for prefix in place.names:
            for name, parameter in place.module._parameters.items():
                if parameter is not None:
                    names.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    return {key: tuple(found) for key, found in names.items()}
