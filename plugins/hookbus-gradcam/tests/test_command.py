"""``hookbus gradcam``."""

from __future__ import annotations

import importlib.metadata
import re
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

class Failing(nn.Module):
    def __init__(self, backward=False):
        super().__init__()
        self.conv, self.backward = nn.Conv2d(1, 2, 3), backward

    def forward(self, x):
        x = self.conv(x)
        if self.backward:
            if x.requires_grad:
                x.register_hook(self.fail)
            return x.sum((2, 3))
        self.fail(x)

    def fail(self, x):
        raise RuntimeError("out of luck\\nand a long text")

def forward_fails():
    return Failing()

def backward_fails():
    return Failing(backward=True)

def fixed_size():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 3))

def bad_transform():
    return grey(), lambda image: image.no_such_method()

def transform_to_text():
    return grey(), lambda image: "no tensor"

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
    (tmp_path / "half.png").write_bytes((tmp_path / "picture.png").read_bytes()[:60])
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
        ({"--input": "."}, r"there is no picture '\.'"),
        ({"--input": "half.png"}, r"the picture 'half\.png' cannot be read, it may be damaged: "),
        ({"--input": "gradcam_nets.py"}, "expected a file of a kind that Pillow knows, such as PNG or JPEG$"),
        ({"--layer": "5"}, "no module of the network has such a name"),
        ({"--layer": "4"}, r"layer '4' gives \(1, 3\); expected \(N, K, …\)"),
        ({"--target": "-1"}, "target -1 of sample 0 is no class: the model gives scores for 0 to 2"),
        ({"--output": "logits"}, "has no 'logits'"),
        ({"--out": "gradcam_nets.py/x.png"}, r"--out: gradcam_nets\.py/x\.png cannot be written: "),
        (
            {"--model": "gradcam_nets:forward_fails"},
            r"forward_fails raised RuntimeError: out of luck \(gradcam_nets\.py:\d+\) when it was called with picture\.png, a "
            r"tensor of shape \(1, 1, 10, 20\); --size brings",
        ),
        ({"--model": "gradcam_nets:fixed_size"}, r"fixed_size raised RuntimeError: .*\(1, 1, 10, 20\); --size brings"),
        (
            {"--model": "gradcam_nets:backward_fails"},
            r"backward pass of gradcam_nets:backward_fails raised RuntimeError: out of luck \(gradcam_nets\.py:\d+\); a map",
        ),
        (
            {"--model": "gradcam_nets:bad_transform"},
            "the transform of gradcam_nets:bad_transform raised AttributeError: ",
        ),
        ({"--model": "gradcam_nets:transform_to_text"}, "must return a tensor, got str$"),
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


OTHER = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (
            {
                "0.weight": torch.zeros(1),
                "4.weight": OTHER["4.weight"],
                "head.bias": torch.zeros(3),
                "0.bias": OTHER["0.bias"],
            },
            "does not fit the model: it lacks 4.bias; the model has no head.bias; it has 0.weight of shape (1,) instead of "
            "(2, 1, 3, 3). Is it of another model, or of one that was made with other arguments?",
        ),
        ({"x": torch.zeros(1)}, "it lacks 0.weight, 0.bias, 4.weight and 1 more; the model has no x."),
        ({**OTHER, "4.bias": 3}, "it has 4.bias of shape none instead of (3,)."),
        (
            {"state_dict": {f"net.{name}": value for name, value in OTHER.items()} | {"more": torch.zeros(1)}},
            "They fit without 'net.' before the names",
        ),
        ([1, 2], "holds a list; expected tensors by name"),
        ({}, "holds an empty dictionary; expected"),
        ({"model": OTHER, "epoch": 3}, "holds a dictionary with model, epoch; expected tensors by name"),
        ({"state_dict": None}, "holds a NoneType; expected"),
    ],
)
def test_weights_that_do_not_fit(saved, message):
    torch.save(saved, "other.pt")
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        call("--model", "gradcam_nets:grey", "--input", "picture.png", "--weights", "other.pt")
    assert str(raised.value).startswith("--weights: other.pt ")
    assert "\n" not in str(raised.value)


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
    assert main(["gradcam", "--model", "gradcam_nets:forward_fails", "--input", "picture.png"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hookbus: error: --model: gradcam_nets:forward_fails raised RuntimeError: out of luck")
    assert len(said.splitlines()) == 1
