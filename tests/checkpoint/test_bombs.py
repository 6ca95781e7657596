"""Files whose unpickling would run code: whoever reads, inspects or verifies them runs nothing."""

from __future__ import annotations

import functools
import operator
import os
import pickle
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.checkpoint.runs import Tiny, data, trainer

from hookbus.checkpoint import outline
from hookbus.checkpoint.errors import CheckpointError, UnsafeCheckpointError
from hookbus.checkpoint.reading import content_of, read
from hookbus.cli.main import main


class Calls:
    """Unpickled, it is what a call gives."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __call__(self) -> None: ...

    def __reduce__(self) -> Any:
        return self.what


def text(value: str) -> bytes:
    """The opcode that pushes a string."""
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


#: Each makes a file of the given name when it is unpickled by pickle itself.
BOMBS: dict[str, Callable[[str], Any]] = {
    "system": lambda mark: Calls(os.system, f"touch {mark}"),
    "subprocess": lambda mark: Calls(subprocess.check_call, ["touch", mark]),
    "eval": lambda mark: Calls(eval, f"open({mark!r}, 'w').close()"),
    "open": lambda mark: Calls(open, mark, "w"),
    "partial": lambda mark: Calls(functools.partial(os.system, f"touch {mark}")),
    "methodcaller": lambda mark: Calls(operator.methodcaller("touch"), Path(mark)),
    "getattr": lambda mark: Calls(Calls(getattr, Path, "touch"), Path(mark)),
    "torch": lambda mark: Calls(torch.save, {}, mark),
    "numpy": lambda mark: Calls(numpy.save, mark, [1]),
    "OBJ": lambda mark: b"\x80\x02(cposix\nsystem\n" + text(f"touch {mark}") + b"o.",
    "INST": lambda mark: b"\x80\x02(" + text(f"touch {mark}") + b"iposix\nsystem\n.",
    "STACK_GLOBAL": lambda mark: (
        b"\x80\x04" + text("posix") + text("system") + b"\x93" + text(f"touch {mark}") + b"\x85R."
    ),
    "Popen": lambda mark: Calls(subprocess.Popen, ["touch", mark]),
    "BUILD": lambda mark: Sets(mark),
    "popped": lambda mark: (
        b"\x80\x02cposix\nsystem\n" + text(f"touch {mark}") + b"\x85R0}" + text("state_dict") + b"}s."
    ),
}


class Sets:
    """Unpickled, its ``__setstate__`` makes a file."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __getstate__(self) -> str:
        return self.mark

    def __setstate__(self, state: str) -> None:
        Path(state).touch()


def pickled(bomb: Any, nested: Callable[[Any], Any] = lambda bomb: bomb) -> bytes:
    return bomb if isinstance(bomb, bytes) else pickle.dumps(nested(bomb), protocol=2)


