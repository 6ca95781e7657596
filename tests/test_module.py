from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hookbus
from hookbus.bus import Bus
from hookbus.engine.optimizer import LightningOptimizer
from hookbus.engine.precision import make_precision
from hookbus.engine.strategy import SingleDeviceStrategy
from hookbus.errors import MisconfigurationException
from hookbus.trainer.metrics import OPTIONS

CPU = torch.device("cpu")


class Two(hookbus.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(1, 1, bias=False)
        self.b = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def attach(module: Any, **more: Any) -> Any:
    """Give ``module`` a stand-in for a trainer; ``logged`` holds what reaches the metric store."""
    trainer = SimpleNamespace(logged=[], printed=[], warned=[], loggers=[], logger=None, training=True)
    trainer.settings = SimpleNamespace(barebones=False)
    trainer._metrics = SimpleNamespace(
        log=lambda name, value, given, **rest: trainer.logged.append(
            (name, value, {**dict(zip(OPTIONS, given, strict=True)), **rest})
        )
    )
    trainer._batch_size, trainer._known_batch_size = lambda: 4, None
    trainer._hook_in_autograd = lambda: None
    trainer._dataloader_idx, trainer._several_loaders = None, False
    trainer._warn_once = trainer.warned.append
    trainer._precision, trainer.strategy = make_precision(32, CPU), SingleDeviceStrategy(CPU)
    trainer.gradient_clip_val = trainer.gradient_clip_algorithm = None
    trainer.optimizers, trainer.lr_scheduler_configs, trainer._wrapped_optimizers = [], [], []
    trainer.current_epoch, trainer.global_step, trainer.global_rank, trainer.local_rank = 2, 3, 0, 0
    trainer.print = lambda *args, **kwargs: trainer.printed.append((args, kwargs))
    trainer.__dict__.update(more)
    module.trainer = trainer
    return trainer


def in_hook(hook: str, action: Callable[[], Any]) -> None:
    """Run ``action`` from inside an implementation of ``hook``."""
    bus = Bus.load([])
    plugin = type("Plugin", (), {hook: hookbus.hookimpl(lambda self: action())})()
    bus.register(plugin, "plugin")
    getattr(bus.fire, hook)(*[None] * len(getattr(bus.hook, hook).shape.parameters))


# --- without a trainer ------------------------------------------------------------------------------------------------


def test_it_is_an_ordinary_module() -> None:
    module = Two()
    assert hookbus.Module is hookbus.LightningModule
    assert type(type(module)) is type
    assert set(module.state_dict()) == {"a.weight", "b.weight"}
    assert torch.equal(module.predict_step(torch.ones(1, 1), 0), module(torch.ones(1, 1)))
    assert torch.equal(torch.compile(module, backend="eager")(torch.ones(1, 1)), module(torch.ones(1, 1)))


def test_what_it_knows_without_a_trainer() -> None:
    module = Two()
    assert (module.current_epoch, module.global_step, module.global_rank, module.local_rank) == (0, 0, 0, 0)
    assert (module.logger, module.loggers, module.on_gpu) == (None, [], False)
    assert (module.automatic_optimization, module.strict_loading, module.example_input_array) == (True, True, None)
    assert module.configure_callbacks() == []


@pytest.mark.parametrize("ask", [lambda m: m.trainer, lambda m: m.optimizers(), lambda m: m.lr_schedulers()])
def test_what_needs_a_trainer_says_so(ask: Any) -> None:
    with pytest.raises(RuntimeError, match="Two is not attached to a `Trainer`"):
        ask(Two())


def test_steps_that_are_missing() -> None:
    for method in (hookbus.LightningModule().training_step, hookbus.LightningModule().configure_optimizers):
        with pytest.raises(NotImplementedError, match="LightningModule defines no"):
            method()


def test_logging_without_a_trainer_warns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="not attached"):
        Two().log("x", 1)
    Two().print("hello")
    assert capsys.readouterr().out == "hello\n"


def test_device_and_dtype_are_those_of_the_parameters() -> None:
    module = Two()
    assert (module.device, module.dtype) == (CPU, torch.float32)
    assert module.to("meta").device.type == "meta"
    assert module.double().dtype == torch.float64
    empty = hookbus.LightningModule()
    assert empty.device == CPU
    attach(empty, strategy=SingleDeviceStrategy(torch.device("meta")))
    assert empty.device.type == "meta"


def test_freeze_and_unfreeze() -> None:
    module = Two()
    assert module.freeze() is module
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())
    assert module.unfreeze() is module
    assert module.training
    assert all(p.requires_grad for p in module.parameters())


