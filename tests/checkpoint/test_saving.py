"""Saving in a training that goes wrong: what was there stays, and the error says so; in the background as in front."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.runs import Tiny, data, fit, saved, trainer

import hookbus
from hookbus import Callback
from hookbus.callbacks import ModelCheckpoint
from hookbus.checkpoint import archive, store, writer
from hookbus.checkpoint.reading import read


class SaveAt(Callback):
    """Saves after batches, and then does something."""

    def __init__(self, folder: Path, *batches: int, then: Any = lambda: None) -> None:
        self.folder, self.batches, self.then, self.begun = folder, batches, then, 0

    def on_train_batch_start(self, *args: Any) -> None:
        self.begun += 1

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx in self.batches:
            trainer.save_checkpoint(self.folder / "x.ckpt")
            self.then()


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the disk be full when so many files have been written."""
    sync, done = os.fsync, []

    def fsync(handle: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{handle}"):
            done.append(handle)
        if len(done) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(store.os, "fsync", fsync)


def locked(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let it be forbidden to write into the folder when so many files have been written."""
    real, done = builtins.open, []

    def refuse(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "w+b":
            done.append(path)
            if len(done) > after:
                raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, mode, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", refuse)


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("fails", [full_disk, locked])
def test_a_save_that_fails_leaves_the_one_before(
    fails: Any, in_background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, after=1)
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=1)
    with pytest.raises(OSError, match=r"could not be written: .*; what stood under this name before is untouched"):
        fit(tmp_path, saver, async_checkpoints=in_background)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["step=2.ckpt"]
    assert read(tmp_path / "step=2.ckpt")["global_step"] == 2
    assert saver.best_model_path == str(tmp_path / "step=2.ckpt")


def test_a_file_under_the_same_name_stays_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, after=1)
    with pytest.raises(OSError, match=r"No space left on device \(.* GB are free there\)") as caught:
        fit(tmp_path, SaveAt(tmp_path, 0, 2))
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["x.ckpt"]
    assert read(tmp_path / "x.ckpt")["global_step"] == 1


def test_an_error_of_the_background_ends_the_training_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, after=0)
    told = threading.Event()
    saver = SaveAt(tmp_path, 0, then=lambda: told.wait(20))
    made = trainer(tmp_path, saver, async_checkpoints=True)
    look = made.control.look
    monkeypatch.setattr(made.control, "look", lambda: (look(), told.set()))
    with pytest.raises(OSError, match="No space left on device"):
        made.fit(Tiny(), data())
    assert saver.begun == 1
    assert os.listdir(tmp_path) == []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The background writes nothing before this is set."""
    opened, write = threading.Event(), store.write

    def waiting(*args: Any) -> None:
        assert opened.wait(20)
        write(*args)

    monkeypatch.setattr(writer.store, "write", waiting)
    return opened


def test_a_training_does_not_end_before_its_files_are_in_place(tmp_path: Path, held: threading.Event) -> None:
    class Release(Callback):
        def on_train_end(self, *args: Any) -> None:
            assert os.listdir(tmp_path) == [], "until now the training did not wait"
            held.set()

    saver = SaveAt(tmp_path, 3)
    fit(tmp_path, saver, Release(), async_checkpoints=True)
    assert saver.begun == 4
    assert archive.check(tmp_path / "x.ckpt")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hookbus-checkpoint")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_nor_does_one_that_is_interrupted(error: Any, tmp_path: Path, held: threading.Event) -> None:
    def interrupt() -> None:
        held.set()
        raise error

    with pytest.raises(error):
        fit(tmp_path, SaveAt(tmp_path, 1, then=interrupt), async_checkpoints=True)
    assert read(tmp_path / "x.ckpt")["global_step"] == 2


def test_an_older_file_goes_only_when_the_newer_one_is_there(tmp_path: Path, held: threading.Event) -> None:
    seen: list[list[str]] = []

    class Looks(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            seen.append(sorted(os.listdir(tmp_path)))

    held.set()
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=1, save_last=True)
    fit(tmp_path, Looks(), saver, async_checkpoints=True)
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "step=4.ckpt"]
    first = next(index for index, names in enumerate(seen) if any(name.startswith("step") for name in names))
    assert all(any(name.startswith("step") for name in names) for names in seen[first:]), "one is always there"
    assert read(tmp_path / "last.ckpt")["global_step"] == 4


def test_a_process_that_ends_waits_for_its_file(tmp_path: Path) -> None:
    code = """
import sys, torch
from hookbus.checkpoint.writer import AsyncWriter
AsyncWriter().save({"a": torch.ones(3_000_000)}, sys.argv[1], print)
"""
    source = str(Path(hookbus.__file__).parents[1])
    command = [sys.executable, "-c", code, str(tmp_path / "x.ckpt")]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=True, timeout=60)
    assert archive.check(tmp_path / "x.ckpt") is True


