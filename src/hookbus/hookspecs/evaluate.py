"""Evaluation: validation inside and outside fit, test, predict. The three stages have the same hooks.

One evaluation, as pseudo-code, S being validation, test or predict::

    on_validation_model_zero_grad            # validation within fit, unless gradients are being accumulated
    on_S_model_eval
    on_S_start, on_S_epoch_start
    for dataloader_idx, batches in enumerate(dataloaders):
        for batch in batches:
            (transfer, see batch.py)
            on_S_batch_start
            S_step
            on_S_batch_end
    on_S_epoch_end, on_S_end
    on_S_model_train                         # validation and test
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import STEP_OUTPUT, LightningModule, Trainer
from hookbus.markers import hookspec


@hookspec(firstresult=True, native_only=True)
def on_validation_model_zero_grad(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Free the gradients before validation, so that their memory is there for larger batches.

    Called within fit, before ``on_validation_model_eval``; not in the sanity check, and not in the middle of an
    accumulation window, whose gradients are still needed. The module's own method answers last; by default it clears
    the gradients of every parameter.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec(firstresult=True, native_only=True)
def on_validation_model_eval(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Put the module into the mode in which validation runs.

    Called first, before ``on_validation_start``. The module's own method answers last; by default it puts every
    submodule into eval mode. Replace it to keep dropout or batch statistics active.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec
def on_validation_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """A validation loop begins.

    Called after ``on_validation_model_eval`` and before ``on_validation_epoch_start``. Within fit this is before the
    training epoch's ``on_train_epoch_end``. Not every validation is a real one: ask ``trainer.sanity_checking``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_validation_epoch_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """A pass over the validation data begins.

    Called after ``on_validation_start`` and before the first batch is fetched; one pass covers all dataloaders.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_validation_batch_start(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
) -> None:
    """A validation batch begins, before anything is computed from it.

    Called after the batch was transferred to the device and before ``validation_step``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: the very object that ``validation_step`` will get, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; 0 where there is one.
    """


@hookspec(firstresult=True, native_only=True)
def validation_step(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
) -> STEP_OUTPUT:
    """Compute what validation needs from one batch.

    Called between ``on_validation_batch_start`` and ``on_validation_batch_end``, without gradients. The first answer
    that is not None counts; the module's own method answers last.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: what the dataloader made, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; a module's step without this parameter is called without it.

    Returns:
        The loss, a mapping, or None; it is handed to ``on_validation_batch_end`` and kept nowhere.
    """


@hookspec
def on_validation_batch_end(
    trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int, dataloader_idx: int
) -> None:
    """A validation batch is done.

    Called after ``validation_step``. Good for pictures of single samples and for counting errors.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        outputs: what ``validation_step`` returned.
        batch: the batch, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; 0 where there is one.
    """


@hookspec
def on_validation_epoch_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """A pass over the validation data is over.

    Called after the last batch of the last dataloader and before ``on_validation_end``. Metrics that were logged with
    ``on_epoch=True`` are reduced and logged after this hook, so more can be logged here.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_validation_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """A validation loop is over.

    Called after ``on_validation_epoch_end``. ``trainer.callback_metrics`` holds the results: the place for early
    stopping and for checkpoints by a metric. Those run before the module's own method.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec(firstresult=True, native_only=True)