def test_modes_and_gradients_around_evaluation() -> None:
    module = Two()
    module(torch.ones(1, 1)).sum().backward()
    module.on_validation_model_zero_grad()
    assert module.a.weight.grad is None
    for stage in ("validation", "test"):
        getattr(module, f"on_{stage}_model_eval")()
        assert not module.b.training
        getattr(module, f"on_{stage}_model_train")()
        assert module.b.training


# --- the trainer ------------------------------------------------------------------------------------------------------


def test_children_get_the_trainer_and_copies_do_not() -> None:
    module = hookbus.LightningModule()
    module.child = Two()
    trainer = attach(module)
    assert module.child.trainer is trainer
    assert (module.current_epoch, module.global_step) == (2, 3)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module.child))):
        with pytest.raises(RuntimeError, match="not attached"):
            copied.trainer
    module.trainer = None
    assert module.child.current_epoch == 0


def test_print_goes_through_the_trainer() -> None:
    module = Two()
    trainer = attach(module)
    module.print("a", sep="")
    assert trainer.printed == [(("a",), {"sep": ""})]


def test_all_gather_makes_tensors() -> None:
    module = Two()
    attach(module)
    gathered = module.all_gather({"n": 1, "t": torch.ones(2), "s": "text"})
    assert gathered["n"].item() == 1
    assert gathered["t"].tolist() == [1, 1]
    assert gathered["s"] == "text"


# --- logging ----------------------------------------------------------------------------------------------------------


def test_log_passes_everything_on() -> None:
    module = Two()
    trainer = attach(module, _dataloader_idx=1, _several_loaders=True)
    in_hook("on_validation_batch_end", lambda: module.log("x", 1.5, on_epoch=True, prog_bar=True, reduce_fx="max"))
    [(name, value, options)] = trainer.logged
    assert (name, value) == ("x", 1.5)
    assert options == {
        "hook": "on_validation_batch_end",
        "batch_size": 4,
        "dataloader_idx": 1,
        "several_loaders": True,
        "prog_bar": True,
        "logger": None,
        "on_step": None,
        "on_epoch": True,
        "reduce_fx": "max",
        "sync_dist": False,
        "add_dataloader_idx": True,
        "rank_zero_only": False,
        "metric_attribute": None,
    }


def test_the_batch_is_measured_only_where_it_weighs() -> None:
    module = Two()
    trainer = attach(module)

    def log() -> None:
        module.log("step", 1)
        module.log("epoch", 1, on_epoch=True)
        module.log("given", 1, on_epoch=True, batch_size=9)
        module.log("step only", 1, on_epoch=False)

    in_hook("on_train_batch_end", log)
    assert [options["batch_size"] for *_, options in trainer.logged] == [None, 4, 9, None]
    trainer.training = False
    in_hook("on_validation_batch_end", lambda: module.log("epoch by default", 1))
    assert trainer.logged[-1][-1]["batch_size"] == 4


def test_log_dict() -> None:
    module = Two()
    trainer = attach(module)
    in_hook("on_train_start", lambda: module.log_dict({"a": 1, "b": 2}, prog_bar=True, sync_dist=True))
    assert [(name, value) for name, value, _ in trainer.logged] == [("a", 1), ("b", 2)]
    assert all(options["prog_bar"] and options["sync_dist"] for *_, options in trainer.logged)


def test_log_mistakes() -> None:
    module = Two()
    trainer = attach(module)
    with pytest.raises(MisconfigurationException, match="outside of any hook"):
        module.log("x", 1)
    with pytest.raises(TypeError, match="must be a string, got int"):
        in_hook("on_train_start", lambda: module.log(1, 1))  # type: ignore[arg-type]
    in_hook("on_train_start", lambda: module.log("x", 1, logger=True))
    assert trainer.warned == ["self.log('x', …, logger=True) has no logger to go to: give one with Trainer(logger=…)"]


# --- optimisation by hand ---------------------------------------------------------------------------------------------


def test_optimizers_and_schedulers() -> None:
    module = Two()
    raw = [torch.optim.SGD(layer.parameters(), lr=1) for layer in (module.a, module.b)]
    wrapped = [LightningOptimizer(optimizer) for optimizer in raw]
    trainer = attach(module, optimizers=raw, _wrapped_optimizers=wrapped)
    assert module.lr_schedulers() is None
    assert module.optimizers() == wrapped
    assert module.optimizers(use_pl_optimizer=False) == raw
    trainer._wrapped_optimizers = wrapped[:1]
    assert module.optimizers() is wrapped[0]
    trainer.lr_scheduler_configs = [SimpleNamespace(scheduler="s")]
    assert module.lr_schedulers() == "s"
    trainer.lr_scheduler_configs *= 2
    assert module.lr_schedulers() == ["s", "s"]


