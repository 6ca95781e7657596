"""From names and patterns to the modules of a network.

Names are those of the network as its author wrote it: what DistributedDataParallel, ``torch.compile``, FSDP and
activation checkpointing put around a module does not count. A module that is known under several names is one place with
aliases.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from operator import contains

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hookbus.hookspecs import nearest
from hookbus.taps.errors import SelectionError, TapWarning
from hookbus.taps.selection import Selection, Which

#: The attribute under which a wrapper keeps what it wraps.
_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True, eq=False)
class Place:
    """One module of the network.

    Attributes:
        name: its dotted name, ``""`` for the network itself.
        aliases: its other names, if it stands in several places.
        module: the module itself, not what is wrapped around it.
    """

    name: str
    aliases: tuple[str, ...]
    module: nn.Module

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (self.name, *self.aliases)

    @property
    def callable(self) -> bool:
        """Whether it has a ``forward``: a ModuleList and its like have none, so they are never called."""
        if isinstance(self.module, torch.jit.ScriptModule):
            return True
        return type(self.module).forward is not nn.Module.forward or "forward" in vars(self.module)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of wrappers; itself if there are none."""
    inner = _inner(module)
    return module if inner is None else unwrapped(inner)


def places(model: nn.Module) -> list[Place]:
    """The modules of a network in the order of definition, the network itself first."""
    found: dict[int, tuple[nn.Module, list[str]]] = {}
    for name, module in _walk(model, "", set()):
        found.setdefault(id(module), (module, []))[1].append(name)
    return [Place(names[0], tuple(names[1:]), module) for module, names in found.values()]


class Structure:
    """What a network consists of, to be compared with what it consists of later; fast enough for every step.

    Args:
        model: the network.
    """

    def __init__(self, model: nn.Module) -> None:
        children = [_children(module) for module in model.modules()]
        self._parents = [held for held in children if held]
        self._leaves = [held for held in children if not held]
        self._before = self._children()
        self._own = [vars(module) for module in model.modules()]
        self._compiled = self._count_compiled()

    def changed(self) -> bool:
        """Whether a module was put in, taken out, replaced, or compiled in place since."""
        return any(self._leaves) or self._children() != self._before or self._count_compiled() != self._compiled

    # Iterators of C from end to end: a network has many modules, and this is asked at every step with taps.

    def _children(self) -> tuple[list[int], list[nn.Module | None]]:
        return list(map(len, self._parents)), list(chain.from_iterable(map(dict.values, self._parents)))

    def _count_compiled(self) -> int:
        if "torch._dynamo" not in sys.modules:  # nothing can have been compiled then
            return 0
        return sum(map(contains, self._own, repeat("_compiled_call_impl")))


def select(
    found: Sequence[Place], selection: Selection, *, called: bool, who: str, complain: bool = True
) -> list[Place]:
    """The places that a selection means.

    Args:
        found: all places.
        selection: which of them.
        called: whether only modules count that are ever called.
        who: plugin and hook, for messages.
        complain: whether a selection without a match is an error or warning, as it says itself.

    Raises:
        SelectionError: nothing matches, and ``on_missing`` says so.
    """
    suitable = [place for place in found if _suits(place, selection)]
    chosen = suitable
    if selection.wanted:
        tests = [(which, _test(which)) for which in selection.wanted]
        for which, test in tests if complain else ():
            if not any(test(place) and (place.callable or not called) for place in found):
                _complain(selection, _nothing_matches(which, found, who))
        chosen = [place for place in suitable if any(test(place) for _, test in tests)]
    chosen = [place for place in chosen if place.callable or not called]
    if not chosen and complain and (selection.types is not None or selection.where is not None):
        _complain(selection, f"{who} selects no module of the network: none fits {selection}")
    return chosen


def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of dotted names as a regular expression: ``*`` and ``?`` stop at dots, ``**`` does not."""
    return _translate(pattern)


def _walk(module: nn.Module, name: str, above: set[int]) -> Iterator[tuple[str, nn.Module]]:
    module = unwrapped(module)
    if id(module) in above:  # a module that contains itself
        return
    yield name, module
    for child_name, child in _children(module).items():
        if child is not None:
            yield from _walk(child, f"{name}.{child_name}" if name else child_name, {*above, id(module)})


def _children(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules in a module; none in one of TorchScript, which calls them without their hooks."""
    return {} if isinstance(module, torch.jit.ScriptModule) else module._modules


def _inner(module: nn.Module) -> nn.Module | None:
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        inner: nn.Module = module.module
        return inner
    return next((module._modules[name] for name in _INNER if name in module._modules), None)


def _suits(place: Place, selection: Selection) -> bool:
    if selection.types is not None and not isinstance(place.module, selection.types):
        return False
    return selection.where is None or bool(selection.where(place.name, place.module))


class _test:
    """Whether a place is what was asked for."""

    def __init__(self, which: Which) -> None:
        self._module = unwrapped(which) if isinstance(which, nn.Module) else None
        self._regex = which if isinstance(which, re.Pattern) else None
        self._glob = compiled_pattern(which) if isinstance(which, str) else None

    def __call__(self, place: Place) -> bool:
        if self._module is not None:
            return place.module is self._module
        if self._regex is not None:
            return any(self._regex.search(name) for name in place.names)
        assert self._glob is not None
        return any(self._glob.fullmatch(name) and bool(name) == bool(self._glob.pattern) for name in place.names)


@cache
def _translate(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*\.|\.\*\*|\*\*|\*|\?|\[[^\]]*\])", pattern)
    words = {"**.": r"(?:.*\.)?", ".**": r"\..+", "**": r".*", "*": r"[^.]*", "?": r"[^.]"}
    text = ""
    for part in parts:
        if part in words:
            text += words[part]
        elif part.startswith("[") and part.endswith("]") and len(part) > 2:
            inner = part[1:-1].replace("\\", r"\\")
            text += f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
        else:
            text += re.escape(part)
    return re.compile(text)


def _nothing_matches(which: Which, found: Sequence[Place], who: str) -> str:
    test = _test(which)
    containers = [place.name for place in found if test(place)]
    if containers:
        kind = next(type(place.module).__name__ for place in found if test(place))
        return (
            f"{who} selects {containers[0]!r}, a {kind}, which is never called: it only holds other modules; "
            f"select those: {containers[0] + '.*'!r}"
        )
    if isinstance(which, nn.Module):
        return f"{who} selects a {type(which).__name__} that is no part of the network"
    word = which.pattern if isinstance(which, re.Pattern) else which
    names = [name for place in found for name in place.names if name]
    guess = nearest(word, names)
    hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
    return f"{who} selects {word!r}, and no module of the network has such a name; {hint}"


def _complain(selection: Selection, message: str) -> None:
    if selection.on_missing == "error":
        raise SelectionError(message)
    if selection.on_missing == "warn":
        warnings.warn(message, TapWarning, stacklevel=2)
