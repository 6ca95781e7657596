"""Steps are hooks: plugins wrap, replace and retry them, and ask the loop for things."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.markers import hookimpl


class Line(hookbus.LightningModule):
    """Fits y = 2x + 1 with one weight and one bias."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch_idx)
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(batches=4, size=8):
    x = torch.linspace(-1, 1, batches * size).unsqueeze(1)
    return DataLoader(list(zip(x, 2 * x + 1, strict=True)), batch_size=size)


def trainer(*plugins, **options):
    options = {
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "num_sanity_val_steps": 0,
        **options,
    }
    return hookbus.Trainer(plugins=list(plugins), **options)


def test_a_wrapper_stands_around_backward():
    class Times:
        calls = 0

        @hookimpl(wrapper=True)
        def backward(self, pl_module, loss):
            assert pl_module.net.weight.grad is None
            result = yield
            assert pl_module.net.weight.grad is not None
            self.calls += 1
            return result

    times = Times()
    trainer(times).fit(Line(), data(3))
    assert times.calls == 3


def test_a_wrapper_that_loses_the_loss_is_named():
    class Forgets:
        @hookimpl(wrapper=True)
        def training_step(self):
            yield

    with pytest.warns(
        UserWarning, match=r"training_step returned None.*that of '.*Forgets.*' must return what its yield"
    ):
        trainer(Forgets()).fit(Line(), data(1))


def test_a_wrapper_retries_a_step_that_ran_out_of_memory():
    class Retry:
        attempts = 0

        @hookimpl(tryfirst=True)
        def training_step(self, trainer, pl_module, batch, batch_idx):
            self.attempts += 1
            try:
                if batch_idx == 1:
                    raise torch.OutOfMemoryError("pretend")
                return pl_module.training_step(batch, batch_idx)
            except torch.OutOfMemoryError:
                halves = zip(*(part.chunk(2) for part in batch), strict=True)
                return torch.stack([pl_module.training_step(half, batch_idx) for half in halves]).mean()

    retry, module = Retry(), Line()
    plain = Line()
    plain.load_state_dict(module.state_dict())
    trainer(retry).fit(module, data(3))
    trainer().fit(plain, data(3))
    assert retry.attempts == 3
    assert module.seen == [0, 1, 1, 2]
    assert torch.allclose(module.net.weight, plain.net.weight, atol=1e-6)


def test_a_sharpness_aware_optimiser_is_a_plugin():
    class SAM:
        """Foret et al. 2021: step with the gradient at the point of highest loss within rho."""

        rho = 0.05

        @hookimpl
        def optimizer_step(self, trainer, pl_module, optimizer, closure):
            with torch.enable_grad():
                closure()
            params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in params]).norm()
            steps = [self.rho * p.grad / norm for p in params]
            with torch.no_grad():
                for p, step in zip(params, steps, strict=True):
                    p.add_(step)
            with torch.enable_grad():
                closure()
            with torch.no_grad():
                for p, step in zip(params, steps, strict=True):
                    p.sub_(step)
            optimizer.optimizer.step()
            return True

    module = Line()
    run = trainer(SAM(), max_epochs=30)
    run.fit(module, data(4))
    assert len(module.seen) == 30 * 4 * 2
    assert run.global_step == 30 * 4
    assert module.net.weight.item() == pytest.approx(2, abs=0.1)


def test_a_plugin_replaces_the_training_data():
    class Short:
        @hookimpl
        def train_dataloader(self):
            return data(2)

    module = Line()
    trainer(Short()).fit(module, data(9))
    assert module.seen == [0, 1]


def test_a_plugin_wraps_the_training_data():
    class Twice:
        @hookimpl(wrapper=True)
        def train_dataloader(self):
            return Repeated((yield))

    class Repeated:
        def __init__(self, loader):
            self.loader = loader

        def __len__(self):
            return 2 * len(self.loader)

        def __iter__(self):
            yield from self.loader
            yield from self.loader

    class Module(Line):
        def train_dataloader(self):
            return data(3)

    module = Module()
    trainer(Twice()).fit(module)
    assert module.seen == [0, 1, 2, 3, 4, 5]


def test_a_plugin_scales_the_batches_on_their_way():
    class Scale:
        @hookimpl
        def on_after_batch_transfer(self, batch):
            return [part * 10 for part in batch]

    class Module(Line):
        def training_step(self, batch, batch_idx):
            self.seen.append(batch[0].abs().max().item())
            return super().training_step(batch, batch_idx)

    module = Module()
    trainer(Scale()).fit(module, data(1))
    assert module.seen[0] == pytest.approx(10)


def test_a_plugin_drives_the_scheduler():
    class Halve:
        @hookimpl
        def lr_scheduler_step(self, scheduler):
            for group in scheduler.optimizer.param_groups:
                group["lr"] /= 2
            return True

    class Module(Line):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)]

    run = trainer(Halve(), max_epochs=3)
    run.fit(Module(), data(2))
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 / 8)


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_epoch_start"])
def test_a_batch_is_skipped_on_request(hook):
    ended = []

    class Skip(hookbus.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if hook == "on_train_epoch_start":
                trainer.control.skip_batch("bad data")

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if hook == "on_train_batch_start" and batch_idx == 0:
                trainer.control.skip_batch("bad data")

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            ended.append(batch_idx)

    module, run = Line(), trainer(callbacks=[Skip()])
    run.fit(module, data(3))
    assert module.seen == ended == [1, 2]
    assert run.global_step == 2
    assert [(r.what, r.reason) for r in run.control.history] == [("skip_batch", "bad data")]


def test_an_epoch_ends_on_request_and_its_validation_still_runs():
    class Enough(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 1:
                trainer.control.stop_epoch("enough")

    module, run = Line(), trainer(callbacks=[Enough()], max_epochs=2)
    run.fit(module, data(5), data(1))
    assert module.seen == [0, 1, 0, 1]
    assert "val_loss" in run.callback_metrics
    assert run.current_epoch == 2


def test_a_validation_runs_on_request():
    validated = []

    class Now(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 0:
                trainer.control.evaluate("curious")

        def on_validation_end(self, trainer, pl_module):
            validated.append(trainer.global_step)

    trainer(callbacks=[Now()]).fit(Line(), data(4), data(1))
    assert validated == [1, 4]


def test_a_checkpoint_is_saved_on_request(tmp_path):
    class Save(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 2:
                trainer.control.save("milestone")

    trainer(callbacks=[Save()], default_root_dir=tmp_path).fit(Line(), data(4))
    files = list(tmp_path.rglob("*.ckpt"))
    assert [file.name for file in files] == ["epoch=0-step=3.ckpt"]
    assert torch.load(files[0])["global_step"] == 3


def test_a_stop_is_kept_with_its_reason_and_honoured_after_the_batch():
    class Stop(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                trainer.control.stop("time is up")

    module, run = Line(), trainer(callbacks=[Stop()], max_epochs=3)
    run.fit(module, data(4))
    assert module.seen == [0, 1]
    assert run.should_stop
    assert run.control.history[-1].reason == "time is up"


def test_all_participants_can_be_listed_while_a_run_goes_on():
    seen = set()

    class Looks:
        @hookimpl
        def on_train_start(self, trainer):
            seen.update(trainer.bus.get_plugins())

    looks, model = Looks(), Line()
    trainer(looks).fit(model, data())
    assert {looks, model} < seen
