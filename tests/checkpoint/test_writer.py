"""Writing in the foreground and in the background: what waits for what, and where errors come out."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.checkpoint import archive, snapshot, store, writer
from hookbus.checkpoint.snapshot import HostCopies
from hookbus.checkpoint.writer import AsyncWriter, Writer


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The background writes nothing before this is set."""
    opened, write = threading.Event(), store.write

    def waiting(*args: Any) -> None:
        assert opened.wait(20)
        write(*args)

    monkeypatch.setattr(writer.store, "write", waiting)
    return opened


def test_the_foreground_is_done_when_it_returns(tmp_path: Path) -> None:
    done: list[Any] = []
    Writer().save({"a": 1}, str(tmp_path / "x.ckpt"), done.append)
    assert done == [{"a": 1}]
    assert archive.check(tmp_path / "x.ckpt")
    Writer().afterwards(lambda: done.append("at once"))
    assert done[-1] == "at once"


def test_the_background_writes_what_was_there(tmp_path: Path, gate: threading.Event) -> None:
    weight, plain = torch.zeros(1000), {"list": [1]}
    path, done, finished = str(tmp_path / "x.ckpt"), [], threading.Event()
    background = AsyncWriter(finished.set)
    background.save({"w": weight, "p": plain}, path, lambda checkpoint: done.append(checkpoint["p"]))
    background.afterwards(lambda: done.append(os.path.exists(path)))
    weight.fill_(1)
    plain["list"].append(2)
    background.poll()
    assert (done, background.is_writing(path), os.path.exists(path)) == ([], True, False)
    gate.set()
    assert finished.wait(20), "whoever trains is told"
    background.poll()
    assert (done, background.is_writing(path)) == ([{"list": [1]}, True], False)
    found = torch.load(path, weights_only=True)
    assert float(found["w"].sum()) == 0
    assert found["p"] == {"list": [1]}
    background.wait()


def test_one_file_at_a_time(tmp_path: Path) -> None:
    background, done = AsyncWriter(), []
    for n in range(4):
        background.save(
            {"n": n}, str(tmp_path / f"{n}.ckpt"), lambda c: done.append((c["n"], len(os.listdir(tmp_path))))
        )
    background.wait()
    assert done == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_an_error_of_the_background_comes_out_once(tmp_path: Path) -> None:
    background, done = AsyncWriter(), []
    (tmp_path / "file").write_text("")
    background.save({"n": 1}, str(tmp_path / "file" / "x.ckpt"), done.append)
    background.afterwards(lambda: done.append("an older file was removed"))
    with pytest.raises(OSError, match="could not be written"):
        background.wait()
    assert done == [], "nothing that depends on the file is done"
    background.poll()
    background.save({"n": 2}, str(tmp_path / "y.ckpt"), lambda checkpoint: done.append(checkpoint["n"]))
    background.wait()
    assert done == [2]


def test_checksums_whatever_torch_was_told(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        Writer().save({"a": torch.ones(100)}, str(tmp_path / "x.ckpt"), lambda _: None)
        assert torch.serialization.get_crc32_options() is False
    finally:
        torch.serialization.set_crc32_options(True)
    assert archive.check(tmp_path / "x.ckpt") is True


# --- copies -----------------------------------------------------------------------------------------------------------


def test_copies_are_equal_and_apart() -> None:
    base = torch.arange(100.0).reshape(10, 10)
    layer = torch.nn.Linear(3, 3)
    state = torch.nn.Sequential(layer, layer).state_dict()
    original = {
        "view": base[2:4],
        "transposed": base.t(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(),
        "empty": torch.empty(0),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "state": state,
        "nested": [1, (torch.tensor(3), {"a"})],
        "other": {"size": torch.Size([1]), "text": "a"},
    }
    copies = HostCopies()
    copied = copies.copy(original)
    for name in ("view", "transposed", "parameter", "empty", "half", "conjugate"):
        assert torch.equal(copied[name], original[name]), name
        assert type(copied[name]) is type(original[name])
    assert torch.equal(copied["sparse"].to_dense(), torch.eye(3))
    assert copied["nested"][1][1] == {"a"}
    assert copied["other"] == original["other"]
    assert copied["state"]._metadata == state._metadata
    assert copied["state"]["0.weight"].data_ptr() == copied["state"]["1.weight"].data_ptr(), "tied weights stay tied"
    base.zero_()
    assert float(copied["view"].sum()) > 0
    assert copied["view"].untyped_storage().data_ptr() == copied["transposed"].untyped_storage().data_ptr()


def test_large_tensors_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_CHUNK", 1000)
    original = [torch.arange(length, dtype=torch.float64) for length in (0, 1, 124, 125, 126, 5000)]
    copies = HostCopies()
    for _ in range(2):
        copied = copies.copy({"a": original})["a"]
        assert all(map(torch.equal, copied, original))
        for tensor in original:
            tensor.add_(1)
        copies.release()


def test_a_copy_that_fails_leaves_nothing_behind_for_the_next() -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies of this")

    copies, weight = HostCopies(), torch.ones(10)
    with pytest.raises(TypeError, match="no copies of this"):
        copies.copy({"w": weight, "x": Uncopyable()})
    assert torch.equal(copies.copy({"w": weight * 2})["w"], weight * 2)


def test_memory_that_is_not_used_again_is_given_back() -> None:
    copies = HostCopies()
    for length in range(1, 50):
        copies.copy({"growing": torch.ones(length), "steady": torch.ones(1000)})
        copies.release()
    kept = sorted(size for size, buffers in copies._free.items() for _ in buffers)
    assert kept == [4 * length for length in (47, 48, 49, 1000)]


def test_memory_is_used_again() -> None:
    copies = HostCopies()
    first = copies.copy({"a": torch.ones(1000)})["a"].data_ptr()
    copies.release()
    assert copies.copy({"a": torch.zeros(1000)})["a"].data_ptr() == first
    second = copies.copy({"a": torch.zeros(1000)})["a"]
    assert second.data_ptr() != first, "not while the last copy holds"
