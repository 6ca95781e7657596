"""The compiled hot path: one function per hook that calls each implementation with exactly the arguments it names.

A hook with the arguments ``trainer, loss`` and two implementations, of which one takes the loss alone, becomes ::

    def on_before_backward(trainer, loss):
        _results = []
        _value = _0(loss)  # ema  ema.py:12
        if _value is not None: _results.append(_value)
        ...
        return _results

The function object stays the same for the life of the hook, so that a reference to it never goes stale: a change of
the implementations only swaps its ``__code__``, first for a stub that compiles at the next call, or, where nobody
is left, for code that answers at once. A call that is running keeps the code that it began with, hence the set of
implementations, as pluggy's copy of its list does.

The names that the code calls (``_7_0`` for the first in the seventh code, ``_0`` in the text that tracebacks show)
stand in the function's own globals and are removed when that code is gone: implementations are released with the last
call that uses them. (As constants of the code they would be out of sight of the garbage collector, which does not look
into code objects: no bus that was ever used could be freed.)

What the code does must equal what pluggy's own loop does with the same implementations
(``tests/bus/test_dispatch_properties.py`` compares the two on random ones).
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookbus.bus.errors import raise_first
from hookbus.bus.wrappers import enter, leave

_serial = itertools.count(1)
_COMMENT = "  # "


@dataclass(frozen=True)
class Call:
    """One implementation as the compiler sees it, in call order.

    Attributes:
        plugin: the plugin's name, for tracebacks.
        function: what is called.
        args: names of arguments passed by position.
        keywords: names of arguments passed by keyword.
        wrapper: a generator function that runs around the others.
        silent: the return value does not count.
        location: ``file:line`` of the implementation, for tracebacks.
    """

    plugin: str
    function: Callable[..., Any]
    args: tuple[str, ...]
    keywords: tuple[str, ...]
    wrapper: bool
    silent: bool
    location: str

    def source(self, name: str) -> str:
        """The call as source text, ``name`` standing for the function."""
        given = ", ".join([*self.args, *(f"{word}={word}" for word in self.keywords)])
        return f"{name}({given})"

    @property
    def comment(self) -> str:
        """What a traceback shows beside the call."""
        text = f"{self.plugin}  {self.location}"
        if not text.isprintable():
            text = "".join(char if char.isprintable() else "?" for char in text)  # one line, whatever the name
        return _COMMENT + text


@dataclass(frozen=True)
class Shape:
    """How a hook is called and answered.

    Attributes:
        name: the hook's name.
        parameters: names of its arguments in order.
        firstresult: the first answer that is not None is the result, and ends the call.
        fold: the argument that each implementation replaces by what it returns.
        collect_errors: call all implementations, then raise the first error.
    """

    name: str
    parameters: tuple[str, ...]
    firstresult: bool = False
    fold: str | None = None
    collect_errors: bool = False


def stable_function(
    shape: Shape, first: types.CodeType, defaults: tuple[Any, ...], compile_now: Callable[[], None]
) -> types.FunctionType:
    """The function of a hook for all its life; its ``first`` code is the stub, which calls ``compile_now``."""
    namespace: dict[str, Any] = {"__name__": __name__, "_enter": enter, "_leave": leave, "_raise_first": raise_first}
    function = types.FunctionType(first, namespace, shape.name, defaults or None)
    namespace.update(_compile=compile_now, _self=function)
    return function


def stub(shape: Shape) -> types.CodeType:
    """Code that compiles the hook, then calls it; that of a stable function whose implementations have changed."""
    body = ["_compile()", f"return _self({', '.join(shape.parameters)})"]
    return _compiled(shape, body, f"<hookbus {shape.name}>", {})


def idle(shape: Shape) -> types.CodeType:
    """The code of a hook that nobody implements; it is the same for all of the same shape."""
    return _compiled(shape, _nothing(shape), f"<hookbus {shape.name}>", {})


def compile_calls(function: types.FunctionType, shape: Shape, calls: Sequence[Call]) -> None:
    """Let ``function`` call ``calls`` in their order."""
    names = {f"_{i}": call for i, call in enumerate(calls)}
    wrappers = [(name, call) for name, call in names.items() if call.wrapper]
    inner = [(name, call) for name, call in names.items() if not call.wrapper]
    if shape.fold:
        setup, result = [], shape.fold
    elif shape.firstresult:
        setup, result = ["_value = None"], "_value"
    else:
        setup, result = ["_results = []"], "_results"
    if wrappers:
        body = [
            *("_failure = None", "_entered = []", *setup, "try:"),
            *(f"    _enter(_entered, {call.source(name)}){call.comment}" for name, call in wrappers),
            *(f"    {line}" for line in _inner(shape, inner)),
            *("except BaseException as _error:", "    _failure = _error"),
            *("try:", f"    return _leave(_entered, {result}, _failure)"),
            # Else this frame and the exception would keep each other, and all their tensors, alive.
            *("finally:", "    _failure = None"),
        ]
    elif inner:
        body = [*setup, *_inner(shape, inner), f"return {result}"]
    else:
        body = _nothing(shape)
    _install(function, shape, body, [call.function for call in calls])


def compile_fallback(function: types.FunctionType, shape: Shape, execute: Callable[[dict[str, Any]], Any]) -> None:
    """Let ``function`` hand its arguments to ``execute`` as a dictionary: pluggy's own, plain way."""
    given = ", ".join(f"{name!r}: {name}" for name in shape.parameters)
    _install(function, shape, [f"return _0({{{given}}})"], [execute])


