"""SIGTERM: finish the batch, tell everybody, leave. The handlers that were there come back afterwards."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


class SIGTERMException(SystemExit):
    """The process was asked to terminate; its exit status is 143, as the shell reports it (128 + 15)."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextlib.contextmanager
def sigterm_noticed(trainer: Trainer) -> Generator[None, None, None]:
    """Set ``trainer.received_sigterm`` when SIGTERM comes, then call the handler that was there before.

    Python lets only the main thread set handlers; in another thread nothing is changed.
    """
    trainer.received_sigterm = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: Any = signal.getsignal(signal.SIGTERM)

    def notice(signum: int, frame: FrameType | None) -> None:
        trainer.received_sigterm = True
        if callable(previous):
            previous(signum, frame)

    signal.signal(signal.SIGTERM, notice)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
