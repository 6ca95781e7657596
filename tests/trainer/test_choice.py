"""Which file ``ckpt_path`` means; a damaged one is named, and passed over where there is a choice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.runs import Tiny, data, fit, saved, trainer

from hookbus.callbacks import ModelCheckpoint
from hookbus.checkpoint.errors import CheckpointError, DamagedCheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of one training, after steps 4, 8 and 12, and their ages in this order."""
    fit(tmp_path, ModelCheckpoint(tmp_path, "{step}", save_top_k=-1), max_epochs=3)
    for age, step in enumerate((12, 8, 4)):
        os.utime(tmp_path / f"step={step}.ckpt", (1e9 - age, 1e9 - age))
    return tmp_path


def cut(path: Path) -> None:
    """Take the end away, as a full disk does; it stays as old as it is."""
    times = path.stat()
    path.write_bytes(path.read_bytes()[:-500])
    os.utime(path, (times.st_atime, times.st_mtime))


def resumed(folder: Path, ckpt_path: Any, **options: Any) -> str:
    """The name of the file from which a new trainer goes on."""
    made = trainer(folder, ModelCheckpoint(folder, "{step}", save_top_k=-1), max_epochs=4, **options)
    made.fit(Tiny(), data(), ckpt_path=ckpt_path)
    return os.path.basename(made.ckpt_path or "")


@pytest.mark.parametrize("word", ["last", "folder"])
def test_the_newest_in_a_folder(word: str, folder: Path) -> None:
    assert resumed(folder, folder if word == "folder" else "last") == "step=12.ckpt"


@pytest.mark.parametrize("word", ["last", "folder"])
def test_a_damaged_one_is_named_and_the_newest_whole_one_taken(word: str, folder: Path) -> None:
    cut(folder / "step=12.ckpt")
    with pytest.warns(UserWarning, match=r"step=12\.ckpt' is cut off.*takes the newest whole one, .*step=8\.ckpt'"):
        assert resumed(folder, folder if word == "folder" else "last") == "step=8.ckpt"


def test_without_a_whole_one_nothing_is_trained(folder: Path) -> None:
    for path in folder.iterdir():
        cut(path)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match="none of the checkpoints is whole") as caught:
        resumed(folder, "last")
    assert all(str(path) in str(caught.value) for path in before)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_file_that_was_asked_for_by_name_has_no_substitute(folder: Path) -> None:
    cut(folder / "step=12.ckpt")
    with pytest.raises(DamagedCheckpointError, match=r"step=12\.ckpt' is cut off"):
        resumed(folder, folder / "step=12.ckpt")


def test_a_flipped_bit_counts_as_damage(folder: Path) -> None:
    content = bytearray((folder / "step=12.ckpt").read_bytes())
    content[len(content) // 2] ^= 8
    (folder / "step=12.ckpt").write_bytes(content)
    os.utime(folder / "step=12.ckpt", (2e9, 2e9))
    with pytest.warns(UserWarning, match=r"step=12\.ckpt'.*newest whole one, .*step=8\.ckpt'"):
        assert resumed(folder, "last") == "step=8.ckpt"


def test_last_before_there_is_one(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no checkpoint yet, so the training starts anew"):
        assert resumed(tmp_path / "new", "last") == ""


def test_last_without_a_callback_that_saves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a ModelCheckpoint, which knows where checkpoints are"):
        fit(tmp_path, ckpt_path="last")


def test_best(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "{step}", monitor="val_loss", mode="max", save_top_k=1)
    made = trainer(tmp_path, saver, max_epochs=3)
    with pytest.raises(ValueError, match="none of them has saved yet"):
        made.validate(Tiny(), data(), ckpt_path="best")
    made.fit(Tiny(), data(), data())
    made.validate(Tiny(), data(), ckpt_path="best", verbose=False)
    assert made.ckpt_path == saver.best_model_path == str(tmp_path / "step=4.ckpt")
    cut(tmp_path / "step=4.ckpt")
    with pytest.raises(DamagedCheckpointError, match=r"step=4\.ckpt"):
        made.validate(Tiny(), data(), ckpt_path="best")
    with pytest.raises(ValueError, match=r"none is in trainer\.callbacks"):
        trainer(tmp_path).validate(Tiny(), data(), ckpt_path="best")


def test_hpc(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"means hpc_ckpt_\*\.ckpt in "):
        resumed(tmp_path, "hpc")
    for number in (1, 2):
        saved(tmp_path, name=f"hpc_ckpt_{number}.ckpt", max_epochs=number)
        os.utime(tmp_path / f"hpc_ckpt_{number}.ckpt", (number, number))
    saved(tmp_path, name="other.ckpt")
    assert resumed(tmp_path, "hpc") == "hpc_ckpt_2.ckpt"


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint \(\*\.ckpt\) in the folder"):
        fit(tmp_path, ckpt_path=tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*gone\.ckpt"):
        fit(tmp_path, ckpt_path=tmp_path / "gone.ckpt")
