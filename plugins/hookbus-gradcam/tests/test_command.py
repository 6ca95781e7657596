"""``hookbus gradcam``."""

from __future__ import annotations

import importlib.metadata
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from hookbus.cli.main import main
from hookbus.cli.parser import UsageError
from hookbus_gradcam.command import gradcam

NET = """
from torch import nn

def grey():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))

module = grey()

def colour():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def with_transform():
    import torch
    return grey(), lambda image: torch.zeros(1, image.height, image.width)

def no_module():
    return 3

def raising():
    raise RuntimeError("no such luck\\nat all")

def flat():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder with a module and a picture of 20 x 10 pixels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "gradcam_nets.py").write_text(NET)
    (tmp_path / "gradcam_broken.py").write_text("1 / 0")
    Image.fromarray(np.arange(600, dtype=np.uint8).reshape(10, 20, 3)).save("picture.png")
    importlib.invalidate_caches()
    yield
    sys.modules.pop("gradcam_nets", None)


def call(*words: str) -> int:
    return gradcam(words, ())


@pytest.mark.parametrize("model", ["grey", "module", "colour", "with_transform"])
def test_a_map_is_drawn(tmp_path, capsys, model):
    assert call("--model", f"gradcam_nets:{model}", "--input", "picture.png", "--out", "out/map.png") == 0
    assert "; 0; written to out/map.png" in capsys.readouterr().out
    with Image.open("out/map.png") as drawing:
        assert drawing.width > 100


def test_all_that_can_be_said(capsys):
    torch.save(
        {"state_dict": {k: torch.zeros(v) for k, v in SHAPES.items()} | {"4.bias": torch.arange(3.0)}}, "net.ckpt"
    )
    words = "--method layercam --layer 0 --layer 1 --weights net.ckpt --size 8x6 --mean 0.5 --std 0.25 --target 1"
    assert call("--model", "gradcam_nets:grey", "--input", "picture.png", *words.split()) == 0
    assert "class 1, score 1; 0, 1; written to gradcam.png" in capsys.readouterr().out


SHAPES = {"0.weight": (2, 1, 3, 3), "0.bias": (2,), "4.weight": (3, 2), "4.bias": (3,)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--model": "gradcam_nets"}, "expected pkg.mod:NAME"),
        ({"--model": "no_such_nets:x"}, "there is no module 'no_such_nets'"),
        ({"--model": "gradcam_nets:gray"}, "gradcam_nets has no 'gray'"),
        ({"--model": "gradcam_nets:no_module"}, "makes a int"),
        ({"--model": "gradcam_nets:flat"}, "lazy modules"),
        ({"--input": "none.png"}, "there is no picture 'none.png'"),
        ({"--input": "gradcam_nets.py"}, "cannot be read"),
        ({"--layer": "5"}, "no module of the network has such a name"),
        ({"--target": "3"}, "target 3 of sample 0 is no class"),
        ({"--size": "8"}, "expected HxW"),
        ({"--mean": "0.5,0.5,0.5"}, "expected 1 numbers"),
        ({"--mean": "half"}, "expected numbers separated by commas"),
        ({"--mean": "nan"}, "--mean: expected finite numbers, got 'nan'"),
        ({"--std": "0.5,0"}, "--std: expected finite numbers above 0"),
        (
            {"--model": "gradcam_nets:raising"},
            r"gradcam_nets:raising\(\) raised RuntimeError: no such luck \(gradcam_nets.py:\d+\)$",
        ),
        ({"--model": "gradcam_broken:x"}, r"gradcam_broken cannot be imported: ZeroDivisionError"),
        ({"--weights": "picture.png"}, r"picture\.png cannot be read \(UnpicklingError\): expected tensors"),
        ({"--weights": "none.pt"}, "there is no file 'none.pt'"),
        ({"-p": "throughput"}, "no plugin takes part"),
    ],
)
def test_mistakes_are_the_users(changed, message):
    given = {"--model": "gradcam_nets:grey", "--input": "picture.png", **changed}
    with pytest.raises(UsageError, match=message):
        call(*(word for pair in given.items() for word in pair))


def test_weights_that_do_not_fit(tmp_path):
    torch.save({"0.weight": torch.zeros(1)}, "other.pt")
    with pytest.raises(UsageError, match=r"other\.pt does not fit the model"):
        call("--model", "gradcam_nets:grey", "--input", "picture.png", "--weights", "other.pt")


def test_weights_that_are_cut_off(tmp_path):
    torch.save({name: torch.zeros(shape) for name, shape in SHAPES.items()}, "net.pt")
    whole = (tmp_path / "net.pt").read_bytes()
    (tmp_path / "net.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"net\.pt cannot be read \(\w+\).*damaged$"):
        call("--model", "gradcam_nets:grey", "--input", "picture.png", "--weights", "net.pt")


def test_hookbus_finds_the_command(capsys):
    try:
        importlib.metadata.distribution("hookbus-gradcam")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("hookbus-gradcam is not installed here; `make test` installs it")
    assert main(["gradcam", "--model", "gradcam_nets:grey", "--input", "picture.png"]) == 0
    assert main(["gradcam", "--model", "gradcam_nets:grey", "--input", "none.png"]) == 2
    assert "hookbus: error: there is no picture 'none.png'" in capsys.readouterr().err
