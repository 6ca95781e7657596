"""Who writes checkpoints, and when: at once, or in the background while the training goes on."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import torch

from hookbus.checkpoint import archive, store
from hookbus.checkpoint.snapshot import HostCopies

_CRC = threading.Lock()


class Writer:
    """Writes while the caller waits.

    What depends on a file being in place (removing an older one, telling others) is handed over as a function.
    """

    def save(
        self,
        checkpoint: dict[str, Any],
        path: str,
        then: Callable[[dict[str, Any]], object],
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: the dictionary.
            path: an absolute path or a URL.
            then: called with the dictionary once the file is in place.
            storage_options: for fsspec.

        Raises:
            OSError: it could not be written.
        """
        store.write(path, lambda file: write_archive(checkpoint, file), storage_options)
        then(checkpoint)

    def afterwards(self, action: Callable[[], object]) -> None:
        """Call ``action`` once the files that were saved so far are in place; at once if they are. Not if one failed."""
        action()

    def link(self, source: str, target: str) -> None:
        """Let a second name point to a file that is in place, by a symbolic link."""
        store.link(source, target)

    def is_writing(self, path: str) -> bool:
        """Whether a file of this name is being written and not in place yet."""
        return False

    def poll(self) -> None:
        """See whether something has been finished, and do what was to be done then.

        Raises:
            OSError: a file could not be written.
        """

    def wait(self) -> None:
        """Wait until everything is in place, and do what was to be done then.

        Raises:
            OSError: a file could not be written.
        """


class AsyncWriter(Writer):
    """Copies a checkpoint into host memory, which is all that the caller waits for, and writes it in the background.

    One file is written at a time; who saves again earlier waits. An error of the background is raised by the next call.

    Args:
        finished: called in the background when there is something for :meth:`poll` to do.
    """

    def __init__(self, finished: Callable[[], object] = lambda: None) -> None:
        self._finished = finished
        self._copies = HostCopies()
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._path = ""
        self._actions: list[Callable[[], object]] = []

    def save(
        self,
        checkpoint: dict[str, Any],
        path: str,
        then: Callable[[dict[str, Any]], object],
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Copy a checkpoint and have it written; arguments as of :meth:`Writer.save`.

        Raises:
            OSError: the file before it could not be written.
        """
        self._settle()
        copied = self._copies.copy(checkpoint)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hookbus-checkpoint")
        self._path = path
        self._actions = [lambda: then(copied)]
        self._running = self._thread.submit(
            store.write, path, lambda file: write_archive(copied, file), storage_options
        )
        self._running.add_done_callback(lambda _: self._finished())

    def afterwards(self, action: Callable[[], object]) -> None:
        """Call ``action`` when the file that is being written is in place, in :meth:`poll` or :meth:`wait`."""
        if self._running is None:
            action()
        else:
            self._actions.append(action)

    def is_writing(self, path: str) -> bool:
        """Whether it is this file that is being written."""
        return self._running is not None and self._path == path

    def poll(self) -> None:
        """Do what was to be done after a file that is in place by now.

        Raises:
            OSError: it could not be written.
        """
        if self._running is not None and self._running.done():
            self._settle()

    def wait(self) -> None:
        """Wait for the background, and give its memory back.

        Raises:
            OSError: a file could not be written.
        """
        try:
            self._settle()
        finally:
            self._copies.drop()
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    def _settle(self) -> None:
        while self._running is not None:  # what is done afterwards may save again
            running, actions = self._running, self._actions
            try:
                running.result()
            finally:
                self._running, self._actions = None, []
                self._copies.release()
            for action in actions:
                action()


def write_now(checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
    """Write a checkpoint whatever else is being written; arguments as of :meth:`Writer.save`.

    Raises:
        OSError: it could not be written.
    """
    store.write(path, lambda file: write_archive(checkpoint, file), storage_options)


def write_archive(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Write a checkpoint into a file that is open for reading and writing, with checksums and seal."""
    with _checksums():
        torch.save(checkpoint, file)
    archive.seal(file)


@contextlib.contextmanager
def _checksums() -> Iterator[None]:
    """Within the block torch notes checksums, whatever it was told for other files."""
    settings = torch.serialization
    if not hasattr(settings, "set_crc32_options"):  # torch before 2.6 always does
        yield
        return
    with _CRC:
        before = settings.get_crc32_options()
        settings.set_crc32_options(True)
        try:
            yield
        finally:
            settings.set_crc32_options(before)
