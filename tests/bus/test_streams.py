"""Random streams are held cheaply and put back exactly."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from hookbus.bus import streams
from hookbus.bus.streams import Snapshot, Stream

DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "seed": lambda: random.seed(5),
    "numpy uniform": lambda: np.random.rand(3).tolist(),
    "numpy normal": np.random.randn,
    "numpy binomial": lambda: int(np.random.binomial(20, 0.3)),
    "numpy seed": lambda: np.random.seed(5),
    "torch": lambda: torch.rand(3).tolist(),
    "torch normal": lambda: torch.randn(1).item(),
    "torch seed": lambda: torch.manual_seed(5) and None,
}


def future():
    """What the streams would give next."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    values = [random.random(), random.gauss(0, 1), np.random.randn(), np.random.rand(), torch.randn(2).tolist()]
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return values


@pytest.fixture(autouse=True, params=[0, 1], ids=["even", "odd"])
def _seeded(request):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for _ in range(request.param):  # Gaussian numbers are made in pairs: with and without one kept
        random.gauss(0, 1)
        np.random.randn()


@pytest.mark.parametrize("draw", DRAWS)
def test_a_stream_that_was_drawn_from_is_put_back(draw):
    for _ in range(3):
        expected = future()
        snapshot = Snapshot()
        DRAWS[draw]()
        snapshot.restore()
        assert future() == expected
        random.random()  # the run goes on drawing
        np.random.rand()
        torch.rand(1)


def test_all_at_once_and_many_times():
    expected = future()
    for _ in range(3):
        snapshot = Snapshot()
        for draw in DRAWS.values():
            draw()
        snapshot.restore()
        assert future() == expected


def test_snapshots_within_snapshots():
    expected = future()
    outer = Snapshot()
    random.random()
    np.random.rand()
    within = future()
    inner = Snapshot()
    random.random()
    np.random.randn()
    inner.restore()
    assert future() == within
    outer.restore()
    assert future() == expected


def test_the_grad_mode_is_put_back():
    snapshot = Snapshot()
    torch.set_grad_enabled(False)
    snapshot.restore()
    assert torch.is_grad_enabled()
    with torch.no_grad():
        snapshot = Snapshot()
        torch.set_grad_enabled(True)
        snapshot.restore()
        assert not torch.is_grad_enabled()


def test_another_bit_generator_of_numpy_is_put_back_too():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        expected = np.random.get_state(legacy=False)
        snapshot = Snapshot()
        np.random.rand()
        snapshot.restore()
        assert pickle.dumps(np.random.get_state(legacy=False)) == pickle.dumps(expected)
    finally:
        np.random.set_bit_generator(before)
    expected = future()
    snapshot = Snapshot()
    np.random.rand()
    snapshot.restore()
    assert future() == expected


def test_a_state_is_asked_for_only_after_the_stream_has_moved():
    source, asked = random.Random(0), []

    def save():
        asked.append(1)
        return source.getstate()

    stream = Stream(source.getstate, save, source.setstate)
    for _ in range(5):
        held = stream.hold()
        source.random()
        stream.put_back(held)
    assert len(asked) == 1
    source.random()
    stream.hold()
    assert len(asked) == 2


def test_where_memory_cannot_be_trusted_states_are_compared(monkeypatch):
    monkeypatch.setattr(streams, "_shows", lambda peek, draws: False)
    streams._python_stream.cache_clear()
    streams._numpy_stream.cache_clear()
    try:
        expected = future()
        snapshot = Snapshot()
        for draw in DRAWS.values():
            draw()
        snapshot.restore()
        assert future() == expected
    finally:
        streams._python_stream.cache_clear()
        streams._numpy_stream.cache_clear()


def test_a_look_that_misses_a_draw_is_found_out():
    source = random.Random(0)
    assert not streams._shows(lambda: 7, [source.random])
    assert not streams._shows(source.random, [source.random])
    assert streams._shows(source.getstate, [source.random, source.random])


def test_this_interpreter_shows_its_draws():
    if sys.implementation.name == "cpython":
        assert streams._python_stream()._peek != random.getstate
        assert streams._numpy_stream()._peek.__name__ == "peek"


class FakeCuda:
    """A CUDA device as far as a snapshot sees it."""

    def __init__(self, capturing=False):
        self.state, self.capturing = torch.zeros(16, dtype=torch.uint8), capturing

    def is_initialized(self):
        return True

    def is_current_stream_capturing(self):
        return self.capturing

    def current_device(self):
        return 1

    def get_rng_state(self, device):
        assert device == 1
        return self.state.clone()

    def set_rng_state(self, state, device):
        assert device == 1
        self.state = state


@pytest.mark.parametrize(("capturing", "offset"), [(False, 0), (True, 4)])
def test_the_current_cuda_device_is_put_back_unless_a_graph_is_captured(monkeypatch, capturing, offset):
    cuda = FakeCuda(capturing)
    monkeypatch.setattr(torch, "cuda", cuda)
    snapshot = Snapshot()
    cuda.state = cuda.state + 4
    snapshot.restore()
    assert cuda.state[0].item() == offset


def test_neither_numpy_nor_torch_is_imported():
    code = (
        "import sys; from hookbus.bus.streams import Snapshot; s = Snapshot(); s.restore(); "
        "sys.exit(any(m in sys.modules for m in ('numpy', 'torch')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
