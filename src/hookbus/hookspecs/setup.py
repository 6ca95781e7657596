"""Set-up and end of a run: configuration, data, model, optimizers, teardown, errors.

The order in ``Trainer.fit``: ``modify_config``, ``configure_callbacks``, ``prepare_data``, ``setup``,
``configure_model``, (loading a checkpoint,) ``configure_optimizers``, then the hooks of :mod:`hookbus.hookspecs.fit`,
``teardown``, ``on_run_close``. The other entry points do the same without ``configure_optimizers``.
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import LightningModule, Trainer
from hookbus.markers import hookspec

# The data module prepares what the others then look at.
_DATAMODULE_FIRST = ("datamodule", "callback", "plugin", "default", "module")
# Plugins may answer in place of both; of the two, the data module is the one meant for data.
_DATAMODULE_BEFORE_MODULE = ("callback", "plugin", "default", "datamodule", "module")


@hookspec(native_only=True)
def modify_config(trainer: Trainer, config: Any) -> None:
    """Change the configuration before anything is made from it.

    Called first of all, before loggers and directories exist. Good for plugins that name runs, choose directories or
    fill in what the machine knows.

    Args:
        trainer: the trainer that is being set up; most of it is not there yet.
        config: the configuration of this run; change it in place.
    """


@hookspec(native_only=True)
def configure_callbacks(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Give callbacks that belong to the model.

    Called at the start of every entry point, before ``prepare_data`` and ``setup``; the callbacks that come out take
    part from ``setup`` on.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        A callback or a list of callbacks. They are added to the Trainer's own; one whose type the Trainer already has
        replaces that one.
    """


@hookspec(native_only=True, owners=_DATAMODULE_BEFORE_MODULE)
def prepare_data(trainer: Trainer) -> None:
    """Download, unpack or tokenise data: work that one process per node does for the others.

    Called before ``setup``, on one process of each node only, the others wait. The data module's method comes before
    the module's.

    Pitfall: attributes set here do not exist on the other processes; read the data in ``setup``.

    Args:
        trainer: the trainer that runs.
    """


