"""Log lines and warnings of the first process only, under Lightning's names."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from hookbus.loggers.rank_zero import rank_from_environment, rank_zero_only

# The logger that Lightning writes to under each of its roots: people filter and capture it by this name.
_log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
_root = logging.getLogger("lightning.pytorch")
_root.setLevel(logging.INFO)
if not _root.hasHandlers():  # as Lightning: what packages say with rank_zero_info reaches the user of a plain script
    _root.addHandler(logging.StreamHandler())


class LightningDeprecationWarning(DeprecationWarning):
    """Lightning's category for what will be removed."""


# ``stacklevel`` counts as in Lightning, where two more frames lie between: by default it names the caller.


def rank_zero_debug(*args: Any, stacklevel: int = 4, **kwargs: Any) -> None:
    """Log a line of level DEBUG on the first process; arguments as of ``logging.Logger.debug``."""
    if rank_zero_only.rank == 0:
        _log.debug(*args, stacklevel=max(stacklevel - 2, 1), **kwargs)


def rank_zero_info(*args: Any, stacklevel: int = 4, **kwargs: Any) -> None:
    """Log a line of level INFO on the first process; arguments as of ``logging.Logger.info``."""
    if rank_zero_only.rank == 0:
        _log.info(*args, stacklevel=max(stacklevel - 2, 1), **kwargs)


def rank_zero_warn(message: str | Warning, stacklevel: int = 4, category: type[Warning] = UserWarning) -> None:
    """Warn on the first process."""
    if rank_zero_only.rank == 0:
        warnings.warn(message, category, stacklevel=max(stacklevel - 2, 1))


def rank_zero_deprecation(
    message: str | Warning, stacklevel: int = 5, category: type[Warning] = LightningDeprecationWarning
) -> None:
    """Warn on the first process that something will be removed."""
    rank_zero_warn(message, stacklevel, category)


def rank() -> int | None:
    """The rank that a launcher announced in the environment; None without a launcher, as Lightning has it."""
    announced = any(os.environ.get(name, "").isdigit() for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return rank_from_environment() if announced else None


class WarningCache(set[str]):
    """Says each message once; a set of the messages said."""

    def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
        """Warn, unless this was said before."""
        if message not in self:
            self.add(message)
            rank_zero_warn(message, stacklevel, **kwargs)

    def deprecation(self, message: str, stacklevel: int = 6, **kwargs: Any) -> None:
        """Warn that something will be removed, unless this was said before."""
        if message not in self:
            self.add(message)
            rank_zero_deprecation(message, stacklevel, **kwargs)

    def info(self, message: str, **kwargs: Any) -> None:
        """Log a line, unless this was said before."""
        if message not in self:
            self.add(message)
            rank_zero_info(message, **kwargs)
