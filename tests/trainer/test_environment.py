"""Arguments of the trainer that stand in the environment."""

from __future__ import annotations

import inspect

import pytest

import hookbus


def trainer(tmp_path, kind=hookbus.Trainer, **options):
    return kind(accelerator="cpu", default_root_dir=tmp_path, enable_progress_bar=False, **options)


@pytest.mark.parametrize(
    ("name", "value", "argument", "meant"),
    [
        ("MAX_STEPS", "7", "max_steps", 7),
        ("LIMIT_VAL_BATCHES", "0.5", "limit_val_batches", 0.5),
        ("MAX_TIME", "00:01:00:00", "max_epochs", -1),
        ("MAX_EPOCHS", "", "max_epochs", 1000),
    ],
)
def test_a_variable_stands_for_an_argument_that_is_not_given(tmp_path, monkeypatch, name, value, argument, meant):
    monkeypatch.setenv(f"PL_TRAINER_{name}", value)
    assert getattr(trainer(tmp_path), argument) == meant


def test_an_argument_that_is_given_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("PL_TRAINER_MAX_STEPS", "7")
    monkeypatch.setenv("PL_TRAINER_LOGGER", "False")
    run = trainer(tmp_path, max_steps=3)
    assert (run.max_steps, run.logger) == (3, None)


def test_a_class_of_ones_own_has_variables_of_its_own(tmp_path, monkeypatch):
    class Mine(hookbus.Trainer):
        """Another name."""

    monkeypatch.setenv("PL_MINE_MAX_EPOCHS", "4")
    assert trainer(tmp_path, Mine).max_epochs == 4
    assert trainer(tmp_path).max_epochs == 1000


def test_the_signature_is_still_that_of_the_trainer():
    assert "max_epochs" in inspect.signature(hookbus.Trainer).parameters
