"""Random streams: what is taken down and set again gives the same numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch

from hookbus.checkpoint import rng


def draws() -> Any:
    return (
        random.random(),
        random.gauss(0, 1),
        torch.rand(2).tolist(),
        numpy.random.rand(2).tolist(),
        numpy.random.randn(),
    )


def through_a_file(state: Any, tmp_path: Any) -> Any:
    torch.save(state, tmp_path / "x.pt")
    return torch.load(tmp_path / "x.pt", weights_only=True)


@pytest.mark.parametrize("plain", [True, False])
def test_all_streams_come_back(plain: bool, tmp_path: Any) -> None:
    random.gauss(0, 1)  # half of a pair is kept for the next call
    numpy.random.randn()
    state = rng.capture(plain=plain)
    expected = draws()
    rng.restore(through_a_file(state if plain else rng.as_plain(state), tmp_path))
    assert draws() == expected
    rng.restore(state)
    assert draws() == expected


def test_a_block_is_isolated() -> None:
    state = rng.capture()
    with rng.isolated():
        first = draws()
    with rng.isolated(state):
        assert draws() == first
    assert draws() == first


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Philox", "SFC64", "PCG64DXSM"])
def test_generators_of_numpy(kind: str, tmp_path: Any) -> None:
    stream = numpy.random.Generator(getattr(numpy.random, kind)(3))
    stream.integers(5, size=3)
    state = through_a_file(rng.stream_state(stream), tmp_path)
    expected = stream.random(4).tolist()
    rng.set_stream_state(stream, state)
    assert stream.random(4).tolist() == expected


def test_other_generators(tmp_path: Any) -> None:
    torchs, pythons, old = torch.Generator().manual_seed(1), random.Random(2), numpy.random.RandomState(3)
    for stream, draw in (
        (torchs, lambda: torch.rand(1, generator=torchs).item()),
        (pythons, pythons.random),
        (old, old.rand),
    ):
        state = through_a_file(rng.stream_state(stream), tmp_path)
        expected = draw()
        rng.set_stream_state(stream, state)
        assert draw() == expected


def test_streams_in_attributes() -> None:
    class Sampler:
        def __init__(self) -> None:
            self.generator, self.rng, self.size = torch.Generator(), numpy.random.default_rng(1), 3

    assert list(rng.streams_in(Sampler())) == ["generator", "rng"]
    held = type("Holder", (), {})()
    held.parts, held.back, held.data = [1, {"inner": Sampler()}], held, [Sampler() for _ in range(1000)]
    assert list(rng.streams_in(held)) == ["parts.1.inner.generator", "parts.1.inner.rng"]
    assert rng.streams_in(held, deep=False) == {}
    assert rng.streams_in(None) == {}
    assert rng.streams_in(3) == {}
