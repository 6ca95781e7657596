"""Reading a file that may be anything: nothing in it runs, and what is wrong is said."""

from __future__ import annotations

import collections
import functools
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from hookbus.checkpoint import outline
from hookbus.checkpoint.errors import CheckpointError, DamagedCheckpointError, UnsafeCheckpointError
from hookbus.checkpoint.reading import content_of, read

STATE = {"state_dict": torch.nn.Linear(2, 1).state_dict()}


class Own:
    def __init__(self) -> None:
        self.a = 1


class OwnDict(dict):  # type: ignore[type-arg]
    pass


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.ckpt"


def test_reads_what_was_written(path: Path) -> None:
    torch.save({**STATE, "epoch": 3, "hookbus": {"format_version": 1}}, path)
    found = read(path)
    assert found["epoch"] == 3
    assert torch.equal(found["state_dict"]["weight"], STATE["state_dict"]["weight"])


def test_reads_a_url(path: Path) -> None:
    torch.save(STATE, path)
    with fsspec.open("memory://read/x.ckpt", "wb") as file:
        file.write(path.read_bytes())
    assert list(read("memory://read/x.ckpt")) == ["state_dict"]
    with fsspec.open("memory://read/y.ckpt", "wb") as file:
        file.write(path.read_bytes()[:-30])
    with pytest.raises(DamagedCheckpointError, match=r"'memory://read/y.ckpt' is cut off"):
        read("memory://read/y.ckpt")
    with pytest.raises(FileNotFoundError, match=r"memory://read/z\.ckpt"):
        read("memory://read/z.ckpt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "expected a dictionary with the key 'state_dict', it holds a list"),
        ({"weights": 1}, r"it holds the keys \['weights'\]"),
        (
            {**STATE, "hookbus": {"format_version": 2}},
            "format version 2, and this hookbus reads up to 1: update hookbus",
        ),
        ({**STATE, "hookbus": {"format_version": "new"}}, "format version 'new'"),
    ],
)
def test_other_contents(content: Any, message: str, path: Path) -> None:
    torch.save(content, path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_program_is_no_checkpoint(path: Path) -> None:
    torch.jit.script(torch.nn.ReLU()).save(str(path))
    for weights_only in (True, False):
        with pytest.raises(CheckpointError, match=r"x\.ckpt' is no checkpoint, but a program"):
            read(path, weights_only=weights_only)


def test_nothing_there(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*x\.ckpt"):
        read(path)


@pytest.mark.parametrize("nested", ["alone", "key", "state", "hyper"])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch {}",)),
        (subprocess.check_call, (["touch", "{}"],)),
        (eval, ("open('{}', 'w')",)),
        (exec, ("open('{}', 'w')",)),
        (open, ("{}", "w")),
        (getattr, (os, "system")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bomb_does_not_go_off(function: Any, arguments: Any, nested: str, path: Path, tmp_path: Path) -> None:
    mark = str(tmp_path / "boom")
    filled = [
        [part.format(mark) for part in a] if isinstance(a, list) else a.format(mark) for a in arguments if a is not os
    ]
    bomb = Bomb(function, *([os.name] if os in arguments else []), *filled)
    content: Any = {
        "alone": bomb,
        "key": {**STATE, "epoch": bomb},
        "state": {**STATE, "callbacks": {"K": {"a": [bomb]}}},
        "hyper": {**STATE, "hyper_parameters": {"a": bomb}},
    }[nested]
    torch.save(content, path)
    with pytest.raises(UnsafeCheckpointError, match=r"wants to call .* Nothing was run"):
        read(path)
    outline.read(path) if nested != "alone" else None
    outline.named_in(path)
    assert not os.path.exists(mark)


def test_a_bomb_outside_of_an_archive(path: Path, tmp_path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(os.system, f"touch {tmp_path / 'boom'}"), protocol=2))
    with pytest.raises(UnsafeCheckpointError, match="is a bare pickle"):
        read(path)
    assert not (tmp_path / "boom").exists()


def test_classes_are_named_with_the_line_that_allows_them(path: Path) -> None:
    torch.save({**STATE, "callbacks": {"K": {"w": collections.deque([1])}}, "own": Own()}, path)
    with pytest.raises(UnsafeCheckpointError) as caught:
        read(path)
    text = str(caught.value)
    assert "collections.deque at checkpoint['callbacks']['K']['w']" in text
    assert f"{Own.__module__}.Own at checkpoint['own']" in text
    assert f"torch.serialization.add_safe_globals([collections.deque, {Own.__module__}.Own])" in text
    assert isinstance(read(path, weights_only=False)["own"], Own)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (torch.relu, "torch._C._VariableFunctionsClass.relu at checkpoint['extra']"),
        (torch.nn.functional.relu, "torch.nn.functional.relu at"),
        (len, "len at"),
        (functools.partial(torch.relu), "functools.partial at"),
    ],
    ids=["method of a class", "function", "builtin", "partial"],
)
def test_functions_are_not_to_be_allowed(value: Any, named: str, path: Path) -> None:
    torch.save({**STATE, "extra": value}, path)
    with pytest.raises(UnsafeCheckpointError) as caught:
        read(path)
    text = str(caught.value)
    assert named in text
    assert "weights_only=False; in the next one, save the name" in text
    assert "getattr" not in text
    assert "add_safe_globals" not in text


