"""The examples do what they say: run as a user would, in this process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Write nothing into the project, and leave torch as it was."""
    monkeypatch.chdir(tmp_path)
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
