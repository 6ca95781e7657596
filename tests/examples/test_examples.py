"""The examples do what they say: run as a user would, in this process."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Write nothing into the project, let examples import each other as scripts do, and leave torch as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_are_read(capsys):
    accuracy = example("digits").main(["--out", "out"])
    out = capsys.readouterr().out
    assert accuracy > 0.97
    assert f"test accuracy: {accuracy:.1%}" in out
    metrics = out.rpartition("metrics: ")[2].strip()
    header = Path(metrics).read_text().splitlines()[0].split(",")
    assert {"epoch", "step", "train_loss", "test_accuracy"} <= set(header)


def test_digits_with_one_seed_are_the_same_twice():
    first, second = (example("digits").main(["--epochs", "1", "--seed", "7", "--out", str(i)]) for i in range(2))
    assert first == second


def test_plugin_in_ten_lines(capsys):
    clock = example("plugin_in_ten_lines").main()
    assert len(clock.seconds) == 40
    out = capsys.readouterr().out
    assert "40 backward passes" in out
    assert "1 BackwardClock wrapper\n2 module\n" in out


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed here; `make test` installs it")


def test_gradcam_of_a_face_detector_lies_on_the_face(capsys):
    needs("hookbus_gradcam", "facenet_pytorch", "skimage")
    share = example("gradcam_faces").main(["--out", "out"])
    assert share > 0.7
    out = capsys.readouterr().out
    assert f"Grad-CAM at prelu3: {share:.0%} of the map in the face box, 6% of the picture" in out
    assert Path("out/astronaut.png").read_bytes().startswith(b"\x89PNG")
    scores = dict(re.findall(r"(.Net): face ([\d.]+)", out))
    assert {name: float(score) > 0.99 for name, score in scores.items()} == {"RNet": True, "ONet": True}


def test_gradcam_of_the_digit_reader(capsys):
    needs("hookbus_gradcam")
    share = example("gradcam_digits").main(["--epochs", "2", "--out", "out"])
    assert share > 0.42  # of 39 % of the pixels
    names = sorted(path.name.partition("-")[0] for path in Path("out").rglob("*.png"))
    assert names == ["epoch=0000", "epoch=0000", "epoch=0001", "epoch=0001", "test.png"]
    assert "pictures of the training: 4 in out" in capsys.readouterr().out
