"""LambdaCallback: every hook there is, when Lightning calls it, and nothing else."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.callbacks.batch_a import HOOKBUS, RECORDED, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callback import CALLBACK_HOOKS
from hookbus.callbacks import LambdaCallback


def test_does_as_lightning(tmp_path: Path) -> None:
    """Hooks of evaluation batches may be told the loader, also of the only one, so arguments are not compared."""
    found, expected = observed("lambdas", tmp_path)["calls"], RECORDED["lambdas"]["calls"]
    assert [call.partition("/")[0] for call in found] == [call.partition("/")[0] for call in expected]


def test_takes_all_hooks_that_callbacks_have() -> None:
    callback = LambdaCallback(**dict.fromkeys(CALLBACK_HOOKS, print))
    assert all(getattr(callback, name) is print for name in CALLBACK_HOOKS)
    assert list(inspect.signature(LambdaCallback).parameters) == list(CALLBACK_HOOKS)


def test_functions_of_few_arguments_with_several_loaders(tmp_path: Path) -> None:
    seen = []
    callback = LambdaCallback(
        on_validation_batch_start=lambda trainer, module, batch, batch_idx: seen.append(batch_idx),
        on_validation_batch_end=lambda trainer, module, outputs, batch, batch_idx, loader_idx: seen.append(loader_idx),
    )
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=1, callbacks=[callback])
    trainer.fit(HOOKBUS.model(), loader(2), [loader(2), loader(2)])
    assert seen == [0, 0, 0, 1]


def test_an_exception_in_a_function_is_the_users(tmp_path: Path) -> None:
    heard = []

    def fail(*args: object) -> None:
        raise KeyError("as planned")

    callback = LambdaCallback(on_train_start=fail, on_exception=lambda trainer, module, error: heard.append(error))
    with pytest.raises(KeyError, match="as planned") as caught:
        HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[callback]).fit(HOOKBUS.model(), loader(2))
    assert heard == [caught.value]


def test_none_counts_as_absent() -> None:
    assert "on_fit_end" not in vars(LambdaCallback(on_fit_end=None))


def test_another_name_is_refused() -> None:
    with pytest.raises(TypeError, match="no hook 'on_train_bacth_end'; did you mean 'on_train_batch_end'"):
        LambdaCallback(on_train_bacth_end=print)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="setup must be a function, got 'print'"):
        LambdaCallback(setup="print")
