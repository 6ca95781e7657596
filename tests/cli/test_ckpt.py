from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoint.runs import saved

from hookbus import Callback
from hookbus.checkpoint import store
from hookbus.checkpoint.writer import write_archive

LIGHTNING = Path(__file__).parents[1] / "checkpoint" / "data" / "lightning-epoch.ckpt"


class Keeper(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"average": torch.zeros(1000), "n": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The checkpoint of a training with a plugin that has a state."""
    return saved(tmp_path / "runs", Keeper())


def test_verify_a_file(call, path):
    status, out, err = call("ckpt", "verify", str(path))
    assert (status, err) == (0, "")
    assert out.split() == ["whole", str(path), out.split()[2], out.split()[3], "sealed"]


def test_verify_a_folder(call, path):
    for name, length in (("cut", -100), ("empty", 0)):
        (path.parent / f"{name}.ckpt").write_bytes(path.read_bytes()[:length])
    (path.parent / "note.txt").write_text("no checkpoint")
    (path.parent / ".x.ckpt.host-1.tmp").write_text("half")
    status, out, _ = call("ckpt", "verify", str(path.parent))
    assert status == 1
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["damaged", str(path.parent / "cut.ckpt")],
        ["damaged", str(path.parent / "empty.ckpt")],
        ["whole", str(path)],
    ]
    assert "is cut off" in out
    assert "is empty (0 bytes)" in out


def test_verify_as_json(call, path):
    status, out, _ = call("ckpt", "verify", str(path), str(LIGHTNING), "--json")
    rows = json.loads(out)
    assert status == 0
    assert [(row["file"], row["status"]) for row in rows] == [(str(path), "whole"), (str(LIGHTNING), "whole")]
    assert "without a seal (not written by hookbus): only its records were checked" in rows[1]["what"]


def test_verify_a_url(call, path):
    with fsspec.open("memory://cli/x.ckpt", "wb") as file:
        file.write(path.read_bytes())
    assert call("ckpt", "verify", "memory://cli/x.ckpt")[0] == 0
    status, out, _ = call("ckpt", "verify", "memory://cli/gone.ckpt")
    assert status == 1
    assert out.split()[:2] == ["unread", "memory://cli/gone.ckpt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "gone"], "there is no file or folder 'gone'"),
        (["verify", "."], "there is no checkpoint (*.ckpt) in the folder '.'"),
        (["inspect", "gone"], "there is no file 'gone'"),
        (["verify"], "the following arguments are required: FILE|DIR; see hookbus ckpt verify --help"),
        (["mend", "x"], "argument ACTION: invalid choice: 'mend'"),
        ([], "the following arguments are required: ACTION"),
    ],
)
def test_mistakes(call, arguments, message):
    status, out, err = call("ckpt", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"hookbus: error: {message}")


def test_inspect(call, path):
    status, out, _ = call("ckpt", "inspect", str(path))
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert status == 0
    assert rows["progress:"] == "progress: epoch 1, step 4, between epochs"
    assert f"torch {torch.__version__}" in rows["written"]
    assert rows["state_dict"].split(maxsplit=3) == [
        "state_dict",
        "12",
        "B",
        "2 entries: layer.weight, layer.bias (2 tensors)",
    ]
    assert "unspecified" in rows["Keeper"], "its role"
    assert rows["Keeper"].endswith("Keeper  4.0 kB")
    assert "float32[1, 2]" not in out


def test_inspect_lists_tensors(call, path):
    out = call("ckpt", "inspect", str(path), "--tensors")[1]
    tensors = [line.split() for line in out[out.index("\ntensors") :].splitlines()[2:]]
    assert ["state_dict.layer.weight", "float32[1,", "2]", "8", "B"] in tensors
    assert ["callbacks.Keeper.average", "float32[1000]", "4.0", "kB"] in tensors


def test_inspect_as_json(call, path):
    found = json.loads(call("ckpt", "inspect", str(path), "--json")[1])
    content = found["content"]
    assert (found["sealed"], found["bytes"]) == (True, path.stat().st_size)
    assert content["state_dict"]["layer.weight"] == {"dtype": "float32", "shape": [1, 2], "bytes": 8}
    assert content["hookbus"]["progress"]["global_step"] == 4
    assert content["callbacks"]["Keeper"]["n"] == 3


def test_inspect_a_file_of_lightning(call):
    status, out, _ = call("ckpt", "inspect", str(LIGHTNING))
    assert status == 0
    assert "written by: Lightning's keys of 2.6.6" in out
    assert "progress: epoch 1, step 10" in out


def test_inspect_what_is_no_checkpoint(call, tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "text")
    for action in ("inspect", "verify"):
        status, out, err = call("ckpt", action, str(path))
        assert status == 1
        assert (
            "a zip archive without the record data.pkl that torch.save writes; it holds 'word/document.xml'"
            in out + err
        )


def test_names_do_not_steer_the_terminal(call, tmp_path):
    store.write(tmp_path / "x.ckpt", lambda file: write_archive({"\x1b[2Jboo": torch.ones(1), "b": "\r\x07"}, file))
    for options in ((), ("--tensors",)):
        status, out, _ = call("ckpt", "inspect", str(tmp_path / "x.ckpt"), *options)
        assert status == 0
        assert r"\x1b[2Jboo" in out
        assert not {"\x1b", "\r", "\x07"} & {*out}


def test_deep_and_repeated_values_come_to_an_end(call, tmp_path):
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    wide: Any = [1]
    for _ in range(60):
        wide = [wide, wide]
    torch.save({"state_dict": {}, "deep": deep, "wide": wide}, tmp_path / "x.ckpt")
    for options in ((), ("--json",), ("--tensors",)):
        assert call("ckpt", "inspect", str(tmp_path / "x.ckpt"), *options)[0] == 0


def test_torch_is_not_imported(process, path):
    code = """
import sys
from hookbus.cli.main import main
assert main(["ckpt", "inspect", sys.argv[1]]) == 0
assert main(["ckpt", "verify", sys.argv[1]]) == 0
assert not {"torch", "numpy"} & {*sys.modules}
"""
    done = process(str(path), code=code)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[bytes, Path]:
    """The bytes of a file, and a place for damaged ones."""
    folder = tmp_path_factory.mktemp("damage")
    store.write(folder / "x.ckpt", lambda file: write_archive({"state_dict": {"a": torch.arange(50.0)}, "n": 3}, file))
    return (folder / "x.ckpt").read_bytes(), folder / "y.ckpt"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_verify_finds_all_damage(whole, capsys, draw):
    from hookbus.cli.main import main

    before, path = whole
    content = bytearray(before[: draw.draw(st.integers(1, len(before)), label="length")])
    for bit in draw.draw(st.sets(st.integers(0, 8 * len(content) - 1), max_size=5), label="flipped"):
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    status = main(["ckpt", "verify", str(path)])
    out = capsys.readouterr().out
    assert status == (0 if content == before else 1), out
    assert str(path) in out
    assert os.path.getsize(path) == len(content)
