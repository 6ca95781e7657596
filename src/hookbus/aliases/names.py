"""Which of Lightning's names hookbus serves, and where each lives. Pure data, and one function that reads it.

A table has one entry per module, by its path below the root; an entry says for each home which names come from there,
``theirs=ours`` where they differ. What is not in the table is not served: there are no placeholders.
"""

from __future__ import annotations

from functools import cache
from typing import Final

Table = dict[str, dict[str, str]]

#: ``lightning.pytorch`` and ``pytorch_lightning``.
PYTORCH: Final[Table] = {
    "": {"hookbus": "Callback LightningDataModule LightningModule Trainer seed_everything"},
    # -- callbacks
    "callbacks": {
        "hookbus.callbacks": (
            "BackboneFinetuning BaseFinetuning BasePredictionWriter BatchSizeFinder Callback Checkpoint DeviceStatsMonitor "
            "EMAWeightAveraging EarlyStopping GradientAccumulationScheduler LambdaCallback LearningRateFinder "
            "LearningRateMonitor ModelCheckpoint ModelPruning ModelSummary OnExceptionCheckpoint ProgressBar "
            "RichModelSummary RichProgressBar SpikeDetection StochasticWeightAveraging TQDMProgressBar ThroughputMonitor "
            "Timer WeightAveraging"
        )
    },
    "callbacks.batch_size_finder": {"hookbus.callbacks": "BatchSizeFinder"},
    "callbacks.callback": {"hookbus": "Callback"},
    "callbacks.checkpoint": {"hookbus.callbacks": "Checkpoint"},
    "callbacks.device_stats_monitor": {"hookbus.callbacks": "DeviceStatsMonitor"},
    "callbacks.early_stopping": {"hookbus.callbacks.early_stopping": "EarlyStopping EarlyStoppingReason"},
    "callbacks.finetuning": {"hookbus.callbacks.finetuning": "BackboneFinetuning BaseFinetuning multiplicative"},
    "callbacks.gradient_accumulation_scheduler": {"hookbus.callbacks": "GradientAccumulationScheduler"},
    "callbacks.lambda_function": {"hookbus.callbacks": "LambdaCallback"},
    "callbacks.lr_finder": {"hookbus.callbacks": "LearningRateFinder"},
    "callbacks.lr_monitor": {"hookbus.callbacks": "LearningRateMonitor"},
    "callbacks.model_checkpoint": {"hookbus.callbacks": "ModelCheckpoint"},
    "callbacks.model_summary": {"hookbus.callbacks": "ModelSummary"},
    "callbacks.on_exception_checkpoint": {"hookbus.callbacks": "OnExceptionCheckpoint"},
    "callbacks.prediction_writer": {"hookbus.callbacks.prediction_writer": "BasePredictionWriter WriteInterval"},
    "callbacks.progress": {"hookbus.callbacks": "ProgressBar RichProgressBar TQDMProgressBar"},
    "callbacks.progress.progress_bar": {"hookbus.callbacks.progress.base": "ProgressBar get_standard_metrics"},
    "callbacks.progress.rich_progress": {"hookbus.callbacks.progress.rich_bar": "RichProgressBar RichProgressBarTheme"},
    "callbacks.progress.tqdm_progress": {"hookbus.callbacks": "TQDMProgressBar", "tqdm.auto": "Tqdm=tqdm"},
    "callbacks.pruning": {"hookbus.callbacks": "ModelPruning"},
    "callbacks.rich_model_summary": {"hookbus.callbacks": "RichModelSummary"},
    "callbacks.spike": {"hookbus.callbacks": "SpikeDetection"},
    "callbacks.stochastic_weight_avg": {"hookbus.callbacks": "StochasticWeightAveraging"},
    "callbacks.throughput_monitor": {"hookbus.callbacks": "ThroughputMonitor"},
    "callbacks.timer": {"hookbus.callbacks.timer": "Interval Timer"},
    "callbacks.weight_averaging": {"hookbus.callbacks": "EMAWeightAveraging WeightAveraging"},
    # -- what users derive from
    "core": {"hookbus": "LightningDataModule LightningModule"},
    "core.datamodule": {"hookbus": "LightningDataModule"},
    "core.hooks": {"hookbus.module_hooks": "CheckpointHooks DataHooks ModelHooks"},
    "core.mixins": {"hookbus.hparams": "HyperparametersMixin"},
    "core.mixins.hparams_mixin": {"hookbus.hparams": "HyperparametersMixin"},
    "core.module": {"hookbus": "LightningModule"},
    "core.optimizer": {"hookbus.engine.optimizer": "LightningOptimizer"},
    "demos": {},
    "demos.boring_classes": {
        "hookbus.aliases.boring": (
            "BoringDataModule BoringModel ManualOptimBoringModel RandomDataset RandomDictDataset RandomIterableDataset "
            "RandomIterableDatasetWithLen"
        )
    },
    # -- loggers
    "loggers": {"hookbus.loggers": "CSVLogger Logger TensorBoardLogger"},
    "loggers.csv_logs": {"hookbus.loggers.csv": "CSVLogger ExperimentWriter"},
    "loggers.logger": {
        "hookbus.loggers.logger": "DummyLogger Logger",
        "hookbus.loggers.rank_zero": "DummyExperiment rank_zero_experiment",
    },
    "loggers.tensorboard": {"hookbus.loggers": "TensorBoardLogger"},
    "loggers.utilities": {"hookbus.aliases.saved": "_scan_checkpoints=scan_checkpoints"},
    # -- strategies
    "strategies": {"hookbus.engine.strategy": "SingleDeviceStrategy Strategy"},
    "strategies.single_device": {"hookbus.engine.strategy": "SingleDeviceStrategy"},
    "strategies.strategy": {"hookbus.engine.strategy": "Strategy"},
    # -- the trainer
    "trainer": {"hookbus": "Trainer", "hookbus.seed": "seed_everything"},
    "trainer.states": {"hookbus.trainer.states": "RunningStage TrainerFn TrainerState TrainerStatus"},
    "trainer.trainer": {"hookbus": "Trainer"},
    # -- the tuner
    "tuner": {"hookbus.tuner": "Tuner"},
    "tuner.tuning": {"hookbus.tuner": "Tuner"},
    # -- utilities
    "utilities": {
        "hookbus.aliases.grads": "grad_norm",
        "hookbus.aliases.inspection": "is_picklable",
        "hookbus.aliases.rank_zero": "rank_zero_deprecation rank_zero_info rank_zero_warn",
        "hookbus.engine.device": "move_data_to_device=move_to",
        "hookbus.engine.throughput": "measure_flops",
        "hookbus.hparams": "AttributeDict",
        "hookbus.loggers.rank_zero": "rank_zero_only",
        "hookbus.trainer.combined": "CombinedLoader",
    },
    "utilities.combined_loader": {"hookbus.trainer.combined": "CombinedLoader"},
    "utilities.compile": {"hookbus.trainer.compiled": "from_compiled to_uncompiled"},
    "utilities.exceptions": {
        "hookbus.errors": "MisconfigurationException",
        "hookbus.trainer.signals": "SIGTERMException",
    },
    "utilities.grads": {"hookbus.aliases.grads": "grad_norm"},
    "utilities.model_helpers": {"hookbus.aliases.inspection": "is_overridden"},
    "utilities.model_summary": {
        "hookbus.aliases.summary": "ModelSummary summarize",
        "hookbus.model_summary": "LayerSummary",
    },
    "utilities.model_summary.model_summary": {
        "hookbus.aliases.summary": "ModelSummary summarize",
        "hookbus.model_summary": "LayerSummary",
    },
    "utilities.parsing": {
        "hookbus.aliases.inspection": "get_init_args is_picklable lightning_getattr lightning_hasattr lightning_setattr",
        "hookbus.hparams": "AttributeDict",
    },
    "utilities.rank_zero": {
        "hookbus.aliases.rank_zero": (
            "LightningDeprecationWarning WarningCache _get_rank=rank rank_zero_debug rank_zero_deprecation rank_zero_info "
            "rank_zero_warn"
        ),
        "hookbus.loggers.rank_zero": "rank_zero_only",
    },
    "utilities.seed": {"hookbus.seed": "isolate_rng seed_everything"},
    "utilities.warnings": {"hookbus.errors": "PossibleUserWarning"},
    "utilities.types": {
        "hookbus.aliases.types": (
            "EVAL_DATALOADERS LRSchedulerPLType LRSchedulerTypeUnion OptimizerLRScheduler STEP_OUTPUT TRAIN_DATALOADERS "
            "_EVALUATE_OUTPUT _PREDICT_OUTPUT"
        ),
        "hookbus.trainer.schedules": "LRSchedulerConfig",
    },
}