def on_validation_model_train(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Put the module back into the mode it had before validation.

    Called last, after ``on_validation_end``. By default every submodule gets back the mode that it had before
    ``on_validation_model_eval``, so that frozen parts in eval mode stay in it. The module's own method answers last.

    Pitfall: who overrides it to call ``train()`` puts frozen submodules into training mode too.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec(firstresult=True, native_only=True)
def on_test_model_eval(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Put the module into the mode in which test runs.

    Called first, before ``on_test_start``. The module's own method answers last; by default it puts every submodule
    into eval mode. Replace it to keep dropout or batch statistics active.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec
def on_test_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """A test loop begins.

    Called after ``on_test_model_eval`` and before ``on_test_epoch_start``. The weights are those that were asked for
    (``ckpt_path``).

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_test_epoch_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """A pass over the test data begins.

    Called after ``on_test_start`` and before the first batch is fetched; one pass covers all dataloaders.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_test_batch_start(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
) -> None:
    """A test batch begins, before anything is computed from it.

    Called after the batch was transferred to the device and before ``test_step``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: the very object that ``test_step`` will get, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; 0 where there is one.
    """


@hookspec(firstresult=True, native_only=True)
def test_step(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
) -> STEP_OUTPUT:
    """Compute what testing needs from one batch.

    Called between ``on_test_batch_start`` and ``on_test_batch_end``, without gradients. The first answer that is not
    None counts; the module's own method answers last.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: what the dataloader made, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; a module's step without this parameter is called without it.

    Returns:
        The loss, a mapping, or None; it is handed to ``on_test_batch_end`` and kept nowhere.
    """


@hookspec
def on_test_batch_end(
    trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int, dataloader_idx: int
) -> None:
    """A test batch is done.

    Called after ``test_step``. Good for pictures of single samples and for counting errors.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        outputs: what ``test_step`` returned.
        batch: the batch, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; 0 where there is one.
    """


@hookspec
def on_test_epoch_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """A pass over the test data is over.

    Called after the last batch of the last dataloader and before ``on_test_end``. Metrics that were logged with
    ``on_epoch=True`` are reduced and logged after this hook, so more can be logged here.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_test_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """A test loop is over.

    Called after ``on_test_epoch_end``. ``trainer.callback_metrics`` holds the results.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec(firstresult=True, native_only=True)
def on_test_model_train(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Put the module back into the mode it had before test.

    Called last, after ``on_test_end``. By default every submodule gets back the mode that it had before
    ``on_test_model_eval``, so that frozen parts in eval mode stay in it. The module's own method answers last.

    Pitfall: who overrides it to call ``train()`` puts frozen submodules into training mode too.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec(firstresult=True, native_only=True)
def on_predict_model_eval(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Put the module into the mode in which prediction runs.

    Called first, before ``on_predict_start``. The module's own method answers last; by default it puts every submodule
    into eval mode. Replace it to keep dropout or batch statistics active.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec
def on_predict_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """A prediction loop begins.

    Called after ``on_predict_model_eval`` and before ``on_predict_epoch_start``. The weights are those that were asked
    for (``ckpt_path``).

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_predict_epoch_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """A pass over the prediction data begins.

    Called after ``on_predict_start`` and before the first batch is fetched; one pass covers all dataloaders.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_predict_batch_start(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
) -> None:
    """A prediction batch begins, before anything is computed from it.

    Called after the batch was transferred to the device and before ``predict_step``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: the very object that ``predict_step`` will get, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; 0 where there is one.
    """


@hookspec(firstresult=True, native_only=True)
def predict_step(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
    """Predict for one batch.

    Called between ``on_predict_batch_start`` and ``on_predict_batch_end``, without gradients. The first answer that is
    not None counts; the module's own method answers last.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: what the dataloader made, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; a module's step without this parameter is called without it.

    Returns:
        The predictions, of any type; ``Trainer.predict`` returns the list of them unless told not to.
    """


@hookspec
def on_predict_batch_end(
    trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int
) -> None:
    """A prediction batch is done.

    Called after ``predict_step``. Good for writing predictions as they come.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        outputs: what ``predict_step`` returned.
        batch: the batch, on the device.
        batch_idx: number of the batch in its dataloader, from 0.
        dataloader_idx: number of the dataloader, from 0; 0 where there is one.
    """


@hookspec
def on_predict_epoch_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """A pass over the prediction data is over.

    Called after the last batch of the last dataloader and before ``on_predict_end``. A place for writing predictions
    that were gathered over the epoch.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_predict_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """A prediction loop is over.

    Called after ``on_predict_epoch_end``. The last of the predict hooks before ``teardown``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """
