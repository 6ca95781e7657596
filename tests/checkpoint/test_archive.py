"""A checkpoint file seen from outside: whatever happens to its bytes is found."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
from tests.checkpoint.world import saved_bytes

from hookbus.checkpoint import archive
from hookbus.checkpoint.errors import CheckpointError, DamagedCheckpointError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed archive with a few tensors."""
    file = tmp_path / "x.ckpt"
    file.write_bytes(saved_bytes({"a": torch.arange(40.0), "b": [torch.ones(2), "text"]}))
    with file.open("r+b") as opened:
        archive.seal(opened)
    return file


def test_a_sealed_file_is_whole_and_torch_reads_it(path: Path) -> None:
    assert archive.check(path) is True
    assert torch.equal(torch.load(path, weights_only=True)["a"], torch.arange(40.0))


def test_a_file_of_torch_has_no_seal(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(3)}, path)
    assert archive.check(path) is False


def test_every_flipped_bit_is_found(path: Path) -> None:
    whole, chance = path.read_bytes(), random.Random(1)
    with path.open("r+b", buffering=0) as opened:  # to write the whole file anew each time would take seconds
        for index, byte in enumerate(whole):
            opened.seek(index)
            opened.write(bytes([byte ^ 1 << chance.randrange(8)]))
            with pytest.raises(CheckpointError, match=r"x\.ckpt"):
                archive.check(path)
            opened.seek(index)
            opened.write(bytes([byte]))
    assert archive.check(path) is True


def test_every_cut_is_found(path: Path) -> None:
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(CheckpointError, match=r"x\.ckpt"):
            archive.check(path)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("number", [1, 100_000])
def test_bytes_behind_the_end_are_called_so(number: int, sealed: bool, path: Path, tmp_path: Path) -> None:
    if not sealed:
        path = tmp_path / "x.pt"
        torch.save({"a": torch.zeros(10)}, path)
    size = path.stat().st_size
    with path.open("ab") as opened:
        opened.write(b"\0" * number)
    with pytest.raises(DamagedCheckpointError, match=f"{number} bytes follow its end; the first {size} bytes"):
        archive.check(path)


def test_flipped_contents_of_a_file_of_torch_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.zeros(1000)}, path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedCheckpointError, match="data/0 do not have the checksum"):
        archive.check(path)
    assert archive.check(path, contents=False) is False, "only the directory is looked at"


def test_a_file_written_without_checksums_passes(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.zeros(10)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert archive.check(path) is False
    assert archive.read_record(path, "data.pkl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"epoch: 3\n", "is no checkpoint: it begins with b'epoc'"),
        (b"PK\x03\x04" + b"x" * 50, "is cut off"),
    ],
)
def test_other_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "y.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        archive.check(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder"):
        archive.check(tmp_path)


def test_records(path: Path) -> None:
    found = archive.records(path)
    assert found["data/0"] == 160
    assert archive.read_record(path, "version") == b"3\n"
    with pytest.raises(DamagedCheckpointError, match="lacks the record 'nothing'"):
        archive.read_record(path, "nothing")


def test_damage_in_a_large_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(saved_bytes({"a": torch.zeros(300_000), "b": torch.zeros(300_000)}))
    with path.open("r+b") as opened:
        archive.seal(opened)
    assert archive.check(path) is True
    damaged = bytearray(path.read_bytes())
    damaged[-2000] ^= 1
    damaged[len(damaged) // 4] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedCheckpointError, match=r"the bytes of data/0, .* do not have the checksum"):
        archive.check(path)
