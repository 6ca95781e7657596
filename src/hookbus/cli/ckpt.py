"""``hookbus ckpt inspect FILE`` and ``hookbus ckpt verify FILE|DIR``: what stands in a checkpoint, and whether it is whole.

Neither loads a checkpoint: no class that a file names is imported, and torch is not needed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from hookbus.checkpoint import archive, outline, store
from hookbus.checkpoint.errors import CheckpointError
from hookbus.checkpoint.outline import Named, TensorOutline
from hookbus.cli.output import complain, heading, say, say_json, table
from hookbus.cli.parser import Parser, UsageError

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_REPEATS, _DEPTH = 1000, 100  # so often, and so deep, JSON shows one list


def ckpt(argv: Sequence[str], _early: Sequence[str] = ()) -> int:
    """Run ``hookbus ckpt``; no plugin takes part.

    Returns:
        0 if all files are whole, 1 if one is not, or cannot be checked.
    """
    parser = Parser("ckpt", "Look into checkpoints without loading them.")
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_ActionParser)
    inspect = commands.add_parser("inspect", help="show keys, shapes, sizes, progress and plugins of a file")
    inspect.add_argument("file", help="the checkpoint")
    inspect.add_argument("--tensors", action="store_true", help="list every tensor")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    verify = commands.add_parser("verify", help="read files and compare them with their checksums")
    verify.add_argument("paths", nargs="+", metavar="FILE|DIR", help="files, or folders of *.ckpt files")
    verify.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(list(argv))
    if options.action == "verify":
        return _verify(options.paths, as_json=options.json)
    return _inspect(options.file, tensors=options.tensors, as_json=options.json)


class _ActionParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


# -- verify --------------------------------------------------------------------------------------------------------------


def _verify(paths: Sequence[str], *, as_json: bool) -> int:
    found = [_verdict(file) for path in paths for file in _files(path)]
    if as_json:
        say_json(found)
    else:
        table([(row["status"], _plain(row["file"]), _plain(row["what"])) for row in found])
    return int(any(row["status"] != "whole" for row in found))


def _files(path: str) -> list[str]:
    if store.is_remote(path) or os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise UsageError(f"there is no file or folder {path!r}")
    files = store.in_folder(path)
    if not files:
        raise UsageError(f"there is no checkpoint (*.ckpt) in the folder {path!r}")
    return files


def _verdict(path: str) -> dict[str, str]:
    try:
        with store.local(path) as file:
            sealed, bare = archive.check(file), outline.is_bare_pickle(file)
            size = _size(os.path.getsize(file))
    except CheckpointError as error:
        return {"file": path, "status": "damaged", "what": str(error)}
    except (OSError, ImportError) as error:
        return {"file": path, "status": "unread", "what": str(error)}
    if bare:
        return {"file": path, "status": "unknown", "what": f"{size}, torch's format from before 1.6, without checksums"}
    what = (
        f"{size}, sealed"
        if sealed
        else f"{size}, without a seal (not written by hookbus): only its records were checked"
    )
    return {"file": path, "status": "whole", "what": what}


# -- inspect -------------------------------------------------------------------------------------------------------------


def _inspect(path: str, *, tensors: bool, as_json: bool) -> int:
    if not store.is_remote(path) and not os.path.exists(path):
        raise UsageError(f"there is no file {path!r}")
    try:
        with store.local(path) as file:
            sealed = archive.check(file, contents=False)
            content, size, written = outline.read(file), os.path.getsize(file), os.path.getmtime(file)
    except (CheckpointError, OSError, ImportError) as error:
        complain(_plain(str(error)))
        return 1
    if as_json:
        say_json({"file": path, "bytes": size, "sealed": sealed, "content": _as_json(content)})
        return 0
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written))
    say(f"{path}: {_size(size)}, written {when}, {'sealed' if sealed else 'without a seal'}")
    _show_progress(content)
    say()
    rows = [(_plain(str(key)), _bytes_of(value), _plain(_summary(value))) for key, value in content.items()]
    table(rows, ("key", "size", "content"))
    _show_plugins(content)
    _show_named(content)
    if tensors:
        heading("\ntensors")
        table([(_plain(place), str(found), _size(found.bytes)) for place, found in _tensors(content)], indent=2)
    return 0


def _show_progress(content: Mapping[Any, Any]) -> None:
    own = content.get("hookbus")
    own = own if isinstance(own, dict) else {}
    written_by = (
        f"Lightning's keys of {content['pytorch-lightning_version']}" if "pytorch-lightning_version" in content else ""
    )
    versions = own.get("versions")
    if isinstance(versions, dict):
        written_by = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if written_by:
        say(_plain(f"written by: {written_by}"))
    progress = own.get("progress")
    if isinstance(progress, dict):
        where = "inside an epoch" if progress.get("epoch_started") else "between epochs"
        text = f"progress: epoch {progress.get('epoch')}, step {progress.get('global_step')}, {where}"
        say(_plain(text + (f" after batch {progress.get('batch_trained')}" if progress.get("epoch_started") else "")))
    elif "global_step" in content:
        say(_plain(f"progress: epoch {content.get('epoch')}, step {content['global_step']}"))
    if content and "optimizer_states" not in content:
        say("weights only: it can be tested and loaded, training cannot resume from it")


def _show_plugins(content: Mapping[Any, Any]) -> None:
    own = content.get("hookbus")
    plugins = own.get("plugins") if isinstance(own, dict) else None
    if not isinstance(plugins, list) or not all(isinstance(entry, dict) for entry in plugins):
        return
    states = content.get("callbacks")
    states = states if isinstance(states, dict) else {}
    rows = []
    for entry in plugins:
        if entry.get("owner") in ("module", "datamodule"):
            continue
        version = " ".join(str(entry.get(key) or "") for key in ("distribution", "version")).strip()
        state = _bytes_of(states[entry["state_key"]]) if entry.get("state_key") in states else ""
        words = [str(entry.get("name")), str(entry.get("role")), version, str(entry.get("class"))]
        rows.append((*map(_plain, words), state))
    if rows:
        heading("\nplugins, in order")
        table(rows, ("name", "role", "version", "class", "state"), indent=2)
    kept = sorted(map(str, states.keys() - {entry.get("state_key") for entry in plugins}))
    if kept:
        say(_plain(f"states of plugins that were absent: {', '.join(kept)}"))


def _show_named(content: Mapping[Any, Any]) -> None:
    named = sorted({value.name for _, value in _walk(content) if isinstance(value, Named)})
    if named:
        heading("\nobjects that are not plain data")
        for name in named:
            say(f"  {_plain(name)}")


def _summary(value: Any) -> str:
    """One line about a value."""
    tensors = list(_tensors(value))
    if isinstance(value, TensorOutline):
        return str(value)
    if isinstance(value, dict):
        count = f"{len(tensors)} tensors" if tensors else ""
        keys = ", ".join(map(str, list(value)[:4])) + (", …" if len(value) > 4 else "")
        return f"{len(value)} entries{': ' if keys else ''}{keys}{f' ({count})' if count else ''}"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} items" + (f" ({len(tensors)} tensors)" if tensors else "")
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _walk(content: Any) -> list[tuple[str, Any]]:
    """Everything in a value that is no container, with the way to it; what stands in two places, once."""
    found, stack, seen = [], [("", content)], set()
    while stack:
        place, value = stack.pop()
        if isinstance(value, (dict, list, tuple)):
            if id(value) in seen:
                continue
            seen.add(id(value))
            items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
            stack += [(f"{place}.{key}" if place else str(key), item) for key, item in reversed(items)]
        else:
            found.append((place, value))
    return found


def _tensors(value: Any) -> list[tuple[str, TensorOutline]]:
    return [(place, found) for place, found in _walk(value) if isinstance(found, TensorOutline)]


def _bytes_of(value: Any) -> str:
    storages = {found.storage.key: found.storage.bytes for _, found in _tensors(value)}
    return _size(sum(storages.values())) if storages else ""


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def _plain(text: str) -> str:
    """Text without characters that would steer a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _as_json(value: Any, written: dict[int, int] | None = None, depth: int = 0) -> Any:
    """A value for ``json``; a file may refer to one list so often that writing it out would never end."""
    written = {} if written is None else written
    if isinstance(value, TensorOutline):
        return {"dtype": value.dtype, "shape": list(value.shape), "bytes": value.bytes}
    if isinstance(value, (dict, list, tuple, set)) and value:
        written[id(value)] = written.get(id(value), 0) + 1
        if written[id(value)] > _REPEATS or depth > _DEPTH:
            return "…"
    if isinstance(value, dict):
        return {str(key): _as_json(item, written, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_as_json(item, written, depth + 1) for item in value]
    return value if isinstance(value, (type(None), bool, int, float, str)) else repr(value)