#: ``lightning.fabric`` and ``lightning_fabric``: what clients of the Trainer take from there; there is no Fabric.
FABRIC: Final[Table] = {
    "": {"hookbus": "seed_everything"},
    "loggers": {
        "hookbus.loggers": "CSVLogger TensorBoardLogger",
        "hookbus.loggers.logger": "Logger=MetricLogger",
    },
    "loggers.logger": {
        "hookbus.loggers.logger": "Logger=MetricLogger",
        "hookbus.loggers.rank_zero": "rank_zero_experiment",
    },
    "utilities": {
        "hookbus.aliases.rank_zero": "rank_zero_deprecation rank_zero_info rank_zero_warn",
        "hookbus.engine.device": "move_data_to_device=move_to",
        "hookbus.engine.throughput": "Throughput measure_flops",
        "hookbus.hparams": "AttributeDict",
        "hookbus.loggers.rank_zero": "rank_zero_only",
    },
    "utilities.apply_func": {"hookbus.engine.device": "move_data_to_device=move_to"},
    "utilities.cloud_io": {"hookbus.aliases.cloud_io": "get_filesystem"},
    "utilities.exceptions": {"hookbus.errors": "MisconfigurationException"},
    "utilities.logger": {
        "hookbus.aliases.params": "_flatten_dict=flatten_dict _sanitize_callable_params=sanitize_callable_params",
        "hookbus.loggers.logger": "_add_prefix=prefixed _convert_params=plain_params",
    },
    "utilities.rank_zero": {
        "hookbus.aliases.rank_zero": (
            "LightningDeprecationWarning WarningCache _get_rank=rank rank_zero_debug rank_zero_deprecation rank_zero_info "
            "rank_zero_warn"
        ),
        "hookbus.loggers.rank_zero": "rank_zero_only",
    },
    "utilities.seed": {"hookbus.seed": "seed_everything"},
    "utilities.spike": {"hookbus.callbacks.spike": "TrainingSpikeException"},
    "utilities.throughput": {"hookbus.engine.throughput": "Throughput measure_flops"},
    "utilities.warnings": {"hookbus.errors": "PossibleUserWarning"},
    "utilities.types": {"hookbus.aliases.types": "_DEVICE _MAP_LOCATION_TYPE _PARAMETERS _PATH"},
}