def test_a_hyper_parameter_is_named_where_it_is_needed(path: Path) -> None:
    torch.save({**STATE, "hyper_parameters": {"act": torch.relu}}, path)
    with pytest.raises(UnsafeCheckpointError, match=r"relu at .* \(the hyper-parameter 'act'\)"):
        content_of(path, hyper_parameters=True)


def test_what_was_allowed_is_made(path: Path) -> None:
    torch.save({**STATE, "own": Own()}, path)
    with torch.serialization.safe_globals([Own]):
        assert read(path)["own"].a == 1


def test_hyper_parameters_need_not_be_readable(path: Path) -> None:
    hyper = {"net": torch.nn.ReLU(), "own": Own(), "nested": OwnDict(a=1), "window": collections.deque([1]), "lr": 0.1}
    torch.save({**STATE, "hyper_parameters": hyper, "epoch": 1}, path)
    found = read(path)
    assert found["hyper_parameters"]["lr"] == 0.1
    assert repr(found["hyper_parameters"]["net"]) == "<torch.nn.modules.activation.ReLU>"
    assert torch.equal(found["state_dict"]["weight"], STATE["state_dict"]["weight"])
    with pytest.raises(UnsafeCheckpointError, match=r"ReLU at checkpoint\['hyper_parameters'\]\['net'\]"):
        content_of(path, hyper_parameters=True)


def test_the_second_look_makes_all_plain_data(path: Path) -> None:
    """With a stranger among the hyper-parameters, everything else must be what it is without one."""
    plain = {
        "set": {1, 2},
        "bytes": b"a\xff",
        "complex": 1j,
        "array": bytearray(b"x"),
        "size": torch.Size([2]),
        "ordered": collections.OrderedDict(a=1),
        "counter": collections.Counter("aab"),
        "none": None,
        "big": 2**80,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "tuple": (1, "a"),
        "half": torch.ones(2).half(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "float8": torch.ones(2).to(torch.float8_e4m3fn),
    }
    torch.save({**STATE, **plain, "hyper_parameters": {"a": Own()}}, path)
    found = read(path)
    for name, value in plain.items():
        assert type(found[name]) is type(value), name
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name].float(), value.float())
            assert found[name].dtype == value.dtype
        else:
            assert found[name] == value


def test_a_pickle_that_changes_functions_is_refused(path: Path) -> None:
    class Changed:
        def __reduce__(self) -> Any:
            return collections.OrderedDict, ([],), None

    content = {**STATE, "hyper_parameters": {"a": Own()}}
    torch.save(content, path)
    data = pickle.dumps({"a": 1}, protocol=2)
    attack = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}U\x01aK\x01sb."  # GLOBAL, a dictionary, BUILD
    assert data[:2] == attack[:2]
    import io

    from hookbus.checkpoint.reading import _CarefulPickle

    with pytest.raises(pickle.UnpicklingError, match="tried to change a function"):
        _CarefulPickle.Unpickler(io.BytesIO(attack)).load()
    with pytest.raises(pickle.UnpicklingError, match="tried to change a function"):
        _CarefulPickle.Unpickler(io.BytesIO(attack.replace(b"}U\x01aK\x01sb", b"N}U\x09_functionK\x01s\x86b"))).load()


# --- without loading --------------------------------------------------------------------------------------------------


def test_outline(path: Path) -> None:
    shared = torch.ones(4, 3)
    torch.save(
        {**STATE, "t": shared[1:3], "u": shared, "n": [1, "a", None], "own": Own(), "half": torch.ones(5).half()}, path
    )
    found = outline.read(path)
    assert (found["t"].shape, found["t"].dtype, found["t"].bytes) == ((2, 3), "float32", 24)
    assert found["t"].storage == found["u"].storage
    assert found["u"].storage.bytes == 48
    assert str(found["half"]) == "float16[5]"
    assert found["half"].bytes == 10
    assert found["n"] == [1, "a", None]
    assert repr(found["own"]) == f"<{Own.__module__}.Own>"
    assert f"{Own.__module__}.Own" in outline.named_in(path)


def test_outline_of_what_is_no_checkpoint(path: Path) -> None:
    torch.save([1], path)
    with pytest.raises(CheckpointError, match="expected a dictionary, it holds a list"):
        outline.read(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedCheckpointError, match="is empty"):
        outline.read(path)
