"""The callbacks that print the summary: numbers as recorded from Lightning, when they print, and who is there by default."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import rich
import torch
from rich.console import Console
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus import Trainer
from hookbus.callbacks import ModelSummary, RichModelSummary, RichProgressBar, TQDMProgressBar
from hookbus.errors import MisconfigurationException


def summaries_of(trainer: Any) -> list[str]:
    return [type(c).__name__ for c in trainer.callbacks if isinstance(c, ModelSummary)]


def test_does_as_lightning(tmp_path: Path) -> None:
    found = observed("summaries", tmp_path)
    expected = {
        name: dict(numbers, columns=dict(numbers["columns"])) for name, numbers in RECORDED["summaries"].items()
    }
    for numbers in expected.values():
        if "In sizes" not in numbers["columns"]:  # nothing was measured: Lightning shows FLOPs of 0, hookbus no column
            assert set(numbers["columns"].pop("FLOPs")) == {"0"}
    agree(found, expected)


def test_prints_when_a_fit_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, callbacks=[ModelSummary()])
    trainer.fit(HOOKBUS.model(), loader(2), [loader(2), loader(2)])
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if "Name" in line)
    assert [line.split() for line in lines[start : start + 3 : 2]] == [
        ["Name", "Type", "Params", "Mode"],
        ["0", "layer", "Linear", "3", "train"],
    ]
    assert "3 parameters (0.000 MB): 3 trainable, 0 frozen" in lines
    trainer.test(HOOKBUS.model(), loader(2), verbose=False)
    assert "Name" not in capsys.readouterr().out


def test_rich_prints_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=100)
    monkeypatch.setattr(rich, "_console", console)
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, callbacks=[RichModelSummary(header_style="bold")])
    model = HOOKBUS.model()
    model.example_input_array = torch.zeros(4, 2)
    trainer.fit(model, loader(2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("Params", "[4, 2]", "[4, 1]", "3 parameters", "16 FLOPs"))


def test_an_input_that_does_not_fit_costs_the_sizes_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = HOOKBUS.model()
    model.example_input_array = torch.zeros(4, 99)
    trainer = HOOKBUS.trainer(tmp_path, max_steps=1, callbacks=[ModelSummary()])
    with pytest.warns(
        UserWarning, match="shows no sizes, because Line failed on its example_input_array: RuntimeError"
    ):
        trainer.fit(model, loader(2))
    assert "3 parameters" in capsys.readouterr().out
    assert trainer.global_step == 1


def test_the_run_is_the_same_with_and_without(tmp_path: Path) -> None:
    weights = []
    for callbacks in ([], [ModelSummary(-1)]):
        model = HOOKBUS.model(forward=lambda module, x: module.layer(torch.nn.functional.dropout(x)))
        model.example_input_array = torch.zeros(4, 2)
        HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=callbacks).fit(model, loader(8))
        weights.append(model.layer.weight.detach().clone())
    assert torch.equal(*weights)


def test_depth_0_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    HOOKBUS.trainer(tmp_path, fast_dev_run=True, callbacks=[ModelSummary(0)]).fit(HOOKBUS.model(), loader(2))
    assert "Name" not in capsys.readouterr().out


def test_options_reach_summarize(tmp_path: Path) -> None:
    heard: dict[str, Any] = {}

    class Sent(ModelSummary):
        def summarize(self, summary_data: Any, *totals: Any, total_flops: int, **options: Any) -> None:  # type: ignore[override]
            heard.update(options, flops=total_flops)

    HOOKBUS.trainer(tmp_path, fast_dev_run=True, callbacks=[Sent(1, channel="#runs")]).fit(HOOKBUS.model(), loader(2))
    assert heard == {"channel": "#runs", "flops": 0}


def test_a_trainer_has_one_by_itself() -> None:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    assert summaries_of(Trainer(**quiet)) == ["ModelSummary"]
    assert summaries_of(Trainer(**quiet, enable_model_summary=False)) == []
    assert summaries_of(Trainer(logger=False, barebones=True)) == []
    assert summaries_of(Trainer(**quiet, callbacks=RichModelSummary())) == ["RichModelSummary"]
    assert summaries_of(Trainer(**quiet, callbacks=ModelSummary(2), enable_model_summary=False)) == ["ModelSummary"]


def test_it_is_drawn_as_the_bar_is() -> None:
    quiet = {"logger": False, "enable_checkpointing": False}
    assert summaries_of(Trainer(**quiet, callbacks=RichProgressBar())) == ["RichModelSummary"]
    assert summaries_of(Trainer(**quiet, callbacks=TQDMProgressBar())) == ["ModelSummary"]


def test_it_gives_way_to_one_that_the_module_brings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    for brought in (RichModelSummary(0), ModelSummary(0)):
        trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, enable_model_summary=True)
        trainer.fit(HOOKBUS.model(configure_callbacks=lambda module, own=brought: own), loader(2))
        assert [c for c in trainer.callbacks if isinstance(c, ModelSummary)] == [brought]
    assert not [w for w in recwarn if "replaces" in str(w.message)]


@pytest.mark.parametrize("depth", [-2, "all"])
def test_bad_arguments_are_refused(depth: Any) -> None:
    with pytest.raises(MisconfigurationException, match="max_depth must be -1 for all layers"):
        ModelSummary(depth)
