"""Which file ``ckpt_path`` means: a path or URL, a folder, ``"best"``, ``"last"`` or ``"hpc"``.

Of several candidates it is the newest whole one: a damaged file is named and passed over.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hookbus.callbacks.checkpoint_files import default_directory
from hookbus.checkpoint import store
from hookbus.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


def chosen(trainer: Trainer, ckpt_path: str | os.PathLike[str] | None) -> str | None:
    """The file that ``ckpt_path`` means.

    Args:
        trainer: whose callbacks and folders are asked.
        ckpt_path: ``"best"``: that of the first ModelCheckpoint which has one. ``"last"``: the newest in the folders of the
            checkpoint callbacks, on disk, whichever process wrote it. ``"hpc"``: the newest ``hpc_ckpt_*.ckpt`` in
            ``default_root_dir``. A folder: the newest in it. Else the file itself.

    Returns:
        A path or URL; None to start anew, also if there is no last checkpoint yet, which is said.

    Raises:
        ValueError: there is nothing that the word could mean.
        CheckpointError: there are files, and none of them is whole.
    """
    if ckpt_path is None:
        return None
    path = os.fspath(ckpt_path)
    if path == "best":
        return _best(trainer)
    if path == "last":
        return _last(trainer)
    if path == "hpc":
        found = glob.glob(os.path.join(glob.escape(trainer.default_root_dir), "hpc_ckpt_*.ckpt"))
        if not found:
            raise ValueError(
                f'ckpt_path="hpc" means hpc_ckpt_*.ckpt in {trainer.default_root_dir!r}, and there is none'
            )
        return _newest(found, path)
    if not store.is_remote(path) and os.path.isdir(path):
        found = store.in_folder(path)
        if not found:
            raise ValueError(f"there is no checkpoint (*.ckpt) in the folder {path!r}")
        return _newest(found, path)
    return path


def best_of_last_fit(trainer: Trainer) -> str | None:
    """What an evaluation without a model and without ``ckpt_path`` uses: the best checkpoint, None if there is none.

    The choice is said, as the module in memory holds the last weights, not the best ones.
    """
    path = next((str(p) for c in trainer.checkpoint_callbacks if (p := getattr(c, "best_model_path", ""))), None)
    if path is not None:
        assert trainer.state.fn is not None
        warnings.warn(
            f"{trainer.state.fn.value}() was called without a model: it takes the best checkpoint of the last fit, {path!r}. "
            "Pass the model to use the weights that it has now, or ckpt_path to choose a file",
            stacklevel=4,
        )
    return path


def _best(trainer: Trainer) -> str:
    savers = trainer.checkpoint_callbacks
    for callback in savers:
        found = getattr(callback, "best_model_path", "")
        if found:
            return str(found)
    raise ValueError(
        'ckpt_path="best" needs a ModelCheckpoint that has saved something; '
        + ("none of them has saved yet" if savers else "none is in trainer.callbacks")
    )


def _last(trainer: Trainer) -> str | None:
    savers = trainer.checkpoint_callbacks
    if not savers:
        raise ValueError(
            'ckpt_path="last" needs a ModelCheckpoint, which knows where checkpoints are; none is in trainer.callbacks'
        )
    found: dict[str, None] = {}
    for callback in savers:
        last = getattr(callback, "last_model_path", "")
        if last and os.path.exists(last):
            found[os.path.realpath(last)] = None
        for folder in _folders(callback, trainer):
            found |= dict.fromkeys(os.path.realpath(path) for path in store.in_folder(folder, _extension(callback)))
    if not found:
        warnings.warn('ckpt_path="last": there is no checkpoint yet, so the training starts anew', stacklevel=3)
        return None
    return _newest(found, "last")


def _folders(callback: Any, trainer: Trainer) -> list[str]:
    folder = getattr(callback, "dirpath", None) or default_directory(trainer)
    return [str(folder)] if os.path.isdir(folder) else []


def _extension(callback: Any) -> str:
    return str(getattr(callback, "FILE_EXTENSION", ".ckpt"))


def _newest(paths: Iterable[str], what: str) -> str:
    path, damaged = store.newest_whole(paths)
    said = "; ".join(map(str, damaged))
    if path is None:
        raise CheckpointError(f"ckpt_path={what!r}: none of the checkpoints is whole: {said}")
    if damaged:
        warnings.warn(f"{said}. ckpt_path={what!r} takes the newest whole one, {path!r}", stacklevel=3)
    return path
