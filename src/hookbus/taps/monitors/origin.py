"""Which module is to blame: it was given finite values and gives others, and no module inside it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import nn

from hookbus.taps.leaves import Path
from hookbus.taps.monitors.finite import Flag

#: A call of a module: its name, and the number of the call in the forward pass.
Key: TypeAlias = "tuple[str, int]"


@dataclass
class Call:
    """What is known of one call of a module.

    Attributes:
        name, call_index: of the module.
        outputs, inputs: flags of the tensors that it gave and was given.
        path: where in the output the first tensor stands that is not finite.
        bad: whether the output is not finite.
        given: whether what it was called with was not.
        unseen: whether that cannot be told, as the module has written over it.
        what: the values, in words, if known.
        note: what else is to be said.
        module: the module.
    """

    name: str
    call_index: int
    outputs: list[tuple[Path, Flag]] = field(default_factory=list)
    inputs: list[Flag] = field(default_factory=list)
    path: Path = ()
    bad: bool = False
    given: bool = False
    unseen: bool = False
    what: str = ""
    note: str = ""
    module: nn.Module | None = None

    @property
    def flags(self) -> list[Flag]:
        """All of its flags."""
        return [*(flag for _, flag in self.outputs), *self.inputs]

    def settle(self, read: Iterator[bool]) -> None:
        """Take the values of :attr:`flags`, in their order."""
        paths = [path for (path, _), bad in zip(self.outputs, read, strict=False) if bad]
        self.bad, self.path = bool(paths), paths[0] if paths else ()
        self.given = True in [next(read) for _ in self.inputs]


class Forward:
    """Finds the origin in a forward pass, call by call as they end: inner ones before the outer ones."""

    def __init__(self) -> None:
        self.made_by: list[str] = []
        self.came_into: Call | None = None
        self._first: Call | None = None

    def judge(self, call: Call) -> Call | None:
        """The call if it is to blame."""
        if not call.bad or any(_within(name, call.name) for name in self.made_by):
            return None
        earlier = bool(self.made_by) or self.came_into is not None
        if call.given if not call.unseen else earlier:
            if not self.made_by:
                self._first = self._first or call
                self.came_into = call
            return None
        if call.unseen:
            call.note = "it works in place, so what it was given cannot be seen any more: it may be the code before it"
        elif self._first is not None and _within(self._first.name, call.name):
            call.note = f"in its own code, before it calls {self._first.name!r}"
        self.made_by.append(call.name)
        self.came_into = self._first = None
        return call


@dataclass
class Backward:
    """Finds the origin in a backward pass, once it is over."""

    outputs: dict[Key, list[Flag]] = field(default_factory=dict)
    inputs: dict[Key, list[Flag]] = field(default_factory=dict)
    order: list[tuple[bool, Key, Path, int]] = field(default_factory=list)

    def add(self, key: Key, path: Path, flag: Flag, *, of_output: bool) -> None:
        """Take down a gradient."""
        flags = (self.outputs if of_output else self.inputs).setdefault(key, [])
        self.order.append((of_output, key, path, len(flags)))
        flags.append(flag)

    def judge(self) -> list[Call]:
        """Those to blame; one whose name says nothing more than "in there" if it was no module's own backward pass."""
        bad_outputs = {key for key, flags in self.outputs.items() if any(flags)}
        bad_inputs = {key for key, flags in self.inputs.items() if any(flags)}
        blamed = [key for key in self.inputs if key in bad_inputs and key in self.outputs and key not in bad_outputs]
        inner = [k for k in blamed if not any(o != k and _within(o[0], k[0]) for o in blamed)]
        if inner:
            return [Call(name, index, path=self._path((name, index)), bad=True) for name, index in inner]
        for of_output, key, path, which in self.order:
            if (self.outputs if of_output else self.inputs)[key][which]:
                sound = [other for other, flags in self.outputs.items() if other != key and not any(flags)]
                return [self._between(key, path, bool(sound))]
        return []

    def _path(self, key: Key) -> Path:
        return next(path for out, k, path, i in self.order if not out and k == key and self.inputs[key][i])

    @staticmethod
    def _between(key: Key, path: Path, after_others: bool) -> Call:
        name, index = key
        if after_others:
            parent = name.rpartition(".")[0]
            note = f"it comes to the output of {name!r} like that, from code outside of the tapped modules"
            return Call(parent, 0, bad=True, note=note)
        return Call(name, index, path=path, bad=True, given=True)


def _within(inner: str, outer: str) -> bool:
    return inner == outer or not outer or inner.startswith(f"{outer}.")
