"""The base class, the logger that does nothing, and the helpers all loggers share."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from hookbus.loggers import DummyLogger, Logger
from hookbus.loggers.rank_zero import rank_from_environment, rank_zero_only
from hookbus.loggers.scalars import to_numbers


class Own(Logger):
    """The least that a logger must define."""

    saved = 0

    @property
    def name(self) -> str:
        return "own"

    @property
    def version(self) -> int:
        return 1

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def save(self) -> None:
        self.saved += 1


def test_a_logger_needs_four_methods() -> None:
    logger = Own()
    assert (logger.root_dir, logger.log_dir, logger.save_dir, logger.group_separator) == (None, None, None, "/")
    logger.log_graph(torch.nn.Identity())
    logger.after_save_checkpoint(object())
    logger.finalize("success")
    assert logger.saved == 1
    with pytest.raises(TypeError, match="abstract"):
        Logger()


def test_the_dummy_takes_everything() -> None:
    logger = DummyLogger()
    logger.log_metrics({"a": 1}, step=1)
    logger.log_hyperparams({"a": 1})
    logger.watch(model=1)
    logger.experiment.add_image("x", 1)
    logger[0].experiment["charts"].append(1)
    assert (logger.name, logger.version) == ("", "")
    assert isinstance(pickle.loads(pickle.dumps(copy.deepcopy(logger))), DummyLogger)


def test_only_rank_zero_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @rank_zero_only
    def answer() -> int:
        return 42

    assert answer() == 42
    monkeypatch.setattr(rank_zero_only, "rank", 3)
    assert answer() is None
    assert rank_zero_only(lambda: 1, default=7)() == 7


def test_the_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert rank_from_environment() == 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert rank_from_environment() == 1
    monkeypatch.setenv("RANK", "9")
    assert rank_from_environment() == 9


def test_numbers_are_made_together_and_keep_their_order() -> None:
    numpy = pytest.importorskip("numpy")
    metrics = {
        "f": torch.tensor(0.5),
        "text": "t",
        "i": torch.tensor([3]),
        "d": torch.tensor(0.1, dtype=torch.float64),
        "n": numpy.float32(2),
        "g": torch.tensor(1.5, requires_grad=True),
        "p": 4,
    }
    assert to_numbers(metrics) == {"f": 0.5, "text": "t", "i": 3, "d": 0.1, "n": 2.0, "g": 1.5, "p": 4}
    with pytest.raises(ValueError, match=r"'v'.*\(2,\)"):
        to_numbers({"v": torch.zeros(2)})
