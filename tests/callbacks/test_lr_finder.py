from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, agree, observed, resumed_and_not, run, same_weights
from tests.callbacks.data.scenarios_batch_b import data, net, weights

import hookbus
from hookbus.callbacks import Callback, EarlyStopping, LearningRateFinder
from hookbus.callbacks.lr_finder import set_rate
from hookbus.errors import MisconfigurationException


def test_curves_suggestions_and_the_training_after_it_are_lightnings(tmp_path: Path) -> None:
    agree(observed("learning_rates", tmp_path), RECORDED["learning_rates"])


def test_the_training_is_that_of_a_module_with_this_rate(tmp_path: Path) -> None:
    shuffled = {"train_dataloader": lambda self: torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)}
    found = net(HOOKBUS, **shuffled)
    run(found, LearningRateFinder(num_training_steps=40), folder=tmp_path, max_epochs=2)
    plain = net(HOOKBUS, **shuffled)
    plain.lr = found.lr
    run(plain, folder=tmp_path, max_epochs=2)
    assert same_weights(found, plain)


def test_nothing_is_left_of_the_search(tmp_path: Path) -> None:
    model = net(
        HOOKBUS, batch_norm=True, configure_optimizers=lambda self: torch.optim.Adam(self.parameters(), lr=0.01)
    )
    finder = LearningRateFinder(num_training_steps=20, update_attr=False)
    seen: dict[str, Any] = {}

    class Before(Callback):
        @hookbus.hookimpl(trylast=True, before="LearningRateFinder")
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            pl_module.backbone[1].eval()
            seen["before"] = state(trainer)

    class After(Callback):
        @hookbus.hookimpl(trylast=True, after="LearningRateFinder")
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            seen["after"] = state(trainer)

    def state(trainer: Any) -> dict[str, Any]:
        module, optimizer = trainer.lightning_module, trainer.optimizers[0]
        return {
            "weights": weights(module),
            "modes": [part.training for part in module.modules()],
            "gradients": [parameter.grad for parameter in module.parameters()],
            "optimizer": optimizer.state_dict(),
            "streams": torch.get_rng_state().tolist(),
            "counters": trainer.progress.state_dict(),
            "metrics": trainer.callback_metrics,
            "settings": trainer.settings,
            "stop": trainer.should_stop,
        }

    trainer = run(model, finder, Before(), After(), folder=tmp_path)
    assert seen["after"] == seen["before"]
    assert trainer.global_step == 4


def test_nobody_hears_of_the_search(tmp_path: Path) -> None:
    told: list[str] = []
    logger = HOOKBUS.logger()

    class Told(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            told.append("batch")

        def on_train_epoch_start(self, *args: Any) -> None:
            told.append("epoch")

    class Once:
        role = "monitor"

        @hookbus.hookimpl(once=True)
        def on_train_epoch_end(self) -> None:
            told.append("once")

    model = net(HOOKBUS, on_train_start=lambda self: self.logger.name)
    finder = LearningRateFinder(num_training_steps=30)
    run(model, finder, Told(), folder=tmp_path, logger=logger, plugins=[Once()])
    assert told == ["epoch", *["batch"] * 4, "once"]
    assert [step for step, _ in logger.rows] == [0, 1, 2, 3]


def test_early_stopping_does_not_miss_its_metric_in_the_search(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(data(8), batch_size=4)
    trainer = run(
        net(HOOKBUS), LearningRateFinder(num_training_steps=20), EarlyStopping("val_loss"), folder=tmp_path, val=loader
    )
    assert trainer.global_step == 4


def test_it_begins_when_the_module_has_finished_its_own_hook(tmp_path: Path) -> None:
    def on_fit_start(self: Any) -> None:
        self.factor = torch.ones(1)

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return (self.factor * self(batch[0])).square().mean()

    finder = LearningRateFinder(num_training_steps=20)
    run(net(HOOKBUS, on_fit_start=on_fit_start, training_step=training_step), finder, folder=tmp_path)
    assert len(finder.optimal_lr.results["lr"]) == 20


def test_the_rate_is_in_force_at_the_first_batch(tmp_path: Path) -> None:
    rates: list[float] = []
    finder = LearningRateFinder(num_training_steps=40)
    model = net(HOOKBUS, on_train_batch_start=lambda self, *_: rates.append(self.optimizers().param_groups[0]["lr"]))
    run(model, finder, folder=tmp_path)
    assert rates[-4:] == [finder.optimal_lr.suggestion()] * 4
    assert model.lr == rates[-1]


def test_a_schedule_starts_from_the_rate(tmp_path: Path) -> None:
    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: (epoch + 1) / 4)
        return [optimizer], [warm_up]

    model = net(HOOKBUS, configure_optimizers=configure_optimizers)
    run(model, LearningRateFinder(num_training_steps=40), folder=tmp_path, max_epochs=4)
    assert [rates[0] for rates in model.rates[-4:]] == pytest.approx([model.lr * share / 4 for share in (1, 2, 3, 4)])


def test_a_cycle_reaches_the_rate() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    trainer = type("Trainer", (), {})()
    trainer.optimizers = [torch.optim.SGD([parameter], lr=0.1, momentum=0.9)]
    cycle = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizers[0], max_lr=0.1, total_steps=10, pct_start=0.5)
    trainer.lr_scheduler_configs = [type("Config", (), {"scheduler": cycle})()]
    set_rate(trainer, 0.02)
    rates = []
    for _ in range(9):
        rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        trainer.optimizers[0].step()
        cycle.step()
    assert rates[0] == pytest.approx(0.02 / 25)
    assert max(rates) == pytest.approx(0.02)


def test_without_a_suggestion_the_rate_stays(tmp_path: Path) -> None:
    model = net(HOOKBUS)
    with pytest.warns(UserWarning, match="no learning rate can be suggested: of 1 step"):
        run(model, LearningRateFinder(num_training_steps=1), folder=tmp_path)
    assert model.lr == 0.01
    assert model.rates[-1] == [0.01]


def test_hyper_parameters_that_are_modules_do_not_matter(tmp_path: Path) -> None:
    class WithPart(hookbus.LightningModule):
        def __init__(self, part: torch.nn.Module, learning_rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.part = part

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(data(), batch_size=4)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.part(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)

    torch.manual_seed(1)
    finder = LearningRateFinder(num_training_steps=30, early_stop_threshold=None)
    model = WithPart(torch.nn.Linear(4, 1))
    run(model, finder, folder=tmp_path)
    assert model.hparams.learning_rate == finder.optimal_lr.suggestion()
    assert not list(tmp_path.glob(".lr_find*"))


def test_a_resumed_run_keeps_the_rate_and_searches_no_more(tmp_path: Path) -> None:
    finders: list[LearningRateFinder] = []

    def make() -> LearningRateFinder:
        finders.append(LearningRateFinder(num_training_steps=40))
        return finders[-1]

    whole, resumed = resumed_and_not(tmp_path, lambda: net(HOOKBUS), make, epochs=3, cut=1)
    assert same_weights(whole, resumed)
    assert resumed.lr == whole.lr != 0.01
    assert finders[1].optimal_lr is None


def test_everything_is_put_back_if_the_search_fails(tmp_path: Path) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 3:
            raise ZeroDivisionError
        return self(batch[0]).square().mean()

    told: list[str] = []

    class Told(Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            told.append(type(exception).__name__)

    model = net(HOOKBUS, training_step=training_step)
    before, trainer = weights(model), HOOKBUS.trainer(tmp_path, callbacks=[LearningRateFinder(), Told()])
    with pytest.raises(ZeroDivisionError):
        trainer.fit(model)
    assert weights(model) == before
    assert told == ["ZeroDivisionError"]
    assert (trainer.global_step, trainer.max_steps) == (0, -1)


def test_it_may_search_again_in_the_middle_of_a_training(tmp_path: Path) -> None:
    class AtMilestones(LearningRateFinder):
        searches = 0

        def on_fit_start(self, *args: Any, **kwargs: Any) -> None:
            return

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch in (0, 2):
                self.searches += 1
                self.lr_find(trainer, pl_module)

    model, finder = net(HOOKBUS), AtMilestones(num_training_steps=30)
    trainer = run(model, finder, folder=tmp_path, max_epochs=4)
    assert (finder.searches, trainer.global_step, trainer.current_epoch) == (2, 16, 4)
    assert model.rates[-1] == [finder.optimal_lr.suggestion()]


def test_manual_optimization_is_searched_too(tmp_path: Path) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        optimizer, loss = self.optimizers(), self(batch[0]).square().mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss

    finder = LearningRateFinder(num_training_steps=30)
    run(net(HOOKBUS, training_step=training_step, automatic_optimization=False), finder, folder=tmp_path)
    assert len(finder.optimal_lr.results["loss"]) == 30


def test_a_trial_run_does_not_search(tmp_path: Path) -> None:
    model, finder = net(HOOKBUS), LearningRateFinder()
    with pytest.warns(UserWarning, match="fast_dev_run: no learning rate is searched for"):
        run(model, finder, folder=tmp_path, fast_dev_run=True)
    assert finder.optimal_lr is None
    assert model.lr == 0.01


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "random"}, "mode must be"),
        ({"min_lr": 0.0}, "0 < min_lr < max_lr"),
        ({"min_lr": 1.0, "max_lr": 0.1}, "0 < min_lr < max_lr"),
        ({"num_training_steps": 0}, "num_training_steps must be"),
        ({"early_stop_threshold": -1.0}, "early_stop_threshold must be"),
        ({"attr_name": 3}, "attr_name must be"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        LearningRateFinder(**arguments)


def test_several_optimizers_and_a_missing_attribute_are_refused(tmp_path: Path) -> None:
    def two(self: Any) -> Any:
        return [torch.optim.SGD(self.backbone.parameters(), lr=1.0), torch.optim.SGD(self.head.parameters(), lr=1.0)]

    with pytest.raises(MisconfigurationException, match="with one optimizer, configure_optimizers gave 2"):
        run(net(HOOKBUS, configure_optimizers=two, automatic_optimization=False), LearningRateFinder(), folder=tmp_path)
    with pytest.raises(MisconfigurationException, match="there is no 'eta' to tune"):
        run(net(HOOKBUS), LearningRateFinder(attr_name="eta"), folder=tmp_path)


def test_the_plot_is_a_png_and_loggers_are_given_the_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown: list[str] = []

    class Gallery:
        role = "monitor"

        @hookbus.hookimpl
        def log_figure(self, key: str, image: Any) -> None:
            shown.append(f"{key}: {type(image).__name__}")

    path = tmp_path / "plots" / "lr.png"
    run(net(HOOKBUS), LearningRateFinder(num_training_steps=30, plot_path=path), folder=tmp_path, plugins=[Gallery()])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert shown == ["lr_find: Figure"]


def test_a_plot_without_matplotlib_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'hookbus\[plots\]'"):
        LearningRateFinder(plot_path="lr.png")


def test_it_comes_first_and_says_what_it_is() -> None:
    finder = LearningRateFinder()
    assert (finder.role, finder.placement, finder.state_key) == ("mutator", "first", "LearningRateFinder")
