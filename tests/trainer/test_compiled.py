"""``torch.compile`` of the network, of the module or of its step: hooks stay outside the graph, and no step recompiles."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.trainer.compiled import to_uncompiled


class Net(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = self(batch).pow(2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Counts:
    """A backend that runs the graphs as they are and counts them."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


class Observer(hookbus.Callback):
    """Something in every hook of a step."""

    def __init__(self, backend):
        self.backend, self.calls, self.graphs = backend, 0, []

    def on_train_epoch_end(self, *args):  # the validation of the epoch is over
        self.graphs.append(self.backend.graphs if self.backend else 0)

    def on_train_batch_start(self, *args):
        self.calls += 1

    on_before_zero_grad = on_before_backward = on_after_backward = on_before_optimizer_step = on_train_batch_start
    on_train_batch_end = on_train_batch_start


def compiled_network(model, backend):
    model.net = torch.compile(model.net, backend=backend)
    return model


def compiled_module(model, backend):
    return torch.compile(model, backend=backend)


def compiled_step(model, backend):
    model.training_step = torch.compile(model.training_step, backend=backend)
    return model


def fit(model, epochs, backend=None):
    """Metrics, calls of hooks, and how many graphs there were after each epoch."""
    observer = Observer(backend)
    trainer = hookbus.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, callbacks=[observer], num_sanity_val_steps=1,
    )  # fmt: skip
    data = torch.linspace(-1, 1, 24).view(12, 2)
    trainer.fit(model, DataLoader(data, batch_size=2), DataLoader(data, batch_size=2))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}, observer.calls, observer.graphs


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [compiled_network, compiled_module, compiled_step])
def test_steps_do_not_compile_anew(compiled):
    wanted, calls = fit(Net(), 2)[:2]
    backend = Counts()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        metrics, heard, graphs = fit(compiled(Net(), backend), 2, backend)
    assert not [warning for warning in said if "Dynamo" in str(warning.message)]
    assert metrics == pytest.approx(wanted, abs=1e-6)
    assert heard == calls == 2 * 6 * 6
    assert graphs[0] == graphs[1]  # 12 steps and 12 validations compile what 6 and 6 do
    assert 0 < graphs[1] <= 6


def test_the_module_itself_is_trained_and_can_be_had_back():
    backend = Counts()
    model = Net()
    wrapped = compiled_module(model, backend)
    fit(wrapped, 1)
    assert backend.graphs
    assert set(model.state_dict()) == {"net.weight", "net.bias"}
    assert model.training_step != Net.training_step.__get__(model)
    assert to_uncompiled(wrapped) is model
    assert model.training_step == Net.training_step.__get__(model)
    with pytest.raises(ValueError, match="not compiled"):
        to_uncompiled(model)