def _nothing(shape: Shape) -> list[str]:
    return [f"return {shape.fold or ('None' if shape.firstresult else '[]')}"]


def _inner(shape: Shape, calls: Sequence[tuple[str, Call]]) -> list[str]:
    """The lines that call the implementations which are no wrappers."""
    lines: list[str] = []
    for number, (name, call) in enumerate(calls):
        source = call.source(name)
        if call.silent:
            block = [f"{source}{call.comment}"]
        elif shape.fold:
            block = [f"_value = {source}{call.comment}", f"if _value is not None: {shape.fold} = _value"]
        elif shape.firstresult:
            block = [f"_value = {source}{call.comment}"]
        else:
            block = [f"_value = {source}{call.comment}", "if _value is not None: _results.append(_value)"]
        if shape.collect_errors:
            block = ["try:", *(f"    {line}" for line in block), "except BaseException as _e: _errors.append(_e)"]
        if shape.firstresult and number:  # an answer that is there already ends the search
            block = ["if _value is None:", *(f"    {line}" for line in block)]
        lines += block
    if shape.collect_errors:
        lines = ["_errors = []", *lines, "_raise_first(_errors)"]
    return lines or ["pass"]


def _compiled(shape: Shape, body: Iterable[str], filename: str, names: Mapping[str, str]) -> types.CodeType:
    """The code of ``body``, in which ``names`` stand for others.

    Compiling takes far longer than the rest of making a hook callable, and most hooks look like others: the code is taken
    from a template, in which only names are to be replaced.
    """
    template = _template(shape.parameters, tuple(body))
    own: dict[str, Any] = {"co_filename": filename, "co_name": shape.name}
    if sys.version_info >= (3, 11):
        own["co_qualname"] = shape.name
    return template.replace(co_names=tuple(names.get(name, name) for name in template.co_names), **own)


