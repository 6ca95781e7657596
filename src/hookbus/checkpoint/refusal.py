"""Why a checkpoint is not read: what in it could do harm, and what a user can do about the rest."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final

from hookbus.checkpoint import outline

StandIn = outline.Named | type[outline.Named]

# fmt: off
#: Modules with functions by which a file could do harm, and what is harmless in them: what pickles make of ordinary objects.
_HARMFUL: Final = frozenset({
    "os", "posix", "nt", "sys", "io", "_io", "subprocess", "commands", "shutil", "socket", "runpy", "importlib", "imp",
    "pty", "ctypes", "code", "codeop", "pickle", "_pickle", "cPickle", "marshal", "types", "builtins", "__builtin__",
    "operator", "_operator", "functools", "_functools", "itertools", "multiprocessing", "threading", "thread", "_thread",
    "webbrowser", "urllib", "urllib2", "http", "httplib", "requests", "torch.hub", "torch.utils.cpp_extension",
    "numpy.testing", "pip", "pdb", "bdb", "timeit", "cProfile", "profile", "trace", "asyncio", "concurrent", "copy_reg",
    "copyreg", "pydoc", "doctest", "site", "venv", "ensurepip",
})
_HARMLESS: Final = frozenset({
    "object", "frozenset", "range", "slice", "list", "dict", "tuple", "int", "float", "str", "bool", "bytes",
    "functools.partial", "types.SimpleNamespace", "io.BytesIO", "io.StringIO", "_io.BytesIO", "_io.StringIO",
    "copyreg._reconstructor", "copyreg.__newobj__", "copy_reg._reconstructor", "copy_reg.__newobj__",
})
# fmt: on


def runs_code(value: outline.Named | type[outline.Named]) -> bool:
    """Whether a stand-in is of something by which a file could do harm."""
    module, _, function = value.name.rpartition(".")
    if module not in _HARMFUL and module.partition(".")[0] not in _HARMFUL:
        return False
    if value.name in _HARMLESS or (module in ("builtins", "__builtin__") and function in _HARMLESS):
        return False
    if function == "getattr" and len(value.arguments) == 2:  # so pickles hold the methods of classes and objects
        owner, name = value.arguments
        stands_in = isinstance(owner, outline.Named) or (isinstance(owner, type) and issubclass(owner, outline.Named))
        return not stands_in or not isinstance(name, str) or name.startswith("_") or runs_code(owner)
    return True


def of_objects(path: str, found: Sequence[tuple[str, StandIn]]) -> str:
    """The message for a file with objects that are not plain data.

    To allow a class is advised only where that is enough, and where it lets a file do no more than make such objects:
    never for functions, and for nothing that calls functions.

    Args:
        path: the file.
        found: stand-ins and where they are.
    """
    whole = [(place, value) for place, value in found if "(…)" not in place and ".state" not in place] or list(found)
    places = [f"{_described(value)} at checkpoint{place}{_hyper_parameter(place)}" for place, value in whole[:5]]
    more = f" and {len(whole) - 5} more" if len(whole) > 5 else ""
    if all(_may_be_allowed(value) for _, value in found):
        names = sorted({_short(value.name) for _, value in found})
        advice = (
            "If you trust the file, allow them before it is loaded: "
            f"torch.serialization.add_safe_globals([{', '.join(names)}]), or pass weights_only=False"
        )
    else:
        advice = (
            "Functions should not be allowed one by one, as any file could then call them: if you trust this file, pass "
            "weights_only=False; in the next one, save the name (a string) and look the function up by it"
        )
    return f"{path!r} holds objects that are not plain data; nothing was run to make them: {'; '.join(places)}{more}. {advice}"


def _hyper_parameter(place: str) -> str:
    match = re.match(r"\['(?:datamodule_)?hyper_parameters'\]\[('[^']*')\]", place)
    return f" (the hyper-parameter {match[1]})" if match else ""


def _described(value: StandIn) -> str:
    """What a stand-in is of, as its user would call it: what is looked up in a class or module, not the looking up."""
    if value.name.rpartition(".")[2] == "getattr" and isinstance(value, outline.Named) and len(value.arguments) == 2:
        owner, name = value.arguments
        return f"{getattr(owner, 'name', type(owner).__name__)}.{name}"
    return _short(value.name)


def _short(name: str) -> str:
    return re.sub(r"^(builtins|__builtin__|__main__)\.", "", name)


def _may_be_allowed(value: StandIn) -> bool:
    """Whether it is of a class, as far as can be told without importing anything, and one that calls no functions."""
    module, _, name = value.name.rpartition(".")
    if module in ("builtins", "__builtin__"):
        return name in _HARMLESS
    if value.name == "types.SimpleNamespace":
        return True
    if module.partition(".")[0] in _HARMFUL or module in _HARMFUL:
        return False
    known: Any = getattr(sys.modules.get(module), name, None)
    return isinstance(known, type) if known is not None else isinstance(value, outline.Named)
