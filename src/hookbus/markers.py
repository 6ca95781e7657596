"""The two markers: ``hookspec`` declares a lifecycle point, ``hookimpl`` implements one.

Both are pluggy's markers with more options. They write the same attributes as ``pluggy.HookspecMarker("hookbus")`` and
``pluggy.HookimplMarker("hookbus")``, so functions marked with pluggy's own markers work too. See
https://pluggy.readthedocs.io for what the options that pluggy has mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypedDict, TypeVar, overload

PROJECT: Final = "hookbus"

#: Who may own an implementation, in the order in which they are called unless a spec says otherwise.
OWNERS: Final = ("callback", "plugin", "default", "module", "datamodule")

#: What a run may be doing while a tap fires: training, validation (also as sanity check), test, prediction.
PHASES: Final = ("train", "val", "sanity", "test", "predict")

_F = TypeVar("_F", bound=Callable[..., Any])


class HookspecOptions(TypedDict):
    """What a lifecycle point declares about how its implementations are called and answered."""

    firstresult: bool
    historic: bool
    warn_on_impl: Warning | None
    warn_on_impl_args: Mapping[str, Warning] | None
    fold: str | None
    collect_errors: bool
    owners: tuple[str, ...]
    native_only: bool
    tap: bool


class HookimplOptions(TypedDict, total=False):
    """What an implementation declares: pluggy's six options, then hookbus's."""

    wrapper: bool
    hookwrapper: bool
    optionalhook: bool
    tryfirst: bool
    trylast: bool
    specname: str | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    every: int | None
    at: frozenset[int] | None
    once: bool
    when: Callable[..., object] | None
    rank_zero: bool
    modules: tuple[Any, ...] | None
    types: tuple[type, ...] | None
    phases: frozenset[str] | None
    edits: bool


@overload
def hookspec(function: _F) -> _F: ...
@overload
def hookspec(
    *,
    firstresult: bool = ...,
    historic: bool = ...,
    warn_on_impl: Warning | None = ...,
    warn_on_impl_args: Mapping[str, Warning] | None = ...,
    fold: str | None = ...,
    collect_errors: bool = ...,
    owners: tuple[str, ...] = ...,
    native_only: bool = ...,
    tap: bool = ...,
) -> Callable[[_F], _F]: ...
def hookspec(
    function: _F | None = None,
    *,
    firstresult: bool = False,
    historic: bool = False,
    warn_on_impl: Warning | None = None,
    warn_on_impl_args: Mapping[str, Warning] | None = None,
    fold: str | None = None,
    collect_errors: bool = False,
    owners: tuple[str, ...] = OWNERS,
    native_only: bool = False,
    tap: bool = False,
) -> _F | Callable[[_F], _F]:
    """Declare a lifecycle point.

    Args:
        function: the specification: its parameters are the hook's arguments, its docstring the hook's documentation.
        firstresult: stop at the first answer that is not None and return it alone.
        historic: remember each call and repeat it for implementations that are registered later.
        warn_on_impl: a warning to issue for each implementation.
        warn_on_impl_args: warnings to issue for implementations that take certain arguments.
        fold: the name of an argument that is handed on: each implementation gets what the one before returned (None
            means "unchanged"), and the call returns the last value.
        collect_errors: call every implementation even if one raises; the first error leaves, later ones are its notes.
        owners: the order among kinds of owners (see :data:`OWNERS`) for this hook.
        native_only: a Lightning-style ``Callback`` method of this name implements the hook only if it is marked with
            ``@hookimpl``; for lifecycle points that Lightning does not have.
        tap: a point inside the network: :mod:`hookbus.taps` calls its implementations module by module, and the options
            ``modules``, ``types``, ``phases`` and ``edits`` of ``hookimpl`` have a meaning for it.

    Raises:
        ValueError: for combinations that have no meaning (historic with firstresult or fold, fold with firstresult).
    """
    if historic and (firstresult or fold):
        raise ValueError("a historic hook has no single result: drop firstresult/fold, or historic")
    if fold and firstresult:
        raise ValueError("a fold returns the last value, firstresult the first one: choose one")
    if sorted(owners) != sorted(OWNERS):
        raise ValueError(f"owners must name each of {OWNERS} once, got {owners}")

    def mark(func: _F) -> _F:
        options: HookspecOptions = {
            "firstresult": firstresult,
            "historic": historic,
            "warn_on_impl": warn_on_impl,
            "warn_on_impl_args": warn_on_impl_args,
            "fold": fold,
            "collect_errors": collect_errors,
            "owners": owners,
            "native_only": native_only,
            "tap": tap,
        }
        setattr(func, f"{PROJECT}_spec", options)
        return func

    return mark if function is None else mark(function)


@overload
def hookimpl(function: _F) -> _F: ...
@overload
def hookimpl(
    *,
    wrapper: bool = ...,
    hookwrapper: bool = ...,
    optionalhook: bool = ...,
    tryfirst: bool = ...,
    trylast: bool = ...,
    specname: str | None = ...,
    before: str | Collection[str] = ...,
    after: str | Collection[str] = ...,
    every: int | None = ...,
    at: int | Collection[int] | None = ...,
    once: bool = ...,
    when: Callable[..., object] | None = ...,
    rank_zero: bool = ...,
    modules: str | Collection[str] | None = ...,
    types: type | Collection[type] | None = ...,
    phases: str | Collection[str] | None = ...,
    edits: bool = ...,
) -> Callable[[_F], _F]: ...
def hookimpl(
    function: _F | None = None,
    *,
    wrapper: bool = False,
    hookwrapper: bool = False,
    optionalhook: bool = False,
    tryfirst: bool = False,
    trylast: bool = False,
    specname: str | None = None,
    before: str | Collection[str] = (),
    after: str | Collection[str] = (),
    every: int | None = None,
    at: int | Collection[int] | None = None,
    once: bool = False,
    when: Callable[..., object] | None = None,
    rank_zero: bool = False,
    modules: str | Collection[str] | None = None,
    types: type | Collection[type] | None = None,
    phases: str | Collection[str] | None = None,
    edits: bool = False,
) -> _F | Callable[[_F], _F]:
    """Mark a function as the implementation of the hook of the same name.

    The function names the arguments that it wants, in any order. The filters combine: an implementation runs when each
    of them says yes.

    Args:
        function: the implementation.
        wrapper: a generator with one ``yield``: what stands before it runs before the other implementations, what
            follows after them; ``yield`` gives the result (or raises), ``return`` replaces it.
        hookwrapper: pluggy's old form of ``wrapper``, whose ``yield`` gives a ``pluggy.Result``.
        optionalhook: it is no error if no such hook exists.
        tryfirst: run before those without this option.
        trylast: run after those without this option.
        specname: implement the hook of this name instead of the function's own.
        before: names of plugins before whose implementations this one runs; absent plugins do not matter.
        after: names of plugins after whose implementations this one runs; absent plugins do not matter.
        every: run at every N-th call of the hook: the N-th, the 2N-th, ...
        at: run at these calls of the hook only, counted from 1.
        once: run at the first call that the other filters let through, and never again.
        when: run when this predicate is true; it names the hook's arguments that it wants, as an implementation does.
        rank_zero: run on the process of global rank 0 only.
        modules: for taps: the modules of the network, by name or pattern: ``"encoder.layers.*.mlp"``; None for all.
        types: for taps: their classes.
        phases: for taps: some of :data:`PHASES`; None for all.
        edits: for taps: what the implementation returns takes the place of what it was given.

    For taps ``every``, ``at`` and ``once`` count optimiser steps (batches, in an evaluation), not calls.

    Raises:
        TypeError: ``types`` has something that is no class.
        ValueError: ``every`` or ``at`` below 1, an unknown phase, or options that exclude each other.

    Example:
        >>> from hookbus import hookimpl
        >>> class LossPrinter:
        ...     @hookimpl(every=100, rank_zero=True)
        ...     def on_train_batch_end(self, outputs, batch_idx):
        ...         print(batch_idx, outputs["loss"].item())
    """
    calls = None if at is None else frozenset([at] if isinstance(at, int) else at)
    if every is not None and every < 1:
        raise ValueError(f"every must be a number of calls of at least 1, got {every}")
    if calls is not None and (not calls or min(calls) < 1):
        raise ValueError(f"at must name calls counted from 1, got {at}")
    if wrapper and hookwrapper:
        raise ValueError("wrapper and hookwrapper are two forms of one thing: use wrapper=True alone")
    if tryfirst and trylast:
        raise ValueError("tryfirst and trylast exclude each other")
    kinds = None if types is None else (types,) if isinstance(types, (type, str)) else tuple(types)
    for kind in kinds or ():
        if not isinstance(kind, type):
            raise TypeError(f"types must be classes, such as torch.nn.Linear, got {kind!r} ({type(kind).__name__})")
    wanted = None if phases is None else frozenset([phases] if isinstance(phases, str) else phases)
    if wanted is not None and not wanted <= set(PHASES):
        raise ValueError(f"phases must be some of {', '.join(PHASES)}; got {phases!r}")

    def mark(func: _F) -> _F:
        options: HookimplOptions = {
            "wrapper": wrapper,
            "hookwrapper": hookwrapper,
            "optionalhook": optionalhook,
            "tryfirst": tryfirst,
            "trylast": trylast,
            "specname": specname,
            "before": (before,) if isinstance(before, str) else tuple(before),
            "after": (after,) if isinstance(after, str) else tuple(after),
            "every": every,
            "at": calls,
            "once": once,
            "when": when,
            "rank_zero": rank_zero,
            "modules": None if modules is None else (modules,) if isinstance(modules, str) else tuple(modules),
            "types": kinds,
            "phases": wanted,
            "edits": edits,
        }
        setattr(func, f"{PROJECT}_impl", options)
        return func

    return mark if function is None else mark(function)
