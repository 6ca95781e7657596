"""The trainer's arguments: defaults, meanings, refusals."""

from __future__ import annotations

import math
import os
from datetime import timedelta

import pytest

import hookbus
from hookbus.errors import MisconfigurationException


def settings(**options):
    options = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
        **options,
    }
    return hookbus.Trainer(**options).settings


def test_the_defaults_are_lightnings():
    s = settings()
    assert (s.max_epochs, s.min_epochs, s.max_steps, s.min_steps) == (1000, None, -1, None)
    assert (s.limit_train_batches, s.limit_val_batches, s.limit_test_batches) == (1.0, 1.0, 1.0)
    assert (s.val_check_interval, s.check_val_every_n_epoch, s.num_sanity_val_steps) == (1.0, 1, 2)
    assert (s.log_every_n_steps, s.accumulate_grad_batches, s.gradient_clip_val) == (50, 1, None)
    assert (s.inference_mode, s.detect_anomaly, s.fast_dev_run, s.barebones) == (True, False, 0, False)
    assert s.default_root_dir == os.getcwd()


@pytest.mark.parametrize(
    ("options", "epochs", "steps"),
    [
        ({}, 1000, -1),
        ({"max_steps": 5}, -1, 5),
        ({"max_steps": 5, "max_epochs": 2}, 2, 5),
        ({"max_epochs": -1}, -1, -1),
        ({"max_epochs": 0}, 0, -1),
        ({"max_time": "00:01:00:00"}, -1, -1),
        ({"fast_dev_run": True, "max_epochs": 9, "max_steps": 99}, 1, 1),
        ({"fast_dev_run": 3}, 1, 3),
    ],
)
def test_limits_of_epochs_and_steps(options, epochs, steps):
    s = settings(**options)
    assert (s.max_epochs, s.max_steps) == (epochs, steps)


def test_a_minimum_of_steps_means_at_least_one_epoch():
    assert settings(min_steps=3).min_epochs == 1
    assert settings(min_steps=3, min_epochs=2).min_epochs == 2


def test_fast_dev_run_is_short_everywhere():
    s = settings(fast_dev_run=2, limit_val_batches=7, num_sanity_val_steps=3, val_check_interval=5)
    assert (s.limit_train_batches, s.limit_val_batches, s.limit_test_batches, s.limit_predict_batches) == (2, 2, 2, 2)
    assert (s.num_sanity_val_steps, s.val_check_interval, s.log_every_n_steps) == (0, 1.0, 1)


def test_overfitting_limits_training_and_validation():
    s = settings(overfit_batches=3)
    assert (s.limit_train_batches, s.limit_val_batches, s.limit_test_batches) == (3, 3, 1.0)


def test_minus_one_checks_all_batches_before_training():
    assert settings(num_sanity_val_steps=-1).num_sanity_val_steps == math.inf
    assert settings(barebones=True).num_sanity_val_steps == 0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("01:02:03:04", timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ({"minutes": 5}, timedelta(minutes=5)),
        (timedelta(hours=1), timedelta(hours=1)),
        (None, None),
    ],
)
def test_a_time_limit_in_each_form(given, meant):
    assert settings(max_time=given).max_time == meant


@pytest.mark.parametrize("given", [timedelta(seconds=90), {"minutes": 1, "seconds": 30}, "00:00:01:30"])
def test_a_time_between_validations_in_each_form(given):
    assert settings(val_check_interval=given).val_check_interval == timedelta(seconds=90)
    assert settings(val_check_interval=given, check_val_every_n_epoch=None).check_val_every_n_epoch is None


def test_a_whole_number_may_be_written_as_a_float():
    s = settings(limit_train_batches=3.0, val_check_interval=2.0)
    assert (s.limit_train_batches, s.val_check_interval) == (3, 2)
    assert isinstance(s.limit_train_batches, int)


def test_overfitting_limits_a_trial_run_too():
    s = settings(overfit_batches=4, fast_dev_run=2)
    assert (s.limit_train_batches, s.limit_val_batches, s.limit_test_batches) == (4, 4, 2)


def test_barebones_logs_at_no_step_unless_told_to():
    assert settings(barebones=True).log_every_n_steps == 0
    assert settings(barebones=True, log_every_n_steps=5).log_every_n_steps == 5


def test_the_clipping_algorithm_is_read_in_any_case():
    assert settings(gradient_clip_algorithm="Value").gradient_clip_algorithm == "value"


def test_counting_batches_across_epochs():
    s = settings(check_val_every_n_epoch=None, val_check_interval=7)
    assert (s.check_val_every_n_epoch, s.val_check_interval) == (None, 7)
    assert settings(check_val_every_n_epoch=None).val_check_interval == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": -2}, "max_epochs must be an int >= 0, or -1 for no limit, got -2"),
        ({"max_epochs": 1.5}, "max_epochs must be an int"),
        ({"max_epochs": True}, "max_epochs must be an int"),
        ({"max_steps": None}, "max_steps must be an int >= 0, or -1 for no limit, got None"),
        ({"max_steps": -5}, "max_steps must be an int"),
        ({"min_epochs": -1}, "min_epochs must be an int >= 0"),
        ({"min_steps": 0.5}, "min_steps must be an int >= 0"),
        ({"max_time": "1:00"}, "max_time must be a timedelta, a dict of its arguments or 'DD:HH:MM:SS', got '1:00'"),
        ({"fast_dev_run": -1}, "fast_dev_run must be a bool or a number of batches >= 0"),
        ({"fast_dev_run": "yes"}, "fast_dev_run must be a bool"),
        ({"limit_train_batches": 1.5}, r"limit_train_batches must be a number of batches \(int >= 0\) or a share"),
        ({"limit_val_batches": -1}, "limit_val_batches must be a number of batches"),
        ({"limit_test_batches": "3"}, "limit_test_batches must be a number of batches"),
        ({"limit_predict_batches": True}, "limit_predict_batches must be a number of batches"),
        ({"overfit_batches": 2.5}, "overfit_batches must be a number of batches"),
        ({"val_check_interval": 0}, "val_check_interval must be >= 1 batch, got 0"),
        ({"val_check_interval": 1.2}, "val_check_interval must be a number of batches"),
        ({"val_check_interval": True}, "val_check_interval must be a number of batches"),
        (
            {"val_check_interval": "1:00"},
            "val_check_interval must be a timedelta, a dict of its arguments or 'DD:HH:MM:SS'",
        ),
        ({"check_val_every_n_epoch": 0}, "check_val_every_n_epoch must be a number of epochs >= 1, or None"),
        (
            {"check_val_every_n_epoch": None, "val_check_interval": 0.5},
            r"must be a number of batches \(int\) or a time, got 0\.5",
        ),
        ({"num_sanity_val_steps": -2}, "num_sanity_val_steps must be an int >= 0, or -1 for all batches"),
        ({"log_every_n_steps": -1}, "log_every_n_steps must be an int >= 0"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches must be an int >= 1, got 0"),
        ({"gradient_clip_algorithm": "norms"}, "gradient_clip_algorithm must be 'norm' or 'value', got 'norms'"),
        ({"deterministic": "maybe"}, "deterministic must be True, False, None or 'warn'"),
        ({"reload_dataloaders_every_n_epochs": -1}, "reload_dataloaders_every_n_epochs must be an int >= 0"),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_reason(options, message):
    with pytest.raises(MisconfigurationException, match=message):
        settings(**options)


def test_a_clipping_value_that_is_no_number_is_a_type_error():
    with pytest.raises(TypeError, match=r"gradient_clip_val must be a number or None, got '0\.5'"):
        settings(gradient_clip_val="0.5")
