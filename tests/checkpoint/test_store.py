"""Files are whole or absent, whatever goes wrong while they are written, here and behind a URL."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pytest
import torch

from hookbus.checkpoint import archive, store
from hookbus.checkpoint.writer import write_archive


def content(number: float) -> Any:
    return lambda file: write_archive({"a": torch.full((1000,), number)}, file)


def number_in(path: str | Path) -> float:
    return float(torch.load(path, weights_only=True)["a"][0])


def test_writes_into_folders_that_it_makes(tmp_path: Path) -> None:
    store.write(tmp_path / "a" / "b" / "x.ckpt", content(1))
    assert os.listdir(tmp_path / "a" / "b") == ["x.ckpt"]


@pytest.mark.parametrize("name", ["x" * 250 + ".ckpt", "ö" * 125 + ".ckpt"])
def test_a_name_as_long_as_there_can_be(name: str, tmp_path: Path) -> None:
    store.write(tmp_path / name, content(1))
    store.clone(tmp_path / name, tmp_path / f"y{name[1:]}")
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"y{name[1:]}"])


def test_replaces_a_file(tmp_path: Path) -> None:
    store.write(tmp_path / "x.ckpt", content(1))
    store.write(tmp_path / "x.ckpt", content(2))
    assert number_in(tmp_path / "x.ckpt") == 2
    assert os.listdir(tmp_path) == ["x.ckpt"]


@pytest.mark.parametrize("length", [0, 10, 1000, 3000])
def test_a_full_disk_leaves_the_old_file(length: int, tmp_path: Path) -> None:
    """torch wraps the error of a file in one of its own; the reason must still be told."""

    class Full:
        def __init__(self, file: BinaryIO) -> None:
            self.file, self.left = file, length

        def write(self, data: Any) -> int:
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data)

    path = tmp_path / "x.ckpt"
    store.write(path, content(1))
    with pytest.raises(
        OSError, match=r"No space left on device \(.* GB are free there\); what stood .* is untouched"
    ) as caught:
        store.write(path, lambda file: torch.save({"a": torch.zeros(1000)}, Full(file)))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert number_in(path) == 1
    assert os.listdir(tmp_path) == ["x.ckpt"]


def test_a_limit_of_the_kernel_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    store.write(path, content(1))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            store.write(path, content(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert number_in(path) == 1
    assert os.listdir(tmp_path) == ["x.ckpt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="could not be written: Permission denied"):
        store.write(tmp_path / "x.ckpt", content(1))


def test_what_cannot_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="could not be written"):
        store.write(tmp_path, content(1))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="could not be written"):
        store.write(tmp_path / "file" / "x.ckpt", content(1))


def test_an_error_of_the_content_is_raised_as_it_is(tmp_path: Path) -> None:
    def broken(file: BinaryIO) -> None:
        file.write(b"half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.write(tmp_path / "x.ckpt", broken)
    assert os.listdir(tmp_path) == []


def test_what_dead_processes_left_behind_is_removed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    own = os.path.basename(store._beside(str(tmp_path / "x.ckpt")))
    dead = own.replace(str(os.getpid()), str(child))
    elsewhere = own.replace(store._HOST, "elsewhere")
    running = own.replace(str(os.getpid()), str(os.getppid()))
    for name in (dead, elsewhere, running):
        (tmp_path / name).write_bytes(b"half")
    store.write(tmp_path / "y.ckpt", content(1))
    assert sorted(os.listdir(tmp_path)) == sorted([elsewhere, running, "y.ckpt"])


def test_clone_shares_the_bytes(tmp_path: Path) -> None:
    source, target = tmp_path / "x.ckpt", tmp_path / "last.ckpt"
    store.write(source, content(1))
    store.clone(source, target)
    shared = os.path.samefile(source, target)
    assert shared or os.stat(target).st_blocks == os.stat(source).st_blocks
    store.write(source, content(2))
    assert (number_in(source), number_in(target)) == (2, 1), "a new file does not reach the clone"
    store.clone(source, target)
    assert number_in(target) == 2
    store.remove(source)
    assert number_in(target) == 2
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_clone_copies_where_files_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(store, "_reflink", lambda source, target: False)
    store.write(tmp_path / "x.ckpt", content(1))
    store.clone(tmp_path / "x.ckpt", tmp_path / "y.ckpt")
    assert not os.path.samefile(tmp_path / "x.ckpt", tmp_path / "y.ckpt")
    assert number_in(tmp_path / "y.ckpt") == 1


def test_newest_whole(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.ckpt" for n in range(3)]
    for n, path in enumerate(paths):
        store.write(path, content(n))
        os.utime(path, (n, n))
    assert store.newest_whole(paths) == (str(paths[2]), [])
    paths[2].write_bytes(paths[2].read_bytes()[:-200])
    os.utime(paths[2], (2, 2))
    found, damaged = store.newest_whole([*paths, tmp_path / "gone.ckpt"])
    assert found == str(paths[1])
    assert len(damaged) == 1
    assert "2.ckpt" in str(damaged[0])
    for path in paths:
        path.write_bytes(b"")
    assert store.newest_whole(paths)[0] is None


@pytest.mark.parametrize("url", ["memory://runs/a/x.ckpt", "file://{tmp}/a/x.ckpt", "local://{tmp}/a/x.ckpt"])
def test_urls(url: str, tmp_path: Path) -> None:
    url = url.format(tmp=tmp_path)
    assert store.is_remote(url)
    assert not store.exists(url)
    store.write(url, content(1))
    store.write(url, content(2))
    assert store.exists(url)
    with store.local(url) as path:
        assert archive.check(path) is True
        assert number_in(path) == 2
    files, inner = fsspec.core.url_to_fs(url)
    assert [os.path.basename(found) for found in files.ls(os.path.dirname(inner), detail=False)] == ["x.ckpt"]
    store.remove(url)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*x\.ckpt"), store.local(url):
        pass


def test_a_url_that_cannot_be_written_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://kept/x.ckpt"
    store.write(url, content(1))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "mv", fail)
    with pytest.raises(OSError, match="Connection reset by peer; what stood under this name before is untouched"):
        store.write(url, content(2))
    with store.local(url) as path:
        assert number_in(path) == 1
    assert fsspec.filesystem("memory").ls("/kept", detail=False) == ["/kept/x.ckpt"]


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/x.ckpt", True),
        ("simplecache::s3://bucket/x", True),
        ("a/b.ckpt", False),
        (r"C:\runs\x.ckpt", False),
        ("epoch=1-step=2.ckpt", False),
    ],
)
def test_what_is_remote(path: str, remote: bool) -> None:
    assert store.is_remote(path) is remote
