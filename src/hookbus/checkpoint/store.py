"""Where checkpoints stand: files that are whole or absent, on a local disk or wherever fsspec reaches.

A file is written under a temporary name beside its target, brought to the disk, and then renamed, which either happens
or does not; so is the folder's entry. Whatever goes wrong before that, and whoever is killed, what stood under the name
before is untouched. Temporary files that a killed process left behind are removed by the next save into the folder.

Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final

from hookbus.checkpoint import archive
from hookbus.checkpoint.errors import CheckpointError

_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_HOST: Final = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname()) or "host"
_LEFT_BEHIND: Final = re.compile(rf"\..+\.{_HOST}-(\d+)\.tmp")
_LONG: Final = 150
_FICLONE: Final = 0x40049409  # Linux: let two files share their blocks until one is changed


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, for fsspec."""
    return _REMOTE.match(os.fspath(path)) is not None


def absolute(path: str | os.PathLike[str]) -> str:
    """A local path as an absolute one, a URL as it is."""
    path = os.fspath(path)
    return path if is_remote(path) else os.path.abspath(path)


def write(
    path: str | os.PathLike[str], write_to: Callable[[BinaryIO], object], storage_options: dict[str, Any] | None = None
) -> None:
    """Write a file in one step.

    Args:
        path: where to; folders are made as needed.
        write_to: writes the content to an open file.
        storage_options: for fsspec, if ``path`` is a URL.

    Raises:
        OSError: it could not be written; the message says why, and what stood there before is untouched.
    """
    path = os.fspath(path)
    try:
        if not is_remote(path):
            _write_local(os.path.abspath(path), write_to)
        else:
            _write_remote(path, write_to, storage_options)
    except Exception as error:
        cause = _os_error(error)
        if cause is None:
            raise
        raise OSError(cause.errno, _explained(path, cause), path) from error


@contextlib.contextmanager
def local(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Iterator[str]:
    """A local path at which the content of a file stands within the block: the path itself, or a copy.

    Raises:
        FileNotFoundError: there is no such file.
    """
    path = os.fspath(path)
    if not is_remote(path):
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"no checkpoint at {path!r}: give the path of a file that Trainer.save_checkpoint wrote"
            )
        yield path
        return
    files, inner = _remote(path, storage_options)
    if _is_local(files):
        with local(inner) as found:
            yield found
        return
    with tempfile.TemporaryDirectory(prefix="hookbus-") as folder:
        copy = os.path.join(folder, "copy.ckpt")
        try:
            files.get_file(inner, copy)
        except FileNotFoundError:
            raise FileNotFoundError(f"no checkpoint at {path!r}") from None
        yield copy


