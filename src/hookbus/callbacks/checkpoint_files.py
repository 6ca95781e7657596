"""Where checkpoints go, and which files may be removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from dataclasses import dataclass, field
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


def points_to(path: str, target: str) -> bool:
    """Whether ``path`` is a symbolic link to ``target``."""
    return bool(path) and os.path.islink(path) and os.path.realpath(path) == os.path.realpath(target)


def remove(path: str) -> None:
    """Remove a checkpoint, be it a file or a folder; it may be gone already. That it cannot be removed is a warning."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)
    except OSError as error:  # full disks and lost permissions must not end a training that goes well
        warnings.warn(f"the checkpoint {path!r} could not be removed: {error}", RuntimeWarning, stacklevel=3)


@dataclass
class OwnFiles:
    """The files that a run wrote, and may therefore remove."""

    _paths: set[str] = field(default_factory=set)

    def add(self, *paths: str) -> None:
        """Note files that were written; empty paths do not count."""
        self._paths.update(os.path.abspath(path) for path in paths if path)

    def may_remove(self, path: str, *, successor: str, resumed: str | None) -> bool:
        """Whether ``path`` may go.

        Args:
            path: the file.
            successor: the file that takes its place; it must be there.
            resumed: the file from which the run was resumed, which stays.
        """
        if os.path.abspath(path) not in self._paths or os.path.abspath(path) == os.path.abspath(successor):
            return False
        if resumed is not None and os.path.realpath(resumed) == os.path.realpath(path):
            return False
        return os.path.exists(successor)


def holds_checkpoints(folder: str, extension: str) -> bool:
    """Whether there are checkpoints in ``folder``."""
    return os.path.isdir(folder) and any(name.endswith(extension) for name in os.listdir(folder))


def same_folder(one: str | None, other: str | None) -> bool:
    """Whether two paths, which need not exist, mean one folder."""
    if one is None or other is None:
        return one is other
    return os.path.realpath(one) == os.path.realpath(other)


def as_yaml(scores: dict[str, float]) -> str:
    """A YAML mapping of paths to numbers."""
    if not scores:
        return "{}\n"
    special = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
    return "".join(f"{json.dumps(path)}: {special.get(repr(value), repr(value))}\n" for path, value in scores.items())
