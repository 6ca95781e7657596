"""Which methods of a foreign object are its own and which only the empty ones of its base class."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, cast

from hookbus.markers import PROJECT, HookimplOptions

_MARK = f"{PROJECT}_impl"
_NN = "torch.nn.modules.module"
_NOTHING: dict[str, Any] = {}
_ROOTS = frozenset({"hookbus", "lightning", "pytorch_lightning", "lightning_fabric"})
_BASES = frozenset({"Callback", "LightningModule", "ModelHooks", "DataHooks", "CheckpointHooks", "LightningDataModule"})


def is_base(cls: type) -> bool:
    """Whether ``cls`` is a base class of hookbus or Lightning, whose methods count as "not overridden"."""
    return cls.__name__ in _BASES and cls.__module__.partition(".")[0] in _ROOTS


def derives_from(obj: object, name: str) -> bool:
    """Whether ``obj`` is an instance of hookbus's or Lightning's class of this name, without importing either.

    ``obj.__class__`` is asked as well as ``type(obj)``, so that ``Mock(spec=Callback)`` counts.
    """
    classes = (*type(obj).__mro__, *getattr(obj.__class__, "__mro__", ()))
    return any(cls.__name__ == name and is_base(cls) for cls in classes)


def own_namespaces(obj: object) -> list[Mapping[str, Any]]:
    """Where a method of ``obj`` may stand that is not its library's: in itself, and in its classes in their order."""
    namespaces = [getattr(obj, "__dict__", _NOTHING)]
    for cls in type(obj).__mro__:
        if not (cls is object or cls.__module__ == _NN or is_base(cls)):
            namespaces.append(vars(cls))
    return namespaces


def overridden(obj: object, name: str, *, through_wrappers: bool = False) -> Any | None:
    """The bound method ``obj.name`` if it is not the base class's own, else None. Methods set on the instance count.

    Args:
        obj: a module, a data module or a callback.
        name: of the method.
        through_wrappers: whether a method that ``functools.wraps`` or ``partial`` has put around the base class's own is
            taken for that one.
    """
    method = getattr(obj, name, None)
    if method is None or not callable(method):
        return None
    inner = _innermost(method) if through_wrappers else method
    function = getattr(inner, "__func__", inner)
    for cls in type(obj).__mro__:
        if cls.__dict__.get(name) is function and is_base(cls) and _is_as_written(cls, name, function):
            return None
    return method


def _is_as_written(cls: type, name: str, function: Any) -> bool:
    """Whether a base class's method is the one that it was defined with, and not one that was put in its place since."""
    return getattr(function, "__qualname__", None) == f"{cls.__name__}.{name}"


def _innermost(function: Any) -> Any:
    """What ``functools.wraps`` and ``partial`` were put around."""
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        function = getattr(function, "__wrapped__", function)
        function = function.func if isinstance(function, functools.partial) else function
    return function


def options_in(namespaces: Iterable[Mapping[str, Any]], name: str) -> HookimplOptions:
    """The ``@hookimpl`` options of the first marked function of this name.

    In :func:`own_namespaces` that is the method itself, or the nearest one that it overrides. So a subclass that overrides a
    marked method without repeating the mark keeps the place in the order.
    """
    for namespace in namespaces:
        function = namespace.get(name)
        if function is not None:
            options = getattr(function, "__dict__", _NOTHING).get(_MARK)
            if isinstance(options, dict):
                return cast(HookimplOptions, options)
    return HookimplOptions()


def is_marked(obj: object, name: str) -> bool:
    """Whether the method that ``obj.name`` gives carries a mark itself."""
    function = getattr(obj, name, None)
    return isinstance(getattr(getattr(function, "__func__", function), "__dict__", {}).get(f"{PROJECT}_impl"), dict)