def test_manual_backward_is_for_manual_optimization() -> None:
    module = Two()
    calls: list[Any] = []
    attach(module, _manual_backward=lambda *args, **kwargs: calls.append((args, kwargs)))
    with pytest.raises(MisconfigurationException, match="automatic_optimization = False"):
        module.manual_backward(torch.ones(()))
    module.automatic_optimization = False
    loss = torch.ones(())
    module.manual_backward(loss, retain_graph=True)
    assert calls == [((loss,), {"retain_graph": True})]


@pytest.fixture
def pair() -> tuple[Two, Any, Any]:
    """A module with a frozen layer, and an optimiser for each layer."""
    module = Two()
    module.b.requires_grad_(False)
    raw = [torch.optim.SGD(layer.parameters(), lr=1) for layer in (module.a, module.b)]
    attach(module, optimizers=raw)
    first, second = (LightningOptimizer(optimizer, module=lambda: module) for optimizer in raw)
    return module, first, second


def grads(module: Two) -> tuple[bool, bool]:
    return module.a.weight.requires_grad, module.b.weight.requires_grad


def test_toggling_leaves_one_optimizer_and_puts_all_back(pair: tuple[Two, Any, Any]) -> None:
    module, first, second = pair
    module.toggle_optimizer(second)
    assert grads(module) == (False, False)  # what was frozen stays so
    module.untoggle_optimizer(second)
    assert grads(module) == (True, False)
    with module.toggled_optimizer(first.optimizer):
        assert grads(module) == (True, False)
    with pytest.raises(ZeroDivisionError), second.toggle_model(sync_grad=False):
        _ = 1 / grads(module)[0]
    assert grads(module) == (True, False)


def test_toggling_twice_forgets_nothing(pair: tuple[Two, Any, Any]) -> None:
    module, first, second = pair
    module.toggle_optimizer(second)
    module.toggle_optimizer(first)
    assert grads(module) == (True, False)
    module.untoggle_optimizer(first)
    assert grads(module) == (True, False)


def clip(module: Two, *args: Any, **trainer: Any) -> float:
    """The gradient of 4.0 after clipping."""
    attach(module, **trainer)
    module.a.weight.grad = torch.full((1, 1), 4.0)
    module.clip_gradients(LightningOptimizer(torch.optim.SGD(module.a.parameters(), lr=1)), *args)
    return module.a.weight.grad.item()


def test_clip_gradients() -> None:
    module = Two()
    assert clip(module) == 4
    assert clip(module, 0) == 4
    assert clip(module, 2) == pytest.approx(2)
    assert clip(module, 3, "value") == 3
    assert clip(module, gradient_clip_val=1.5, gradient_clip_algorithm="value") == 1.5
    assert clip(module, 1.5, gradient_clip_val=1.5) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("args", "trainer", "message"),
    [
        ((2,), {"gradient_clip_val": 1}, "contradict"),
        ((1, "value"), {"gradient_clip_val": 1, "gradient_clip_algorithm": "norm"}, "contradict"),
        ((1, "other"), {}, "'norm' or 'value', got 'other'"),
    ],
)
def test_clip_gradients_in_two_ways(args: Any, trainer: Any, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        clip(Two(), *args, **trainer)


def test_clip_gradients_by_something_else() -> None:
    with pytest.raises(TypeError, match="must be a number, got str"):
        clip(Two(), "1")


# --- default actions --------------------------------------------------------------------------------------------------


def test_default_actions_of_the_optimization() -> None:
    module = Two()
    attach(module, gradient_clip_val=0.5)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.backward((module.a.weight.sum() * 8), retain_graph=True)
    module.configure_gradient_clipping(optimizer, 0.5)
    assert module.a.weight.grad.item() == pytest.approx(0.5)
    calls: list[str] = []
    module.optimizer_step(0, 0, optimizer, lambda: calls.append("closure"))
    assert calls == ["closure"]
    module.optimizer_zero_grad(0, 0, optimizer)
    assert module.a.weight.grad is None
    plateau = SimpleNamespace(step=lambda *args: calls.append(f"step{args}"))
    module.lr_scheduler_step(plateau, None)
    module.lr_scheduler_step(plateau, 0.5)
    assert calls == ["closure", "step()", "step(0.5,)"]


def test_gan_style_training_with_the_real_trainer() -> None:
    class Gan(Two):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.frozen: list[tuple[bool, bool]] = []

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                with self.toggled_optimizer(optimizer):
                    self.frozen.append(grads(self))
                    optimizer.zero_grad()
                    self.manual_backward(self(batch).pow(2).sum())
                    optimizer.step()
            self.log("loss", 1.0)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (self.a, self.b)]

    trainer = hookbus.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    module = Gan()
    before = [p.clone() for p in module.parameters()]
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(2, 1), batch_size=1))
    assert module.frozen == [(True, False), (False, True)] * 2
    assert all(not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
    assert trainer.global_step == 4
    assert trainer.callback_metrics["loss"] == 1
