"""The words for what a trainer is doing."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus


class Module(hookbus.LightningModule):
    """Writes down what the trainer says of itself."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.seen = []

    def look(self, where):
        t = self.trainer
        words = ("training", "validating", "testing", "predicting", "sanity_checking", "evaluating")
        said = [word for word in words if getattr(t, word)]
        self.seen.append((where, str(t.state.fn), str(t.state.status), str(t.state.stage), said))

    def training_step(self, batch, batch_idx):
        self.look("training_step")
        return self.net(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.look("validation_step")

    def test_step(self, batch, batch_idx):
        self.look("test_step")

    def predict_step(self, batch, batch_idx):
        self.look("predict_step")
        return 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def trainer():
    return hookbus.Trainer(
        max_epochs=1,
        num_sanity_val_steps=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
    )


LOADER = DataLoader(torch.ones(2, 2), batch_size=2)


def test_a_new_trainer_has_done_nothing(trainer):
    assert trainer.state == TrainerState()
    assert (trainer.state.finished, trainer.state.stopped, trainer.interrupted) == (False, False, False)


def test_the_stages_of_a_fit(trainer):
    module = Module()
    trainer.fit(module, LOADER, LOADER)
    assert module.seen == [
        ("validation_step", "fit", "running", "sanity_check", ["sanity_checking", "evaluating"]),
        ("training_step", "fit", "running", "train", ["training"]),
        ("validation_step", "fit", "running", "validate", ["validating", "evaluating"]),
    ]
    assert (trainer.state.status, trainer.state.stage, trainer.state.finished) == ("finished", None, True)


@pytest.mark.parametrize(
    ("entry", "said"),
    [("validate", ["validating", "evaluating"]), ("test", ["testing", "evaluating"]), ("predict", ["predicting"])],
)
def test_the_stage_of_each_other_entry_point(trainer, entry, said):
    module = Module()
    getattr(trainer, entry)(module, LOADER)
    ((_, fn, _, stage, words),) = module.seen
    assert (fn, stage, words) == (entry, entry, said)


def test_an_exception_leaves_it_interrupted(trainer):
    module = Module()
    module.training_step = lambda batch, batch_idx: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, LOADER)
    assert (trainer.state.status, trainer.state.stage) == ("interrupted", None)
    assert trainer.interrupted
    assert trainer.state.stopped


def test_a_refused_run_was_never_running(trainer):
    class Empty(hookbus.LightningModule):
        pass

    with pytest.raises(hookbus.MisconfigurationException):
        trainer.fit(Empty(), LOADER)
    assert trainer.state.status == "initializing"


def test_words_compare_and_print_as_strings():
    assert TrainerStatus.RUNNING == "running"
    assert f"{TrainerFn.FITTING} {RunningStage.SANITY_CHECKING}" == "fit sanity_check"


def test_the_prefix_of_the_loaders_of_each_stage():
    assert {stage.value: stage.dataloader_prefix for stage in RunningStage} == {
        "train": "train",
        "sanity_check": "val",
        "validate": "val",
        "test": "test",
        "predict": "predict",
    }