@pytest.mark.parametrize("url", ["memory://saving/{name}/x.ckpt", "file://{tmp}/x.ckpt"])
@pytest.mark.parametrize("in_background", [False, True])
def test_to_and_from_a_url(url: str, in_background: bool, tmp_path: Path) -> None:
    url = url.format(tmp=tmp_path, name=tmp_path.name)

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.save_checkpoint(url)

    fit(tmp_path, Save(), async_checkpoints=in_background)
    assert read(url)["global_step"] == 2
    assert fit(tmp_path, ckpt_path=url).global_step == 4
    assert type(Tiny.load_from_checkpoint(url)) is Tiny


def test_who_reads_a_file_that_is_replaced_reads_the_old_one(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()
    with path.open("rb") as opened:
        half = opened.read(500)
        saved(tmp_path, max_epochs=2)
        assert half + opened.read() == before
    assert path.read_bytes() != before


@pytest.mark.parametrize("save_last", [True, "link"])
def test_what_is_kept_is_the_same_in_the_background(save_last: Any, tmp_path: Path) -> None:
    found = []
    for in_background in (False, True):
        folder = tmp_path / str(in_background)
        saver = ModelCheckpoint(folder, "{epoch}", monitor="val_loss", mode="max", save_top_k=2, save_last=save_last)
        made = trainer(folder, saver, async_checkpoints=in_background, max_epochs=4)
        made.fit(Tiny(), data(), data())
        names = sorted(os.listdir(folder))
        best = os.path.relpath(saver.best_model_path, folder)
        state = {key: os.path.basename(str(value)) for key, value in saver.state_dict().items() if "_path" in key}
        last = read(folder / "last.ckpt")["callbacks"][saver.state_key]["best_k_models"]
        found.append((names, best, state, sorted(map(os.path.basename, last)), made.global_step))
    assert found[0] == found[1]
    assert found[0][0] == ["epoch=0.ckpt", "epoch=1.ckpt", "last.ckpt"]


@pytest.mark.parametrize("hook", ["on_train_end", "on_fit_end", "teardown"])
def test_what_is_saved_at_the_very_end_is_in_place_as_well(
    hook: str, tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = writer.AsyncWriter.wait

    def save(trainer: Any, *args: Any, **kwargs: Any) -> None:
        held.clear()
        trainer.save_checkpoint(tmp_path / "x.ckpt")

    monkeypatch.setattr(writer.AsyncWriter, "wait", lambda self: (held.set(), wait(self)))
    callback = Callback()
    setattr(callback, hook, save)
    fit(tmp_path, callback, async_checkpoints=True)
    assert archive.check(tmp_path / "x.ckpt")


def test_two_errors_are_both_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, after=0)

    def fail() -> None:
        raise ValueError("of the training")

    with pytest.raises(ValueError, match="of the training") as caught:
        fit(tmp_path, SaveAt(tmp_path, 0, then=fail), async_checkpoints=True)
    notes = "\n".join(caught.value.__notes__)
    assert "then, in the writing of a checkpoint: OSError: [Errno 28] the checkpoint could not be written" in notes