def archived(path: Path, content: bytes) -> Path:
    """An archive as torch writes it, with a pickle of ours."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/.data/serialization_id", "1")
    return path


#: Those that are no sure sign of bad intent: among the hyper-parameters, stand-ins for them are passed over.
INERT = {"partial", "torch", "numpy", "BUILD"}
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda bomb: bomb,
    "weights": lambda bomb: {"state_dict": {"layer.weight": bomb}},
    "callbacks": lambda bomb: {"state_dict": {}, "callbacks": {"K": [(1, bomb)]}},
    "hyper-parameters": lambda bomb: {"state_dict": {}, "hyper_parameters": {"a": bomb}},
}


@pytest.mark.parametrize("name", BOMBS)
def test_it_is_a_bomb(name: str, tmp_path: Path) -> None:
    """Else the tests below would prove nothing."""
    mark = tmp_path / "boom"
    found = pickle.loads(pickled(BOMBS[name](str(mark))))
    if isinstance(found, subprocess.Popen):
        found.wait()
    assert list(tmp_path.iterdir()), "it makes a file"


#: Opcodes stand alone.
CASES = [
    (name, place)
    for name, bomb in BOMBS.items()
    for place in (PLACES if not isinstance(bomb(""), bytes) else ["alone"])
]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(("name", "place"), CASES)
def test_nobody_runs_it(name: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()
    path = archived(tmp_path / "x.ckpt", pickled(BOMBS[name](str(folder / "boom")), PLACES[place]))
    if place == "hyper-parameters" and name in INERT:
        assert isinstance(read(path)["hyper_parameters"]["a"], outline.Named)
    else:
        with pytest.raises(CheckpointError, match=r"x\.ckpt"):
            read(path)
    with pytest.raises(UnsafeCheckpointError, match=r"x\.ckpt"):
        content_of(path, hyper_parameters=True)
    for arguments in (("verify", str(path)), ("inspect", str(path), "--tensors"), ("inspect", str(path), "--json")):
        assert main(["ckpt", *arguments]) in (0, 1)
    capsys.readouterr()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("use", ["fit", "validate", "load_from_checkpoint"])
def test_nor_does_a_training(use: str, tmp_path: Path) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()
    bomb = Calls(os.system, f"touch {folder}/boom")
    content = {"state_dict": Tiny().state_dict(), "optimizer_states": [], "epoch": bomb}
    path = tmp_path / "x.ckpt"
    torch.save(content, path)
    made = trainer(tmp_path)
    calls = {
        "fit": lambda: made.fit(Tiny(), data(), ckpt_path=path),
        "validate": lambda: made.validate(Tiny(), data(), ckpt_path=path),
        "load_from_checkpoint": lambda: Tiny.load_from_checkpoint(path),
    }
    with pytest.raises(
        UnsafeCheckpointError, match=r"wants to call posix\.system.*Nothing was run; do not use the file"
    ):
        calls[use]()
    assert list(folder.iterdir()) == []


def test_formats_of_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bare pickle, what torch wrote before 1.6, and a tar archive, what it wrote before 0.1.10."""
    folder = tmp_path / "marks"
    folder.mkdir()
    bomb = Calls(os.system, f"touch {folder}/boom")
    bare, legacy, tar = (tmp_path / f"{name}.ckpt" for name in ("bare", "legacy", "tar"))
    bare.write_bytes(pickle.dumps(bomb, protocol=2))
    torch.save({"state_dict": {}, "epoch": bomb}, legacy, _use_new_zipfile_serialization=False)
    with tarfile.open(tar, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            (tmp_path / name).write_bytes(bare.read_bytes())
            archive.add(tmp_path / name, name)
    for path in (bare, legacy, tar):
        with pytest.raises(CheckpointError, match=path.name):
            read(path)
        assert main(["ckpt", "inspect", str(path)]) == 1
        assert main(["ckpt", "verify", str(path)]) == 1
    capsys.readouterr()
    assert list(folder.iterdir()) == []


def test_methods_among_the_hyper_parameters_are_no_bomb(tmp_path: Path) -> None:
    """Pickles hold them as calls of getattr."""
    torch.save(
        {"state_dict": {}, "hyper_parameters": {"f": torch.nn.Linear.forward, "g": torch.Tensor.relu}},
        tmp_path / "x.ckpt",
    )
    assert isinstance(read(tmp_path / "x.ckpt")["hyper_parameters"], dict)


def dtype(*state: Any) -> Any:
    class Forged:
        def __reduce__(self) -> Any:
            return numpy.dtype, (state[0], False, True), (3, "|", None, *state[1:])

    return Forged()


@pytest.mark.parametrize(
    "forged",
    [
        dtype("O8", None, None, -1, -1, 0),
        dtype("V8", ("a",), {"a": (numpy.dtype("O"), 0)}, 8, 1, 0),
        dtype("f8", ("a",), {"a": (numpy.dtype("O"), 0)}, 8, 1, 0),
    ],
    ids=["objects", "records", "numbers"],
)
def test_bytes_do_not_pass_for_pointers(forged: Any, tmp_path: Path) -> None:
    """NumPy takes the word of a pickle for what the bytes of an array are; to look at such an array may be fatal."""

    class Array:
        def __reduce__(self) -> Any:
            rebuild = numpy.zeros(1).__reduce__()[0]
            return rebuild, (numpy.ndarray, (0,), b"b"), (1, (1,), forged, False, b"A" * 8)

    torch.save({"state_dict": {}, "epoch": [Array()]}, tmp_path / "x.ckpt")
    with pytest.raises(UnsafeCheckpointError, match=r"x\.ckpt"):
        read(tmp_path / "x.ckpt")
