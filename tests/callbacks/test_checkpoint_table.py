"""The table of kept checkpoints holds the best ones, whatever comes in whatever order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus.callbacks.checkpoint_table import CheckpointTable


@given(st.lists(st.integers(-3, 3), max_size=12), st.integers(1, 4), st.sampled_from(["min", "max"]))
def test_keeps_the_best(values: list[int], k: int, mode: str) -> None:
    table = CheckpointTable.empty(mode)
    for index, value in enumerate(values):
        score = torch.tensor(float(value))
        if table.admits(score, k=k, mode=mode):
            table = table.with_scored(str(index), score, k=k, mode=mode)
    best = sorted(values, reverse=mode == "max")[:k]
    assert sorted(map(float, table.best_k_models.values()), reverse=mode == "max") == best
    if values:
        assert float(table.best_model_score) == best[0] == float(table.best_k_models[table.best_model_path])
    if len(values) >= k:
        assert float(table.kth_value) == best[-1] == float(table.best_k_models[table.kth_best_model_path])
    else:
        assert table.kth_best_model_path == ""


@given(st.lists(st.integers(-3, 3), max_size=8))
def test_keeps_all(values: list[int]) -> None:
    table = CheckpointTable.empty("min")
    for index, value in enumerate(values):
        assert table.evicted(k=-1, mode="min") is None
        table = table.with_scored(str(index), torch.tensor(float(value)), k=-1, mode="min")
    assert list(map(float, table.best_k_models.values())) == values


def test_a_change_makes_a_new_table() -> None:
    table = CheckpointTable.empty("min")
    table.with_scored("a", torch.tensor(1.0), k=1, mode="min")
    assert table.best_k_models == {}
