"""What a step costs in Python's own instructions: a measure without noise, so that a new cost is seen at once.

Counted are the instructions (bytecodes) that run in hookbus's own files and in the compiled hooks during one training step
in the middle of an epoch. In time they are a few microseconds; ``benchmarks/step_overhead.py`` measures that.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import torch

import hookbus

PACKAGE = os.path.dirname(hookbus.__file__)


class Net(hookbus.LightningModule):
    def __init__(self, logs=0):
        super().__init__()
        self.net, self.logs = torch.nn.Linear(2, 1), logs

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).pow(2).mean()
        for i in range(self.logs):
            self.log(f"value {i}", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.net(batch)

    def predict_step(self, batch, batch_idx):
        return self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Noop(hookbus.Callback):
    def on_train_batch_start(self, *args): ...
    def on_train_batch_end(self, *args): ...
    def on_before_backward(self, *args): ...
    def on_after_backward(self, *args): ...


class Silent(hookbus.Callback):
    def on_fit_start(self, *args): ...


class Batches:
    """Counts between two batches of many."""

    def __init__(self, count=24, at=20):
        self.count, self.at = count, at
        self.instructions = Counter()

    def __len__(self):
        return self.count

    def __iter__(self):
        for i in range(self.count):
            if i == self.at:
                sys.settrace(self.enter)
            elif i == self.at + 1:
                sys.settrace(None)
            yield torch.ones(1, 2)

    def enter(self, frame, event, arg):
        name = frame.f_code.co_filename
        if not name.startswith((PACKAGE, "<hookbus")):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.instruction

    def instruction(self, frame, event, arg):
        if event == "opcode":
            self.instructions[os.path.basename(frame.f_code.co_filename)] += 1
        return self.instruction


def cost(entry="fit", callbacks=(), logs=0):
    """Instructions of one batch; frames that were running before the count began are not seen."""
    trainer = hookbus.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, callbacks=list(callbacks),
    )  # fmt: skip
    batches, before = Batches(), sys.gettrace()
    try:
        getattr(trainer, entry)(Net(logs), batches)
    finally:
        sys.settrace(before)
    return sum(batches.instructions.values())


def test_a_step():
    assert 0 < cost() <= 700


def test_ten_callbacks_cost_the_calls_only():
    assert cost(callbacks=[type("Noop", (Noop,), {})() for _ in range(10)]) - cost() <= 40 * 20


def test_plugins_without_a_hook_of_the_step_cost_nothing():
    assert cost(callbacks=[type("Silent", (Silent,), {})() for _ in range(200)]) == cost(callbacks=[Silent()])


def test_logging():
    assert (cost(logs=5) - cost()) / 5 <= 400


def test_evaluation():
    assert 0 < cost("validate") <= 200
    assert 0 < cost("predict") <= 200
