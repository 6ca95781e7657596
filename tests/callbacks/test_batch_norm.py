from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, run
from tests.callbacks.data.scenarios_batch_b import net

from hookbus.callbacks import Callback
from hookbus.callbacks.batch_norm import has_batch_norm, update_batch_norm


class AtTheEnd(Callback):
    """Computes the statistics, and notes what else has changed."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        before = (torch.get_rng_state().tolist(), trainer.callback_metrics, [p.training for p in pl_module.modules()])
        update_batch_norm(trainer)
        after = (torch.get_rng_state().tolist(), trainer.callback_metrics, [p.training for p in pl_module.modules()])
        assert before == after


def test_statistics_are_those_of_torchs_own_update(tmp_path: Path) -> None:
    model = net(HOOKBUS, batch_norm=True)
    run(model, AtTheEnd(), folder=tmp_path, max_epochs=2)
    ours = [model.backbone[1].running_mean.clone(), model.backbone[1].running_var.clone()]
    torch.optim.swa_utils.update_bn(model.train_dataloader(), model)
    torch.testing.assert_close(ours, [model.backbone[1].running_mean, model.backbone[1].running_var])
    assert model.backbone[1].momentum == 0.1


def test_momentum_comes_back_after_an_error(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.room = 0
            update_batch_norm(trainer)

    model = net(HOOKBUS, batch_norm=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(model, Failing(), folder=tmp_path)
    assert model.backbone[1].momentum == 0.1


def test_manual_optimization_is_told_to_see_to_it(tmp_path: Path) -> None:
    model = net(HOOKBUS, batch_norm=True, automatic_optimization=False)
    with pytest.warns(UserWarning, match=r"call torch\.optim\.swa_utils\.update_bn"):
        run(model, AtTheEnd(), folder=tmp_path)
    assert has_batch_norm(model)
    assert not has_batch_norm(net(HOOKBUS))