#: ``lightning`` itself.
TOP: Final[Table] = {"": {"hookbus": "Callback LightningDataModule LightningModule Trainer seed_everything"}}

_PLACES: Final = (
    ("lightning", TOP),
    ("lightning.pytorch", PYTORCH),
    ("pytorch_lightning", PYTORCH),
    ("lightning.fabric", FABRIC),
    ("lightning_fabric", FABRIC),
)
ROOTS: Final = ("lightning", "pytorch_lightning", "lightning_fabric")

_NO_CLI: Final = (
    "hookbus has no LightningCLI; read the arguments in the script (argparse, or jsonargparse, on which LightningCLI stands), "
    "and start it with `hookbus run SCRIPT`"
)
#: Why some names that people look for are not there, and what to take in their place.
REASONS: Final = {
    "Fabric": "hookbus has no Fabric; in a loop of your own, fire the hooks of a hookbus.Bus",
    "LightningCLI": _NO_CLI,
    "cli": _NO_CLI,
    "profilers": (
        'a profiler is named to the Trainer, profiler="simple"|"advanced"|"pytorch", or is a context manager such as '
        "torch.profiler.profile(…); `with trainer.bus.timed()` times every implementation"
    ),
}


@cache
def served() -> dict[str, dict[str, tuple[str, str]]]:
    """For each module, by its full name: the names in it, each with its home and its name there."""
    return {
        f"{root}.{path}" if path else root: {
            theirs: (home, ours or theirs)
            for home, names in homes.items()
            for theirs, _, ours in (name.partition("=") for name in names.split())
        }
        for root, table in _PLACES
        for path, homes in table.items()
    }
