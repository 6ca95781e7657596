"""The compiled hot path: one function per hook that calls each implementation with exactly the arguments it names.

A hook with the arguments ``trainer, loss`` and two implementations, of which one takes the loss alone, becomes ::

    def on_before_backward(trainer, loss):
        _results = []
        _value = (_call := <ema.on_before_backward>)(loss)
        if _value is not None: _results.append(_value)
        ...
        return _results

The function object stays the same for the life of the hook, so that a reference to it never goes stale: a change of
the implementations only swaps its ``__code__``, first for a stub that compiles at the next call. A call that is
running keeps the code that it began with, hence the set of implementations, as pluggy's copy of its list does.
Implementations stand in ``co_consts``, not in a namespace, so that they are released with the code that calls them.

What the code does must equal what pluggy's own loop does with the same implementations
(``tests/bus/test_dispatch_properties.py`` compares the two on random ones).
"""

from __future__ import annotations

import itertools
import linecache
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hookbus.bus.errors import raise_first
from hookbus.bus.wrappers import enter, leave

_GLOBALS = {"enter": enter, "leave": leave, "raise_first": raise_first, "__name__": "hookbus.bus.compiled"}
_serial = itertools.count(1)


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

    def source(self, constant: str) -> str:
        """The call as source text, with ``constant`` standing for the function."""
        given = ", ".join([*self.args, *(f"{name}={name}" for name in self.keywords)])
        # The walrus keeps the compiler from warning that a string is not callable; it costs one local store.
        return f"(_call := {constant!r})({given})"

    @property
    def comment(self) -> str:
        """What a traceback shows beside the call."""
        return f"  # {self.plugin}  {self.location}"


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


def stable_function(shape: Shape, defaults: tuple[Any, ...], compile_now: Callable[[], None]) -> types.FunctionType:
    """The function of a hook for all its life; it begins as a stub that calls ``compile_now`` first."""
    clash = [name for name in shape.parameters if name.startswith("_") or name in _GLOBALS]
    if clash:
        raise ValueError(f"hook {shape.name!r}: argument name(s) {', '.join(clash)} are reserved, choose others")
    namespace: dict[str, Any] = {}
    source = f"def {shape.name}({', '.join(shape.parameters)}): pass"
    exec(compile(source, f"<hookbus {shape.name}>", "exec"), _GLOBALS, namespace)
    function: types.FunctionType = namespace[shape.name]
    function.__defaults__ = defaults or None
    stub(function, shape, compile_now)
    return function


def stub(function: types.FunctionType, shape: Shape, compile_now: Callable[[], None]) -> None:
    """Let the next call of ``function`` compile it first."""
    given = ", ".join(shape.parameters)
    body = ["(_call := '#compile')()", f"return (_call := '#self')({given})"]
    _swap(function, shape, body, {"#compile": compile_now, "#self": function})


def compile_calls(function: types.FunctionType, shape: Shape, calls: Sequence[Call]) -> None:
    """Let ``function`` call ``calls`` in their order."""
    constants = {f"#{i}": call.function for i, call in enumerate(calls)}
    wrappers = [(f"#{i}", call) for i, call in enumerate(calls) if call.wrapper]
    inner = [(f"#{i}", call) for i, call in enumerate(calls) if not call.wrapper]
    if shape.fold:
        setup, result = [], shape.fold
    elif shape.firstresult:
        setup, result = ["_value = None"] if wrappers or shape.collect_errors or not inner else [], "_value"
    else:
        setup, result = ["_results = []"], "_results"
    if wrappers:
        lines = [line for constant, call in wrappers for line in [f"enter(_entered, {call.source(constant)}){call.comment}"]]
        body = [
            *("_failure = None", "_entered = []", *setup, "try:"),
            *(f"    {line}" for line in [*lines, *_inner(shape, inner)]),
            *("except BaseException as _error:", "    _failure = _error"),
            f"return leave(_entered, {result}, _failure)",
        ]
    elif shape.firstresult and not shape.collect_errors and inner:
        body = [*_inner(shape, inner), "return _value"]
    else:
        body = [*setup, *_inner(shape, inner), f"return {result}"]
    _swap(function, shape, body, constants)


def compile_fallback(function: types.FunctionType, shape: Shape, execute: Callable[[dict[str, Any]], Any]) -> None:
    """Let ``function`` hand its arguments to ``execute`` as a dictionary: pluggy's own, plain way."""
    given = ", ".join(f"{name!r}: {name}" for name in shape.parameters)
    _swap(function, shape, [f"return (_call := '#execute')({{{given}}})"], {"#execute": execute})


def _inner(shape: Shape, calls: Sequence[tuple[str, Call]]) -> list[str]:
    """The lines that call the implementations which are no wrappers."""
    lines: list[str] = []
    for number, (constant, call) in enumerate(calls):
        source = call.source(constant)
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
        elif shape.firstresult and call.silent:
            block = ["_value = None", *block]
        lines += block
    if shape.collect_errors:
        lines = ["_errors = []", *lines, "raise_first(_errors)"]
    return lines or ["pass"]


def _swap(function: types.FunctionType, shape: Shape, body: Sequence[str], constants: dict[str, Any]) -> None:
    """Compile ``body`` with objects in place of the placeholder strings, and make it the code of ``function``."""
    filename = f"<hookbus {shape.name} {next(_serial)}>"
    source = f"def {shape.name}({', '.join(shape.parameters)}):\n" + "".join(f"    {line}\n" for line in body)
    module_code = compile(source, filename, "exec")
    code = next(c for c in module_code.co_consts if isinstance(c, types.CodeType))
    consts = tuple(constants.get(c, c) if isinstance(c, str) else c for c in code.co_consts)
    linecache.cache.pop(function.__code__.co_filename, None)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    function.__code__ = code.replace(co_consts=consts)


def forget_source(function: types.FunctionType) -> None:
    """Drop the source text that tracebacks show, when a hook goes out of use."""
    linecache.cache.pop(function.__code__.co_filename, None)


def blame(error: BaseException) -> tuple[str, str] | None:
    """The hook and the plugin out of whose implementation ``error`` came, innermost; None if it came from none.

    Found by walking the traceback to the last compiled frame, so that nothing need be recorded while all is well.
    """
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<hookbus "):
            line = linecache.getline(code.co_filename, trace.tb_lineno)
            _, mark, comment = line.partition("  # ")
            if mark:
                found = (code.co_name, comment.split("  ")[0])
        trace = trace.tb_next
    return found
