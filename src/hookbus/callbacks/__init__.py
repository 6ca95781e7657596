"""Built-in callbacks, one file each; loaded at their first use, as some of them need torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

#: Where each public name lives.
_HOMES = {
    "BackboneFinetuning": "hookbus.callbacks.finetuning",
    "BaseFinetuning": "hookbus.callbacks.finetuning",
    "BasePredictionWriter": "hookbus.callbacks.prediction_writer",
    "BatchSizeFinder": "hookbus.callbacks.batch_size_finder",
    "Callback": "hookbus.callback",
    "Checkpoint": "hookbus.callbacks.checkpoint",
    "DeviceStatsMonitor": "hookbus.callbacks.device_stats_monitor",
    "EMAWeightAveraging": "hookbus.callbacks.weight_averaging",
    "EarlyStopping": "hookbus.callbacks.early_stopping",
    "GradientAccumulationScheduler": "hookbus.callbacks.gradient_accumulation_scheduler",
    "LambdaCallback": "hookbus.callbacks.lambda_function",
    "LearningRateFinder": "hookbus.callbacks.lr_finder",
    "LearningRateMonitor": "hookbus.callbacks.lr_monitor",
    "ModelCheckpoint": "hookbus.callbacks.model_checkpoint",
    "ModelPruning": "hookbus.callbacks.pruning",
    "ModelSummary": "hookbus.callbacks.model_summary",
    "OnExceptionCheckpoint": "hookbus.callbacks.on_exception_checkpoint",
    "PlainProgress": "hookbus.callbacks.progress",
    "ProgressBar": "hookbus.callbacks.progress",
    "RichModelSummary": "hookbus.callbacks.rich_model_summary",
    "RichProgressBar": "hookbus.callbacks.progress",
    "SpikeDetection": "hookbus.callbacks.spike",
    "StochasticWeightAveraging": "hookbus.callbacks.stochastic_weight_avg",
    "TQDMProgressBar": "hookbus.callbacks.progress.tqdm_bar",
    "ThroughputMonitor": "hookbus.callbacks.throughput_monitor",
    "TimedProgressBar": "hookbus.callbacks.progress",
    "Timer": "hookbus.callbacks.timer",
    "WeightAveraging": "hookbus.callbacks.weight_averaging",
}
_SUBMODULES = (
    "batch_size_finder",
    "checkpoint",
    "device_stats_monitor",
    "early_stopping",
    "finetuning",
    "gradient_accumulation_scheduler",
    "lambda_function",
    "lr_finder",
    "lr_monitor",
    "model_checkpoint",
    "model_summary",
    "on_exception_checkpoint",
    "prediction_writer",
    "progress",
    "pruning",
    "rich_model_summary",
    "spike",
    "stochastic_weight_avg",
    "throughput_monitor",
    "timer",
    "weight_averaging",
)

if TYPE_CHECKING:
    from hookbus.callback import Callback
    from hookbus.callbacks.batch_size_finder import BatchSizeFinder
    from hookbus.callbacks.checkpoint import Checkpoint
    from hookbus.callbacks.device_stats_monitor import DeviceStatsMonitor
    from hookbus.callbacks.early_stopping import EarlyStopping
    from hookbus.callbacks.finetuning import BackboneFinetuning, BaseFinetuning
    from hookbus.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from hookbus.callbacks.lambda_function import LambdaCallback
    from hookbus.callbacks.lr_finder import LearningRateFinder
    from hookbus.callbacks.lr_monitor import LearningRateMonitor
    from hookbus.callbacks.model_checkpoint import ModelCheckpoint
    from hookbus.callbacks.model_summary import ModelSummary
    from hookbus.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
    from hookbus.callbacks.prediction_writer import BasePredictionWriter
    from hookbus.callbacks.progress import PlainProgress, ProgressBar, RichProgressBar, TimedProgressBar
    from hookbus.callbacks.progress.tqdm_bar import TQDMProgressBar
    from hookbus.callbacks.pruning import ModelPruning
    from hookbus.callbacks.rich_model_summary import RichModelSummary
    from hookbus.callbacks.spike import SpikeDetection
    from hookbus.callbacks.stochastic_weight_avg import StochasticWeightAveraging
    from hookbus.callbacks.throughput_monitor import ThroughputMonitor
    from hookbus.callbacks.timer import Timer
    from hookbus.callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "Checkpoint",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "PlainProgress",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "SpikeDetection",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "ThroughputMonitor",
    "TimedProgressBar",
    "Timer",
    "WeightAveraging",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return import_module(f"hookbus.callbacks.{name}")
    raise AttributeError(f"module 'hookbus.callbacks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_SUBMODULES})