@hookspec(owners=_DATAMODULE_FIRST)
def setup(trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
    """Get ready for a stage, on every process.

    Called after ``prepare_data`` and before ``configure_model``, once per entry point: the data module's method first,
    then callbacks, plugins and the module's method. Good for splitting data, opening files, and for changing
    ``trainer.callbacks`` or the model before optimizers exist.

    Pitfall: where ``configure_model`` builds layers, they do not exist yet.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
    """


@hookspec(native_only=True)
def configure_model(trainer: Trainer, pl_module: LightningModule) -> None:
    """Create layers inside the strategy's and precision's context, so that they are born sharded and in the right type.

    Called after ``setup`` and before weights are loaded and optimizers are made, once per entry point.

    Pitfall: the same process may fit, validate and test, so the method must be idempotent: build a layer only if it is
    not there yet.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec(
    native_only=True,
    warn_on_impl=DeprecationWarning("configure_sharded_model is deprecated: implement configure_model instead"),
)
def configure_sharded_model(trainer: Trainer, pl_module: LightningModule) -> None:
    """Create layers in a sharding context: the deprecated name of ``configure_model``.

    It still works, at the same place; whoever implements it gets a ``DeprecationWarning`` at registration.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec(firstresult=True, native_only=True)
def configure_optimizers(trainer: Trainer, pl_module: LightningModule) -> Any:
    """Make the optimizers and learning-rate schedulers.

    Called in fit only, after ``configure_model`` and after the weights of a resumed run are loaded, before
    ``on_fit_start``. The first answer that is not None counts; the module's own method answers last, so a plugin can
    replace it, or wrap it and change what it made.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.

    Returns:
        One of six forms: an optimizer; a list or tuple of optimizers; two lists (optimizers, schedulers); a dictionary
        ``{"optimizer": ..., "lr_scheduler": ...}``; a tuple of such dictionaries; None to train without an optimizer.
        A scheduler may itself be a dictionary with ``scheduler``, ``interval`` (``"epoch"`` or ``"step"``),
        ``frequency``, ``monitor``, ``strict``, ``name``.
    """


@hookspec(firstresult=True, native_only=True, owners=_DATAMODULE_BEFORE_MODULE)
def train_dataloader(trainer: Trainer) -> Any:
    """Give the training batches.

    Called in fit after the sanity check and before ``on_train_start``, and again where dataloaders are reloaded. The
    first answer that is not None counts: plugins, then the data module, then the module. Loaders given to ``fit`` as
    arguments take the place of the methods.

    Args:
        trainer: the trainer that runs.

    Returns:
        A ``DataLoader``, any iterable of batches, or a collection of them.
    """


@hookspec(firstresult=True, native_only=True, owners=_DATAMODULE_BEFORE_MODULE)
def val_dataloader(trainer: Trainer) -> Any:
    """Give the validation batches.

    Called at the first use: for the sanity check, else after ``train_dataloader``; in ``validate`` after
    ``configure_model``. The first answer that is not None counts: plugins, then the data module, then the module.

    Args:
        trainer: the trainer that runs.

    Returns:
        A ``DataLoader``, any iterable of batches, or a list of them: its index is the ``dataloader_idx`` of the steps.
    """


@hookspec(firstresult=True, native_only=True, owners=_DATAMODULE_BEFORE_MODULE)
def test_dataloader(trainer: Trainer) -> Any:
    """Give the test batches.

    Called in ``test`` after ``configure_model``, before ``on_test_start``. The first answer that is not None counts:
    plugins, then the data module, then the module.

    Args:
        trainer: the trainer that runs.

    Returns:
        A ``DataLoader``, any iterable of batches, or a list of them: its index is the ``dataloader_idx`` of the steps.
    """


@hookspec(firstresult=True, native_only=True, owners=_DATAMODULE_BEFORE_MODULE)
def predict_dataloader(trainer: Trainer) -> Any:
    """Give the batches to predict for.

    Called in ``predict`` after ``configure_model``, before ``on_predict_start``. The first answer that is not None
    counts: plugins, then the data module, then the module.

    Args:
        trainer: the trainer that runs.

    Returns:
        A ``DataLoader``, any iterable of batches, or a list of them: its index is the ``dataloader_idx`` of the steps.
    """


@hookspec(collect_errors=True)
def on_exception(trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
    """Hear of an exception that ends the run.

    Called once, from wherever the run was, before the exception leaves; ``on_train_end``, ``on_fit_end`` and
    ``teardown`` are not called then, ``on_run_close`` is. Every implementation is called even if one raises: the user
    sees the first error, the others are attached to it as notes. Good for saving what can be saved and for alarms.

    Pitfall: other processes may be elsewhere or dead, so nothing here may wait for them.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        exception: what was raised; also ``KeyboardInterrupt`` and what SIGTERM is turned into.
    """


@hookspec(owners=_DATAMODULE_FIRST)
def teardown(trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
    """Clean up after a stage that ended well.

    Called once per entry point, after its last loop hook (``on_fit_end``, ``on_test_end``, …): the data module's
    method first, then callbacks, plugins and the module's method.

    Pitfall: as in Lightning it is *not* called after an exception; release what must be released in ``on_run_close``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``, as in ``setup``.
    """


@hookspec(collect_errors=True, native_only=True)
def on_run_close(trainer: Trainer, pl_module: LightningModule, stage: str, exception: BaseException | None) -> None:
    """Release handles, files and threads: always the last hook of an entry point.

    Called exactly once per entry point, after ``teardown`` or after ``on_exception``. Every implementation runs even if
    one raises: the first error is what the user sees, the others are its notes.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        exception: None after a run that ended well, else what is leaving.
    """
