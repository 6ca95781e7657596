"""The frame around every entry point: set-up, the work, tear-down; and what happens when something is raised.

::

    configure_callbacks
    prepare_data, setup, configure_model
    [checkpoint: on_load_checkpoint, load_state_dict]
    fit only: configure_optimizers, on_fit_start
    the loop
    fit only: on_fit_end
    teardown, finalize("success")
    on_run_close                      # always, whatever was raised

An exception goes to every ``on_exception``, then ``finalize("failed")``, then ``on_run_close``, then to the caller:
the first one that was raised, with later ones as its notes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from hookbus.bus import add_note, blame
from hookbus.checkpoint import restore
from hookbus.engine.device import bring_to
from hookbus.seed import isolate_rng
from hookbus.trainer import schedules
from hookbus.trainer.data import end_workers
from hookbus.trainer.signals import sigterm_noticed
from hookbus.trainer.states import RunningStage, TrainerFn, TrainerStatus
from hookbus.trainer.tracebacks import shortened

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


def run(trainer: Trainer, body: Callable[[], Any], ckpt_path: str | None, weights_only: bool | None) -> Any:
    """Run one entry point whose function, module and data are attached to ``trainer`` already.

    Args:
        trainer: in state RUNNING.
        body: the loop.
        ckpt_path: a checkpoint to load first.
        weights_only: refuse to unpickle anything but tensors and plain data; None: as is safe.

    Returns:
        What ``body`` returned.
    """
    failure: BaseException | None = None
    try:
        with ExitStack() as around:
            around.enter_context(sigterm_noticed(trainer))
            around.enter_context(trainer._profiled())
            if trainer.settings.detect_anomaly:
                around.enter_context(torch.autograd.set_detect_anomaly(True))
            result = _run(trainer, body, ckpt_path, weights_only)
        trainer.state.status = TrainerStatus.FINISHED
        trainer.state.stage = None
        return result
    except BaseException as error:
        failure = error
        _interrupted(trainer, error)
        if isinstance(error, StopIteration):  # to a generator or a loop around the call it would look like its own end
            failure = RuntimeError(
                f"StopIteration was raised in user code during {trainer.state.fn}; it must not leave a hook"
            )
            raise failure from error
        raise error.with_traceback(shortened(error.__traceback__))  # noqa: B904 - it is the same error
    finally:
        _close(trainer, failure)


def _run(trainer: Trainer, body: Callable[[], Any], ckpt_path: str | None, weights_only: bool | None) -> Any:
    module, fire, fn = trainer.lightning_module, trainer.bus.fire, trainer.state.fn
    assert fn is not None
    fitting = fn is TrainerFn.FITTING
    trainer._participants.attach_model_callbacks()
    fire.prepare_data(trainer)
    for logger in trainer.loggers:
        getattr(logger, "experiment", None)  # made now, so that names, versions and folders are there in setup
    trainer._participants.set_up(fn)
    trainer._shortcuts.begin()
    with trainer._precision.init_context():
        fire.configure_model(trainer, module)
        fire.configure_sharded_model(trainer, module)
    checkpoint = restore.load_file(ckpt_path, weights_only) if ckpt_path else None
    if checkpoint is not None:
        restore.before_setup(trainer, checkpoint, fitting=fitting)
    trainer._precision.convert_module(module)
    bring_to(module, trainer.strategy.root_device)
    if fitting:
        _set_up_optimizers(trainer)
    if checkpoint is not None and fitting:
        restore.training_state(trainer, checkpoint)
    trainer.taps.attach(module, trainer=True)
    if fitting:
        fire.on_fit_start(trainer, module)
    _announce_to_loggers(trainer)
    module.zero_grad()
    if fitting:
        _sanity_check(trainer)
    result = body()
    trainer._writer.wait()
    if fitting:
        fire.on_fit_end(trainer, module)
    fire.teardown(trainer, module, fn.value)
    fire.finalize(trainer, "success")
    trainer._writer.wait()  # what was saved meanwhile
    return result


def _set_up_optimizers(trainer: Trainer) -> None:
    """Ask for optimisers and schedulers, anew for every fit."""
    module = trainer.lightning_module
    answer = trainer.bus.fire.configure_optimizers(trainer, module)
    optimizers, configs = schedules.parse(answer, automatic=module.automatic_optimization)
    trainer._use_optimizers(optimizers, configs)


def _announce_to_loggers(trainer: Trainer) -> None:
    """Tell the loggers hyper-parameters and graph, once per entry point."""
    module = trainer.lightning_module
    params = trainer._hyper_parameters() if trainer.loggers else {}
    if params:
        trainer.bus.fire.log_hyperparams(trainer, params)
    for logger in trainer.loggers:
        logger.log_graph(module)
        logger.save()


def _sanity_check(trainer: Trainer) -> None:
    """A few validation batches before training, so that a mistake there does not cost an epoch."""
    if not trainer.enable_validation or trainer.settings.num_sanity_val_steps == 0 or trainer.progress.mid_epoch:
        return
    if trainer.ckpt_path is not None and trainer.max_steps != -1:
        return  # a run that counts in steps goes on where it was, as in Lightning
    if trainer.settings.limit_val_batches == 0 or not trainer.bus.implemented("validation_step"):
        return
    fire, module = trainer.bus.fire, trainer.lightning_module
    trainer.state.stage = RunningStage.SANITY_CHECKING
    fire.on_sanity_check_start(trainer, module)
    with isolate_rng():  # the check must not change what the training draws
        trainer.fit_loop.val_loop.run()
    fire.on_sanity_check_end(trainer, module)
    trainer._metrics.reset()
    trainer.state.stage = RunningStage.TRAINING


def _interrupted(trainer: Trainer, error: BaseException) -> None:
    """Tell everybody; whatever goes wrong meanwhile becomes a note of the first error."""
    trainer.state.status = TrainerStatus.INTERRUPTED
    source = blame(error)
    trainer.fit_loop.place.failed_in = source[0] if source is not None else None
    if source is not None and source[1] not in ("module", "datamodule"):
        add_note(error, f"raised by plugin {source[1]!r} in hook {source[0]!r}")
    module = trainer.lightning_module
    _noting(error, "the reading of methods that were assigned", trainer._participants.follow)
    _noting(error, "on_exception", lambda: trainer.bus.fire.on_exception(trainer, module, error))
    _noting(error, "the writing of a checkpoint", trainer._writer.wait)
    _noting(error, "finalize", lambda: trainer.bus.fire.finalize(trainer, "failed"))


def _close(trainer: Trainer, failure: BaseException | None) -> None:
    """Fire ``on_run_close``; its errors are raised only if nothing else was."""
    stage = trainer.state.fn.value if trainer.state.fn is not None else ""

    def close() -> None:
        try:
            trainer.bus.fire.on_run_close(trainer, trainer.lightning_module, stage, failure)
        finally:
            trainer._shortcuts.end()
            trainer.taps.detach()
            _end_workers(trainer)

    if failure is None:
        close()
    else:
        _noting(failure, "on_run_close", close)
        trainer.state.stage = None


def _end_workers(trainer: Trainer) -> None:
    """End the processes that load data, which persistent ones would outlive the run."""
    if trainer.state.fn is TrainerFn.FITTING:
        trainer.fit_loop.place.freeze()
    for loop in (
        trainer.fit_loop,
        trainer.fit_loop.val_loop,
        trainer.validate_loop,
        trainer.test_loop,
        trainer.predict_loop,
    ):
        if loop.loaders is not None:
            end_workers(loop.loaders.loaders)


def _noting(first: BaseException, where: str, action: Callable[[], Any]) -> None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - the first error is what the user must see; this one is its note
        if error is not first:
            add_note(first, f"then, in {where}: {type(error).__name__}: {error}")
            for note in getattr(error, "__notes__", ()):
                add_note(first, note)
