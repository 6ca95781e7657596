"""``OnExceptionCheckpoint``: saves the run when something ends it, so that it can be resumed from there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hookbus.callbacks.checkpoint import Checkpoint
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class OnExceptionCheckpoint(Checkpoint):
    """Saves one checkpoint when an exception, Ctrl-C included, ends a training; removes it after a fit that ends well.

    A run is resumed from it if it is told so (``fit(…, ckpt_path=callback.ckpt_path)``), never by itself. What fails
    before the first training batch is not saved: there is nothing new, and the file of an earlier failure is worth more.

    Args:
        dirpath: the folder; it is made as needed.
        filename: the name of the file, without its extension ``.ckpt``.

    Raises:
        ValueError: ``filename`` is empty.

    Example:
        >>> from hookbus.callbacks import OnExceptionCheckpoint
        >>> OnExceptionCheckpoint("rescued", filename="digits").ckpt_path.replace("\\\\", "/")
        'rescued/digits.ckpt'
    """

    FILE_EXTENSION = ".ckpt"

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        super().__init__()
        if not filename:
            raise ValueError("filename must not be empty: it names the file that is saved, without '.ckpt'")
        self.dirpath = dirpath
        self.filename = filename
        self._training = False

    @property
    def ckpt_path(self) -> str:
        """The file that is saved."""
        return os.path.join(self.dirpath, self.filename + self.FILE_EXTENSION)

    @hookimpl(specname="on_train_start")
    def _training_begins(self) -> None:
        self._training = True

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save, in place of an earlier file."""
        if self._training:
            trainer.save_checkpoint(self.ckpt_path)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """The fit has ended well: nobody needs the file any more."""
        if stage == "fit" and trainer.is_global_zero and os.path.isfile(self.ckpt_path):
            os.remove(self.ckpt_path)

    @hookimpl(specname="on_run_close")
    def _training_is_over(self) -> None:
        self._training = False
