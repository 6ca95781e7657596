"""Which checkpoints a run keeps, as a value: a new one is made for each save, and becomes valid once its file exists."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class CheckpointTable:
    """The checkpoints that were kept, best and worst of them, and the last one.

    The fields have the names under which :class:`~hookbus.callbacks.ModelCheckpoint` shows and saves them.

    Attributes:
        best_k_models: the score of each kept file, by path; empty where nothing is monitored.
        kth_best_model_path: the worst of them, once there are as many as may be kept.
        kth_value: its score; before that the worst score possible.
        best_model_path: the best of them; where nothing is monitored the newest file.
        best_model_score: its score.
        current_score: the score of the file saved last.
        last_model_path: the file that always holds the newest state.
    """

    best_k_models: dict[str, Tensor]
    kth_best_model_path: str
    kth_value: Tensor
    best_model_path: str
    best_model_score: Tensor | None
    current_score: Tensor | None
    last_model_path: str

    @classmethod
    def empty(cls, mode: str) -> CheckpointTable:
        """Nothing kept yet."""
        return cls({}, "", worst_score(mode), "", None, None, "")

    @classmethod
    def of(cls, owner: Any) -> CheckpointTable:
        """The table that stands in the attributes of ``owner``."""
        return cls(**{field.name: getattr(owner, field.name) for field in fields(cls)})

    def publish(self, owner: Any) -> None:
        """Make this the table in the attributes of ``owner``."""
        for field in fields(self):
            setattr(owner, field.name, getattr(self, field.name))

    def admits(self, score: Tensor, *, k: int, mode: str) -> bool:
        """Whether a checkpoint with ``score`` belongs among the ``k`` best; ``k`` -1 takes all."""
        if k == -1 or len(self.best_k_models) < k:
            return True
        return k > 0 and is_better(score, self.best_k_models[self._worst(mode)], mode)

    def evicted(self, *, k: int, mode: str) -> str | None:
        """The path that has to go for another checkpoint to come in; None if there is room."""
        return self._worst(mode) if k > 0 and len(self.best_k_models) >= k else None

    def with_scored(self, path: str, score: Tensor, *, k: int, mode: str) -> CheckpointTable:
        """With ``path``, and without the one that it drives out."""
        kept = dict(self.best_k_models)
        out = self.evicted(k=k, mode=mode)
        if out is not None:
            del kept[out]
        kept[path] = score
        best = min(kept, key=lambda p: _rank(kept[p], mode))
        table = replace(
            self, best_k_models=kept, best_model_path=best, best_model_score=kept[best], current_score=score
        )
        if k != -1 and len(kept) < k:
            return table
        worst = table._worst(mode)
        return replace(table, kth_best_model_path=worst, kth_value=kept[worst])

    def _worst(self, mode: str) -> str:
        """The worst path; among equals the oldest."""
        return max(self.best_k_models, key=lambda path: _rank(self.best_k_models[path], mode))


def worst_score(mode: str) -> Tensor:
    """Infinity, with the sign that makes it the worst score."""
    return torch.tensor(float("inf") if mode == "min" else float("-inf"))


def is_better(score: Tensor, than: Tensor, mode: str) -> bool:
    """Whether ``score`` is strictly better; NaN is never better."""
    return bool(score < than) if mode == "min" else bool(score > than)


def _rank(score: Tensor, mode: str) -> float:
    """A number that is lower for a better score."""
    value = float(score)
    return value if mode == "min" else -value