@functools.lru_cache(maxsize=1024)
def _template(parameters: tuple[str, ...], body: tuple[str, ...]) -> types.CodeType:
    module = compile(_text(Shape("template", parameters), body), "<hookbus template>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, types.CodeType))


def _text(shape: Shape, body: Iterable[str]) -> str:
    return f"def {shape.name}({', '.join(shape.parameters)}):\n" + "".join(f"    {line}\n" for line in body)


def _install(
    function: types.FunctionType, shape: Shape, body: Sequence[str], functions: Sequence[Callable[..., Any]]
) -> None:
    """Make ``body`` the code of ``function``, in which ``_0``, ``_1``, … are ``functions`` for as long as it lives."""
    serial = next(_serial)
    filename = f"<hookbus {shape.name} {serial}>"
    names = {f"_{i}": f"_{serial}_{i}" for i in range(len(functions))}
    code = _compiled(shape, [line.partition(_COMMENT)[0] for line in body], filename, names)
    function.__globals__.update(zip(names.values(), functions, strict=True))
    linecache.cache[filename] = _Source(filename, shape, body)
    _guards[filename] = weakref.ref(code, functools.partial(_release, weakref.ref(function), names.values(), filename))
    function.__code__ = code


#: Each waits for the end of a code object.
_guards: dict[str, weakref.ref[types.CodeType]] = {}


def _release(
    function: weakref.ref[types.FunctionType], names: Iterable[str], filename: str, _: weakref.ref[types.CodeType]
) -> None:
    """Forget what belonged to a code object that is no more."""
    _guards.pop(filename, None)
    linecache.cache.pop(filename, None)
    owner = function()
    if owner is not None:
        for name in names:
            owner.__globals__.pop(name, None)


class _Source(tuple[Any, ...]):
    """The text of a code object as ``linecache`` keeps it for tracebacks, put together only when one is shown."""

    _parts: tuple[Shape, Sequence[str]]

    def __new__(cls, filename: str, shape: Shape, body: Sequence[str]) -> _Source:
        source = super().__new__(cls, (0, None, (), filename))  # a time of None: never out of date
        source._parts = shape, body
        return source

    def __getitem__(self, index: Any) -> Any:
        return _text(*self._parts).splitlines(keepends=True) if index == 2 else super().__getitem__(index)


def running_hook(skip: int = 0) -> str | None:
    """The name of the hook from inside whose implementation this is called, innermost; None outside of any.

    Found by walking up the stack to the nearest compiled frame, so that calling a hook need not note its name.

    Args:
        skip: callers of the caller that are known to be no hook.
    """
    frame: types.FrameType | None = sys._getframe(1 + skip)
    while frame is not None:
        if frame.f_code.co_filename[:9] == "<hookbus ":  # a third faster than startswith, for each self.log
            return frame.f_code.co_name
        frame = frame.f_back
    return None


@dataclass(frozen=True)
class RunningCall:
    """A call of a hook that is not over, seen from inside one of its implementations.

    Attributes:
        hook: the hook's name.
        plugin: whose implementation is running.
        arguments: what the hook was called with, by name.
    """

    hook: str
    plugin: str
    arguments: dict[str, Any]


def running_call() -> RunningCall | None:
    """The call from inside whose implementation this is called, innermost; None outside of any."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename[:9] == "<hookbus ":
            plugin, _ = _comment(linecache.getline(code.co_filename, frame.f_lineno))
            arguments = {name: frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]}
            return RunningCall(code.co_name, plugin, arguments)
        frame = frame.f_back
    return None


def blame(error: BaseException) -> tuple[str, str] | None:
    """The hook and the plugin out of whose implementation ``error`` came, innermost; None if it came from none.

    Found in the traceback and the source text of the compiled code, so that nothing need be recorded while all is well.
    Calls that take pluggy's plain way (a hook without specification, an old-style wrapper, hookcall monitoring) leave
    no such trace.
    """
    found = None
    around: tuple[str, dict[str, str]] | None = None  # the hook whose wrappers are being left, by their location
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<hookbus "):
            plugin, _ = _comment(linecache.getline(code.co_filename, trace.tb_lineno))
            rows = [_comment(line) for line in linecache.getlines(code.co_filename)]
            around = None if plugin else (code.co_name, {location: name for name, location in rows if name})
            found = (code.co_name, plugin) if plugin else found
        elif around is not None:
            plugin = around[1].get(f"{code.co_filename}:{code.co_firstlineno}", "")
            found = (around[0], plugin) if plugin else found
        trace = trace.tb_next
    return found


def _comment(line: str) -> tuple[str, str]:
    """Plugin and location as :attr:`Call.comment` wrote them; empty if the line has none."""
    plugin, _, location = line.partition(_COMMENT)[2].rstrip("\n").partition("  ")
    return plugin, location
