from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from hookbus.seed import isolate_rng, seed_everything


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "")  # so that monkeypatch puts back what it was, whatever a test does
        monkeypatch.delenv(name)
    with isolate_rng():
        yield


def draw() -> list[float]:
    return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]


def test_the_values_are_those_of_lightning() -> None:
    assert seed_everything(42, verbose=False) == 42
    assert draw() == pytest.approx([0.6394267984578837, 0.3745401188473625, 0.8822692632675171])


def test_the_seed_is_in_the_environment_for_other_processes() -> None:
    seed_everything(5, workers=True, verbose=False)
    assert (os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"]) == ("5", "1")
    assert seed_everything(verbose=False) == 5
    assert os.environ["PL_SEED_WORKERS"] == "0"


def test_without_any_seed_it_is_0_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="taking 0"):
        assert seed_everything() == 0
    assert capsys.readouterr().err == "seed set to 0\n"


@pytest.mark.parametrize(("seed", "number"), [("12", 12), (numpy.int64(3), 3), (2**32 - 1, 2**32 - 1)])
def test_whole_numbers_of_any_kind(seed: Any, number: int) -> None:
    assert seed_everything(seed, verbose=False) == number


@pytest.mark.parametrize("seed", [-1, 2**32, "x", 1.5, True])
def test_bad_seeds(seed: Any) -> None:
    with pytest.raises(ValueError, match="whole number from 0 to 4294967295"):
        seed_everything(seed)


def test_a_bad_seed_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "abc")
    with pytest.raises(ValueError, match=r"PL_GLOBAL_SEED.*'abc'"):
        seed_everything()


def test_isolated_draws_leave_no_trace_even_if_they_fail() -> None:
    seed_everything(1, verbose=False)
    expected = draw()
    seed_everything(1, verbose=False)
    with pytest.raises(ZeroDivisionError), isolate_rng():
        _ = draw()[0] / 0
    assert draw() == expected
