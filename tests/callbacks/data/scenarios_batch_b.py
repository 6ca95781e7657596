"""Small seeded runs of finders, averages, finetuning and pruning, written so that Lightning and hookbus can run them.

Each function takes a :class:`Library` and a folder to write to, and returns numbers and words that JSON can hold.
``record_batch_b.py`` runs them under Lightning; the tests run them under hookbus and compare.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.callbacks.data.scenarios_batch_a import Library, plain, quietly
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def data(samples: int = 16) -> TensorDataset:
    """Inputs of four numbers, and the sum of their squares."""
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, x.square().sum(1, keepdim=True))


def net(library: Library, *, batch_norm: bool = False, **parts: Callable[..., Any]) -> Any:
    """A seeded module with a backbone and a head; ``parts`` are methods that replace its own."""

    class Net(library.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.lr, self.batch_size, self.samples, self.room = 0.01, 4, 16, 10**9
            middle = [nn.BatchNorm1d(8)] if batch_norm else []
            self.backbone = nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh())
            self.head = nn.Linear(8, 1)
            self.sizes: list[int] = []
            self.rates: list[list[float]] = []
            self.seen: list[float] = []

        def train_dataloader(self) -> Any:
            return DataLoader(data(self.samples), batch_size=self.batch_size)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.backbone(x))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            if len(x) > self.room:
                raise RuntimeError("CUDA out of memory. Tried to allocate 1 EiB")
            loss = nn.functional.mse_loss(self(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            if len(batch[0]) > self.room:
                raise RuntimeError("CUDA out of memory. Tried to allocate 1 EiB")
            self.seen.append(self.head.weight.abs().sum().item())
            self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=self.lr, momentum=0.5)

        def on_train_epoch_start(self) -> None:
            self.rates.append([group["lr"] for group in self.trainer.optimizers[0].param_groups])

    library.seed_everything(7)
    return type("Net", (Net,), parts)()


def weights(model: Any) -> dict[str, Any]:
    """All weights and statistics, but for counters."""
    return {
        name: value.flatten().tolist() for name, value in model.state_dict().items() if not name.endswith("_tracked")
    }


def fit(library: Library, folder: Path, model: Any, callback: Any, *, val: bool = False, **arguments: Any) -> Any:
    """Train; the trainer comes back."""
    trainer = library.trainer(folder, callbacks=[callback], **{"max_epochs": 1, **arguments})
    with quietly():
        trainer.fit(model, val_dataloaders=DataLoader(data(8), batch_size=4) if val else None)
    return trainer


# -- finders -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Where steps grow beyond all bounds, the last digits of single precision differ between processors."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@double_precision()
def learning_rates(library: Library, folder: Path) -> dict[str, Any]:
    """The curve and the suggestion, and the training that follows."""
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "exponential": ({}, {}),
        "linear": ({"mode": "linear", "max_lr": 0.2, "num_training_steps": 40}, {}),
        "diverging": ({"max_lr": 100.0, "early_stop_threshold": 2.0}, {}),
        "never stopped": ({"max_lr": 5.0, "early_stop_threshold": None, "num_training_steps": 30}, {}),
        "accumulating": ({"num_training_steps": 25}, {"accumulate_grad_batches": 2}),
        "too few steps": ({"num_training_steps": 8}, {}),
        "untouched": ({"update_attr": False}, {}),
    }
    found = {}
    for name, (arguments, of_trainer) in cases.items():
        model = net(library)
        model.samples = 420  # Lightning's search ends with the last epoch of the training
        finder = library.callbacks.LearningRateFinder(**arguments)
        trainer = fit(library, folder, model, finder, **of_trainer)
        curve = finder.optimal_lr
        with quietly():
            suggestion = curve.suggestion()
        found[name] = {
            "lr": curve.results["lr"],
            "loss": plain(curve.results["loss"]),
            "suggestion": suggestion,
            "attribute": model.lr,
            "rates": model.rates[-1],
            "step": trainer.global_step,
            "weights": weights(model),
            "metrics": sorted(trainer.callback_metrics),
        }
    return found


@double_precision()
def learning_rate_by_tuner(library: Library, folder: Path) -> dict[str, Any]:
    """The search by a call."""
    tuner = importlib.import_module("lightning.pytorch.tuner" if _is_lightning(library) else "hookbus.tuner")
    model = net(library)
    model.samples = 420
    before = weights(model)
    trainer = library.trainer(folder, max_epochs=1)
    with quietly():
        curve = tuner.Tuner(trainer).lr_find(model, num_training=30)
    after = weights(model)
    return {
        "suggestion": curve.suggestion(),
        "attribute": model.lr,
        "same": before == after,
        "step": trainer.global_step,
    }


def batch_sizes(library: Library, folder: Path) -> dict[str, Any]:
    """The size that is found, and the training that follows."""
    cases: dict[str, tuple[dict[str, Any], int, int]] = {
        "power": ({}, 500, 100),
        "binsearch": ({"mode": "binsearch"}, 500, 100),
        "binsearch without margin": ({"mode": "binsearch", "margin": 0.0}, 500, 100),
        "all the data fit": ({}, 100, 10**9),
        "all the data fit, binsearch": ({"mode": "binsearch", "margin": 0.0}, 100, 10**9),
        "few trials": ({"max_trials": 3}, 500, 100),
        "few trials, binsearch": ({"mode": "binsearch", "max_trials": 4, "margin": 0.0}, 500, 100),
        "another start": ({"init_val": 5}, 500, 100),
    }
    found = {}
    for name, (arguments, samples, room) in cases.items():
        model = net(library, val_dataloader=lambda self: DataLoader(data(8), batch_size=4))
        model.samples, model.room = samples, room
        finder = library.callbacks.BatchSizeFinder(steps_per_trial=1, **arguments)
        trainer = fit(library, folder, model, finder, limit_train_batches=3)
        found[name] = {
            "found": finder.optimal_batch_size,
            "attribute": model.batch_size,
            "loader": trainer.train_dataloader.batch_size,
            "step": trainer.global_step,
            "weights": weights(model),
        }
    return found


def batch_size_by_tuner(library: Library, folder: Path) -> dict[str, Any]:
    """The search by a call, in fit and in validation."""
    tuner = importlib.import_module("lightning.pytorch.tuner" if _is_lightning(library) else "hookbus.tuner")
    found = {}
    for method in ("fit", "validate"):
        model = net(library, val_dataloader=lambda self: DataLoader(data(self.samples), batch_size=self.batch_size))
        model.samples, model.room = 200, 40
        trainer = library.trainer(folder, max_epochs=1)
        with quietly():
            size = tuner.Tuner(trainer).scale_batch_size(model, method=method, mode="binsearch", margin=0.0)
        found[method] = {"size": size, "attribute": model.batch_size, "weights": weights(model)}
    return found


# -- averages ----------------------------------------------------------------------------------------------------------


def stochastic_weight_averaging(library: Library, folder: Path) -> dict[str, Any]:
    """The averaged weights, batch-norm statistics and rates."""

    def scheduled(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def one_rate_each(module: Any) -> Any:
        groups = [{"params": module.backbone.parameters()}, {"params": module.head.parameters(), "lr": 0.05}]
        return torch.optim.SGD(groups, lr=0.02)

    def decaying(average: Tensor, parameter: Tensor, number: Any) -> Tensor:
        return 0.7 * average + 0.3 * parameter

    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({"swa_lrs": 0.01, "swa_epoch_start": 0.5}, {}),
        "whole number": ({"swa_lrs": 0.01, "swa_epoch_start": 2, "annealing_epochs": 2}, {}),
        "linear": (
            {"swa_lrs": 0.002, "swa_epoch_start": 3, "annealing_epochs": 2, "annealing_strategy": "linear"},
            {"configure_optimizers": scheduled},
        ),
        "in place of a scheduler": ({"swa_lrs": 0.002, "swa_epoch_start": 3}, {"configure_optimizers": scheduled}),
        "a rate for each group": (
            {"swa_lrs": [0.002, 0.001], "swa_epoch_start": 3, "annealing_epochs": 0},
            {"configure_optimizers": one_rate_each},
        ),
        "own function": ({"swa_lrs": 0.01, "swa_epoch_start": 2, "avg_fn": decaying}, {}),
        "batch norm": ({"swa_lrs": 0.01, "swa_epoch_start": 0.5}, {"batch_norm": True}),
    }
    found = {}
    for name, (arguments, parts) in cases.items():
        model = net(library, **parts)
        swa = library.callbacks.StochasticWeightAveraging(**arguments)
        fit(library, folder, model, swa, max_epochs=6)
        end = weights(model)
        if name == "batch norm" and _is_lightning(library):
            # Its pass for the statistics ends in one more optimiser step, with the gradients of the last one, so the
            # module does not have the average that it computed. The statistics are of before that.
            average = weights(swa._average_model)
            end.update({key: average[key] for key in dict(model.named_parameters())})
        found[name] = {"weights": end, "rates": model.rates[:6], "averaged": int(swa.n_averaged)}
    return found


def weight_averaging(library: Library, folder: Path) -> dict[str, Any]:
    """The averaged weights, what validations see, and what is in checkpoints."""

    class ByEpoch(library.callbacks.WeightAveraging):  # type: ignore[misc,name-defined]
        def should_update(self, step_idx: Any = None, epoch_idx: Any = None) -> bool:
            return epoch_idx is not None and epoch_idx >= 1

    callbacks = library.callbacks
    cases: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
        "every step": (callbacks.WeightAveraging(), {}, {}),
        "accumulating": (callbacks.WeightAveraging(device="cpu"), {"accumulate_grad_batches": 3}, {}),
        "by epoch": (ByEpoch(), {}, {}),
        "exponential": (callbacks.EMAWeightAveraging(decay=0.8), {}, {}),
        "every other step": (callbacks.EMAWeightAveraging(decay=0.8, update_every_n_steps=2), {}, {}),
        "batch norm": (callbacks.EMAWeightAveraging(decay=0.8), {}, {"batch_norm": True}),
        "from an epoch on": (
            callbacks.EMAWeightAveraging(decay=0.8, update_every_n_steps=0, update_starting_at_epoch=0),
            {},
            {},
        ),
    }
    found = {}
    for name, (callback, of_trainer, parts) in cases.items():
        model = net(library, **parts)
        trainer = fit(library, folder, model, callback, val=True, max_epochs=3, **of_trainer)
        path = folder / "after.ckpt"
        trainer.save_checkpoint(path)
        found[name] = {"weights": weights(model), "seen": model.seen}
    return found


# -- finetuning and pruning ----------------------------------------------------------------------------------------------


def finetuning(library: Library, folder: Path) -> dict[str, Any]:
    """The rates of each epoch, and the weights."""

    def scheduled(module: Any) -> Any:
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]

    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({"unfreeze_backbone_at_epoch": 1}, {}),
        "own growth": ({"unfreeze_backbone_at_epoch": 1, "lambda_func": lambda epoch: 1.5}, {}),
        "own rate": ({"unfreeze_backbone_at_epoch": 2, "backbone_initial_lr": 0.003}, {}),
        "not aligned": ({"unfreeze_backbone_at_epoch": 1, "should_align": False}, {}),
        "scheduled": ({"unfreeze_backbone_at_epoch": 1}, {"configure_optimizers": scheduled}),
        "batch norm": ({"unfreeze_backbone_at_epoch": 2}, {"batch_norm": True}),
    }
    found = {}
    for name, (arguments, parts) in cases.items():
        model = net(library, **parts)
        callback = library.callbacks.BackboneFinetuning(**arguments)
        fit(library, folder, model, callback, max_epochs=5)
        trained = sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        found[name] = {
            "weights": weights(model),
            "rates": model.rates,
            "trained": trained,
            "last": callback.previous_backbone_lr,
        }
    return found


def pruning(library: Library, folder: Path) -> dict[str, Any]:
    """The weights, of which some are zero, and the names in checkpoints."""
    cases: dict[str, tuple[dict[str, Any], int]] = {
        "global": ({"pruning_fn": "l1_unstructured", "amount": 0.3, "use_lottery_ticket_hypothesis": False}, 3),
        "lottery ticket": ({"pruning_fn": "l1_unstructured", "amount": 0.5}, 1),
        "local": (
            {
                "pruning_fn": "l1_unstructured",
                "amount": 0.25,
                "use_global_unstructured": False,
                "parameter_names": ["weight"],
                "use_lottery_ticket_hypothesis": False,
            },
            2,
        ),
        "structured": (
            {
                "pruning_fn": "ln_structured",
                "amount": 0.5,
                "use_global_unstructured": False,
                "pruning_dim": 0,
                "pruning_norm": 2,
                "parameter_names": ["weight"],
                "use_lottery_ticket_hypothesis": False,
            },
            1,
        ),
        "at random": ({"pruning_fn": "random_unstructured", "amount": 7, "use_lottery_ticket_hypothesis": False}, 2),
        "by epoch": (
            {
                "pruning_fn": "l1_unstructured",
                "amount": lambda epoch: 0.1 * (epoch + 1),
                "apply_pruning": lambda epoch: epoch != 1,
                "use_lottery_ticket_hypothesis": False,
            },
            3,
        ),
        "after validation": (
            {
                "pruning_fn": "l1_unstructured",
                "amount": 0.4,
                "prune_on_train_epoch_end": False,
                "use_lottery_ticket_hypothesis": False,
            },
            2,
        ),
        "masks stay": (
            {
                "pruning_fn": "l1_unstructured",
                "amount": 0.3,
                "make_pruning_permanent": False,
                "use_lottery_ticket_hypothesis": False,
            },
            2,
        ),
    }
    found = {}
    for name, (arguments, epochs) in cases.items():
        model = net(library)
        saved: list[Any] = []

        class Save(library.callbacks.Callback):  # type: ignore[misc,name-defined]
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                trainer.save_checkpoint(folder / "in_between.ckpt")
                checkpoint = torch.load(folder / "in_between.ckpt", weights_only=True)
                saved.append(sorted(checkpoint["state_dict"]))  # noqa: B023

        callback = library.callbacks.ModelPruning(**arguments)
        trainer = library.trainer(folder, callbacks=[callback, Save()], max_epochs=epochs)
        with quietly():
            trainer.fit(model, val_dataloaders=DataLoader(data(8), batch_size=4))
        names = sorted(name for name in model.state_dict() if name.endswith("_mask"))
        found[name] = {"weights": weights(model), "masks": names, "saved": saved[-1]}
    return found


def _is_lightning(library: Library) -> bool:
    return not library.Trainer.__module__.startswith("hookbus")


# -- several callbacks at work on the same weights -----------------------------------------------------------------------


def combined(library: Library, folder: Path) -> dict[str, Any]:
    """The weights and rates that several callbacks together lead to."""
    made: dict[str, Callable[[], list[Any]]] = {
        "swa, monitor": lambda: [_swa(library), library.callbacks.LearningRateMonitor()],
        "finetuning, monitor": lambda: [_backbone(library), library.callbacks.LearningRateMonitor("epoch")],
        "finetuning, swa": lambda: [_backbone(library), _swa(library, swa_epoch_start=3)],
        "pruning, finetuning": lambda: [_pruning(library), _backbone(library)],
        "two prunings": lambda: [_pruning(library), _pruning(library, parameter_names=["bias"])],
        "accumulation, ema": lambda: [
            library.callbacks.GradientAccumulationScheduler({0: 2, 2: 1}),
            library.callbacks.EMAWeightAveraging(decay=0.5, update_every_n_steps=2),
        ],
    }
    found = {}
    for name, make in made.items():
        model, logger = net(library), library.logger()
        trainer = library.trainer(folder, callbacks=make(), max_epochs=4, logger=logger)
        with quietly():
            trainer.fit(model)
        found[name] = {
            "weights": weights(model),
            "rates": model.rates,
            "logged": [[step, row] for step, row in logger.rows if any(key.startswith("lr-") for key in row)],
            "step": trainer.global_step,
        }
    return found


def _swa(library: Library, swa_epoch_start: int = 2) -> Any:
    return library.callbacks.StochasticWeightAveraging(0.02, swa_epoch_start, annealing_epochs=2)


def _backbone(library: Library) -> Any:
    return library.callbacks.BackboneFinetuning(1, lambda_func=lambda epoch: 1.5)


def _pruning(library: Library, **arguments: Any) -> Any:
    options = {"amount": 0.3, "use_lottery_ticket_hypothesis": False, "parameter_names": ["weight"], **arguments}
    return library.callbacks.ModelPruning("l1_unstructured", **options)


SCENARIOS: dict[str, Callable[[Library, Path], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        learning_rates,
        learning_rate_by_tuner,
        batch_sizes,
        batch_size_by_tuner,
        stochastic_weight_averaging,
        weight_averaging,
        finetuning,
        pruning,
        combined,
    )
}
