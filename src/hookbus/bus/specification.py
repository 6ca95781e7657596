"""What the specification of a hook comes to; for the catalogue made once, and shared by all buses of a process.

Reading the catalogue takes longer than everything else in the making of a Trainer, and always gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import CodeType, ModuleType
from typing import Any

import pluggy

from hookbus.bus.dispatch import Shape, idle, stub
from hookbus.hookspecs import SPEC_MODULES
from hookbus.markers import PROJECT


@dataclass(frozen=True)
class Specification:
    """How a hook is called.

    Attributes:
        spec: pluggy's record.
        shape: arguments and kind of answer, as the compiler wants them.
        defaults: of the last arguments, those that have one.
        known: the names of all arguments.
        exact: their number, where none has a default: so many are all of them, or an error; else -1.
        is_tap: whether this is a point inside the network.
    """

    spec: Any
    shape: Shape
    defaults: tuple[object, ...]
    known: frozenset[str]
    exact: int
    is_tap: bool

    @cached_property
    def is_historic(self) -> bool:
        """Whether implementations to come hear of earlier calls."""
        return bool(self.spec.opts.get("historic"))

    @cached_property
    def stub(self) -> CodeType:
        """See :func:`hookbus.bus.dispatch.stub`."""
        return stub(self.shape)

    @cached_property
    def idle(self) -> CodeType:
        """See :func:`hookbus.bus.dispatch.idle`."""
        return idle(self.shape)


def specification(spec: Any) -> Specification:
    """What ``spec`` comes to.

    Raises:
        ValueError: it cannot be compiled.
    """
    parameters = spec.argnames + spec.kwargnames
    options: Mapping[str, Any] = spec.opts
    clash = [name for name in parameters if name.startswith("_")]
    if clash:  # names that the compiled code uses itself
        raise ValueError(f"hook {spec.name!r}: argument names must not begin with '_', got {', '.join(clash)}")
    fold = options.get("fold")
    if fold and fold not in parameters:
        raise ValueError(f"hook {spec.name!r}: fold={fold!r} names none of its arguments {parameters}")
    shape = Shape(
        spec.name,
        parameters,
        firstresult=bool(options.get("firstresult")),
        fold=fold,
        collect_errors=bool(options.get("collect_errors")),
    )
    defaults = tuple(spec.kwargdefaults[name] for name in spec.kwargnames)
    exact = -1 if defaults else len(parameters)
    return Specification(spec, shape, defaults, frozenset(parameters), exact, bool(options.get("tap")))


def of_catalogue(namespace: object) -> tuple[Specification, ...] | None:
    """The specifications in a module of the catalogue; None for any other namespace."""
    return _read(namespace) if isinstance(namespace, ModuleType) and namespace in SPEC_MODULES else None


@cache
def _read(module: ModuleType) -> tuple[Specification, ...]:
    reader = pluggy.PluginManager(PROJECT)
    reader.add_hookspecs(module)
    return tuple(specification(hook.spec) for hook in vars(reader.hook).values())
