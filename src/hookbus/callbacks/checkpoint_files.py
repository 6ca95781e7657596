"""Where checkpoints go, and how a link to the newest one is made and a file removed."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from hookbus.errors import MisconfigurationException

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def local_directory(path: str | os.PathLike[str]) -> str:
    """``path`` as an absolute path without links and ``~``.

    Raises:
        MisconfigurationException: it is no path, or one on another machine.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise MisconfigurationException(f"dirpath must be a path, got {type(path).__name__}: {path!r}")
    path = os.fspath(path)
    if _REMOTE.match(path):
        raise MisconfigurationException(
            f"dirpath={path!r} is a remote location, and checkpoints are written to local folders; save locally and "
            "upload each file in the hook on_checkpoint_saved"
        )
    return os.path.realpath(os.path.expanduser(path))


def default_directory(trainer: Any) -> str:
    """``checkpoints`` in the folder of the first logger's run; without a logger, in the trainer's root folder."""
    if not trainer.loggers:
        return os.path.join(trainer.default_root_dir, "checkpoints")
    logger = trainer.loggers[0]
    root = logger.save_dir if logger.save_dir is not None else trainer.default_root_dir
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return os.path.join(root, str(logger.name), version, "checkpoints")


def link(target: str, path: str) -> None:
    """Make ``path`` a symbolic link to ``target``, in one step; a copy where links are not permitted."""
    beside = f"{path}.tmp"
    if os.path.lexists(beside):
        os.remove(beside)
    try:
        os.symlink(os.path.relpath(target, os.path.dirname(path)), beside)
    except OSError:  # Windows asks for a privilege
        shutil.copyfile(target, beside)
    os.replace(beside, path)


def points_to(path: str, target: str) -> bool:
    """Whether ``path`` is a symbolic link to ``target``."""
    return bool(path) and os.path.islink(path) and os.path.realpath(path) == os.path.realpath(target)


def remove(path: str) -> None:
    """Remove a checkpoint, be it a file or a folder; it may be gone already."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def as_yaml(scores: dict[str, float]) -> str:
    """A YAML mapping of paths to numbers."""
    import json

    if not scores:
        return "{}\n"
    special = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
    return "".join(f"{json.dumps(path)}: {special.get(repr(value), repr(value))}\n" for path, value in scores.items())