def clone(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Let the content of a local file stand under a second name as well, without a second dump of the bytes if possible.

    The file system shares the blocks (reflink) or the file (hard link); it copies only where it knows neither. Files of
    this module are replaced, never changed, so a shared file keeps its content.
    """
    source, target = os.path.realpath(source), os.path.abspath(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    beside = _beside(target)
    try:
        if not _reflink(source, beside):
            _forget(beside)
            try:
                os.link(source, beside)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, beside)
        _to_disk(beside)
        os.replace(beside, target)
    except BaseException:
        _forget(beside)
        raise
    _to_disk(os.path.dirname(target))


def link(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Let ``target`` be a symbolic link to a local file, in one step; a copy where links are not permitted."""
    source, target = os.path.abspath(source), os.path.abspath(target)
    beside = _beside(target)
    _forget(beside)
    try:
        os.symlink(os.path.relpath(source, os.path.dirname(target)), beside)
    except OSError:  # Windows asks for a privilege
        shutil.copyfile(source, beside)
    os.replace(beside, target)
    _to_disk(os.path.dirname(target))


def exists(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> bool:
    """Whether there is something under the name."""
    path = os.fspath(path)
    if not is_remote(path):
        return os.path.exists(path)
    files, inner = _remote(path, storage_options)
    return bool(files.exists(inner))


def remove(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> None:
    """Remove a file, a link or a folder; it may be gone already."""
    path = os.fspath(path)
    if is_remote(path):
        files, inner = _remote(path, storage_options)
        if files.exists(inner):
            files.rm(inner, recursive=True)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def newest_whole(paths: Iterable[str | os.PathLike[str]]) -> tuple[str | None, list[CheckpointError]]:
    """The newest whole one of local files.

    Args:
        paths: the files, in any order; those that are gone do not matter.

    Returns:
        Its path, None if there is none, and what is wrong with each newer file.
    """
    dated = []
    for path in [os.fspath(path) for path in paths]:
        with contextlib.suppress(FileNotFoundError):
            dated.append((os.stat(path).st_mtime_ns, path))
    wrong = []
    for _, path in sorted(dated, reverse=True):
        try:
            archive.check(path)
        except CheckpointError as error:
            wrong.append(error)
        else:
            return path, wrong
    return None, wrong


def in_folder(folder: str | os.PathLike[str], extension: str = ".ckpt") -> list[str]:
    """The checkpoint files in a local folder, without temporary ones, by name."""
    with os.scandir(folder) as entries:
        found = [e.path for e in entries if e.name.endswith(extension) and not e.name.startswith(".") and e.is_file()]
    return sorted(found)


# -- local files ---------------------------------------------------------------------------------------------------------


def _write_local(path: str, write_to: Callable[[BinaryIO], object]) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    _sweep(folder)
    beside = _beside(path)
    try:
        with open(beside, "w+b") as file:
            write_to(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        _forget(beside)
        raise
    _to_disk(folder)


def _beside(path: str) -> str:
    """A temporary name in the same folder, which says whose it is."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > _LONG:  # with what is added it might be too long for the file system
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, f".{name}.{_HOST}-{os.getpid()}.tmp")


def _sweep(folder: str) -> None:
    """Remove temporary files of processes of this machine that are gone."""
    with os.scandir(folder) as entries:
        found = [(entry.path, match) for entry in entries if (match := _LEFT_BEHIND.fullmatch(entry.name))]
    for path, match in found:
        if int(match[1]) != os.getpid() and not _is_running(int(match[1])):
            _forget(path)


def _is_running(process: int) -> bool:
    if os.name == "nt":
        return True  # there os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _to_disk(path: str) -> None:
    """Wait until a file, or the entries of a folder, are on the disk; Windows cannot say so of folders."""
    if os.name == "nt" and os.path.isdir(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _reflink(source: str, target: str) -> bool:
    try:
        import fcntl

        with open(source, "rb") as old, open(target, "wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except (ImportError, OSError):
        return False
    return True


def _os_error(error: BaseException | None) -> OSError | None:
    """The error of the operating system behind ``error``: torch wraps what a file raises while it writes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def _explained(path: str, error: OSError) -> str:
    text = f"the checkpoint could not be written: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not is_remote(path):
        with contextlib.suppress(OSError):
            text += f" ({shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free / 1e9:.2f} GB are free there)"
    return f"{text}; what stood under this name before is untouched"


# -- files elsewhere -----------------------------------------------------------------------------------------------------


def _remote(path: str, storage_options: dict[str, Any] | None) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path within it."""
    from fsspec.core import url_to_fs

    files, inner = url_to_fs(path, **(storage_options or {}))
    return files, str(inner)


def _is_local(files: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(files, LocalFileSystem)


def _write_remote(path: str, write_to: Callable[[BinaryIO], object], storage_options: dict[str, Any] | None) -> None:
    files, inner = _remote(path, storage_options)
    if _is_local(files):
        _write_local(inner, write_to)
        return
    beside = f"{inner}.{uuid.uuid4().hex[:8]}.tmp"
    with tempfile.TemporaryDirectory(prefix="hookbus-") as folder:
        copy = os.path.join(folder, "copy.ckpt")
        with open(copy, "w+b") as file:
            write_to(file)
        files.makedirs(files._parent(inner), exist_ok=True)
        try:
            files.put_file(copy, beside)
            files.mv(beside, inner)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is what matters
                files.rm(beside)
            raise
