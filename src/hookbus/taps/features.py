"""``FeatureTap``: what some layers give, without running the network any further than that takes."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch._compile import _disable_dynamo

from hookbus.taps.early_stop import Run
from hookbus.taps.errors import SelectionError
from hookbus.taps.plan import is_compiled
from hookbus.taps.report import why_silent
from hookbus.taps.select import Place, Structure, places, select, unwrapped
from hookbus.taps.selection import Selection, Which, schedule
from hookbus.taps.trampoline import is_traced

_PATTERN = set("*?[")


class FeatureTap:
    """The features that a network computes, as a function of its input.

    ``features = FeatureTap(model, "layer3")`` makes one, and ``features(x)`` runs ``model`` on ``x`` until ``layer3`` has been
    called, and no further. What it gives is in the autograd graph, so that one can train through it; under
    ``torch.no_grad()`` it is not. All else is as in any forward pass of the part that is run: training mode, random
    numbers, buffers, hooks of others. Hooks of its own are on the network only during a call.

    A wrapped network is called without DistributedDataParallel, DataParallel or ``torch.compile`` around it, so gradients
    are not averaged over processes. One that FSDP has sharded is called as it is, and to its end, which FSDP needs; gradients
    then come to the parameters of parts that are sharded by themselves, and whose output the features are made of.

    Not in the graph is what lies within reentrant activation checkpointing. Full backward hooks on the very module do not
    hear of gradients of its features: torch puts them behind the point where these are taken.

    Args:
        model: the network.
        modules: which modules: a name, a pattern, a regular expression, a module, or several of these, as in
            :class:`hookbus.taps.Selection`; None for all of some ``types``.
        types: their classes; subclasses count.
        call: which call of a module that is called several times in a forward pass, from 0; or ``"all"``, which gives the
            list of all and runs the network to its end, as it cannot be known before how many there are.
        stop: whether to end the pass early. With False the network runs to its end.
        detach: cut what is given off the graph. The network runs as it would otherwise; to save memory, too, call within
            ``torch.no_grad()``.
        clone: ``auto``: keep what is given from operations in place that follow. ``never``: share memory with the network,
            and raise if it was overwritten.

    Attributes:
        model: the network.
        names: of the modules: the keys of what is given.

    Raises:
        SelectionError: there is no such module; the message suggests one.
        TypeError: an argument of another type.
        ValueError: an argument that has no meaning.

    Example:
        >>> import torch
        >>> from hookbus.taps import FeatureTap
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> FeatureTap(model, "1")(torch.ones(3, 4)).shape
        torch.Size([3, 8])
        >>> sorted(FeatureTap(model, ["0", "1"])(torch.ones(3, 4)))
        ['0', '1']
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Which | Collection[Which] | None,
        *,
        types: type | Collection[type] | None = None,
        call: int | Literal["all"] = 0,
        stop: bool = True,
        detach: bool = False,
        clone: Literal["auto", "never"] = "auto",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {model!r} ({type(model).__name__})")
        if call != "all" and (not isinstance(call, int) or isinstance(call, bool) or call < 0):
            raise ValueError(f"call must be the number of a call, from 0, or 'all'; got {call!r}")
        if clone not in ("auto", "never"):
            raise ValueError(f"clone must be one of auto, never; got {clone!r}")
        self.model = model
        self._selection: Selection = schedule(modules=modules, types=types, on_missing="error")
        self._call, self._stop, self._detach, self._clone = call, stop, detach, clone
        self._single = _is_one(modules)
        self._structure: Structure | None = None
        self._wanted: dict[str, Place] = {}
        self._places: list[Place] = []
        self._compiled = self._sharded = False
        self._look()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the modules, as they were asked for; where a pattern has matched, those of the network."""
        return tuple(self._wanted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network as far as is needed.

        Args:
            *args: positional arguments of the network.
            **kwargs: keyword arguments of the network.

        Returns:
            What the module gave, in whatever structure, if one was asked for by its name or as an object; else a
            dictionary of that, by name. With ``call="all"`` a list, with an item for each call, takes its place.

        Raises:
            SelectionError: a module was not called, or not often enough.
            StaleCaptureError: with ``clone="never"``: something was overwritten.
            TapError: the network has caught the exception that ends the pass, and raised another one.
        """
        return (_call_apart if is_traced() else _call)(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<FeatureTap of {', '.join(map(repr, self._wanted))} in {type(self.model).__name__}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_structure": None, "_wanted": {}, "_places": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._look()

    def _look(self) -> None:
        """Find the modules, if the network has changed since they were found."""
        if self._structure is not None and not self._structure.changed():
            return
        found = places(self.model)
        wanted: dict[str, Place] = {}
        for which in self._selection.wanted or (None,):
            for place in select(found, replace(self._selection, modules=which), called=True, who="FeatureTap"):
                wanted.setdefault(which if isinstance(which, str) and _is_one(which) else place.name, place)
        self._places, self._wanted = found, wanted
        self._structure = Structure(self.model)
        self._compiled, self._sharded = is_compiled(self.model), _is_sharded(self.model)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._look()
        modules = {id(place.module): place.module for place in self._wanted.values()}
        stop, clone = self._stop and not self._sharded, self._clone == "auto"
        run = Run(list(modules.values()), self._call, stop=stop, detach=self._detach, clone=clone)
        # Code that is compiled already would not notice the hooks.
        eager: AbstractContextManager[Any] = contextlib.nullcontext()
        if self._compiled:
            eager = torch.compiler.set_stance("force_eager")
        with eager:
            run.call(self.model if self._sharded else unwrapped(self.model), args, kwargs)
        self._refuse_silence(run)
        found = {name: run.values[id(place.module)] for name, place in self._wanted.items()}
        given = {name: values if self._call == "all" else values[0] for name, values in found.items() if values}
        return next(iter(given.values())) if self._single else given

    def _refuse_silence(self, run: Run) -> None:
        """Raise if a module that was asked for by name, or every other one, has not been called as often as was said."""
        silent = [name for name, place in self._wanted.items() if not run.values[id(place.module)]]
        exact = [which for which in self._selection.wanted if _is_one(which)]
        named = [name for name in silent if name in exact or any(self._wanted[name].module is which for which in exact)]
        if not named and len(silent) < len(self._wanted):
            return
        name = (named or silent)[0]
        calls = run.counts[id(self._wanted[name].module)]
        if calls:
            raise SelectionError(
                f"FeatureTap wants call {self._call} of {name!r}, counted from 0, but it was called {calls} times in this "
                "forward pass; use a smaller number, or call='all'"
            )
        others = [place.name for place in self._places if place.callable and place.name not in ("", name)]
        near = difflib.get_close_matches(name, others, n=3, cutoff=0.0)
        raise SelectionError(
            f"FeatureTap selects {', '.join(map(repr, (named or silent)[:4]))}, which was not called in this forward pass: "
            f"{why_silent(self._places, name)}; modules with similar names are {', '.join(map(repr, near)) or 'none'}"
        )


def _call(features: FeatureTap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return features._run(args, kwargs)


_call_apart = _disable_dynamo(_call)


def _is_one(which: object) -> bool:
    """Whether it can mean one module only."""
    return isinstance(which, nn.Module) or (isinstance(which, str) and not _PATTERN & set(which))


def _is_sharded(model: nn.Module) -> bool:
    """Whether FSDP has hooks, or a wrapper, in the network, which must see a forward pass to its end."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(getattr(fsdp, name) for name in ("FSDPModule", "FullyShardedDataParallel") if hasattr(fsdp, name))
    return any(isinstance(module, kinds) for module in model.modules())
