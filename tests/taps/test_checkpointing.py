"""Activation checkpointing runs a part of the network twice; taps hear of it once, and edits apply to both."""

import pytest
import torch
from tests.taps.networks import Training, loader, trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookbus import tapping

X = torch.linspace(-1, 1, 8).view(2, 4)
MODES = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.reentrant = reentrant

    def forward(self, x):
        hidden = self.stem(x)
        if self.reentrant is None:
            return self.inner(hidden)
        return checkpoint(self.inner, hidden, use_reentrant=self.reentrant)


def run(reentrant, *tapped, **options):
    torch.manual_seed(0)
    model = Checkpointed(reentrant)
    with tapping(model) as taps:
        for modules, handler, kinds in tapped:
            taps.tap(modules, handler, kinds=kinds, **options)
        model(X).square().sum().backward()
    return model


@MODES
def test_forward_taps_hear_once(reentrant):
    heard = []
    run(reentrant, ("inner.*", lambda event: heard.append((event.name, event.recompute)), ["forward", "forward_pre"]))
    assert heard == [(name, False) for name in ("inner.0", "inner.0", "inner.1", "inner.1", "inner.2", "inner.2")]


@MODES
def test_repeated_passes_can_be_asked_for(reentrant):
    heard = []
    run(
        reentrant,
        ("inner.0", lambda event: heard.append((event.recompute, event.call_index)), "forward"),
        recompute=True,
    )
    assert heard == [(False, 0), (True, 0)]


@MODES
def test_gradients_come_once_and_are_right(reentrant):
    def grads(mode):
        found = []
        run(mode, ("inner.*", lambda event: found.append((event.name, event.call_index, event.grad)), "grad_output"))
        return found

    plain, checkpointed = grads(None), grads(reentrant)
    assert [entry[:2] for entry in plain] == [entry[:2] for entry in checkpointed]
    assert all(torch.allclose(a[2], b[2]) for a, b in zip(plain, checkpointed, strict=True))


@MODES
def test_edits_apply_to_both_runs(reentrant):
    def gradients(mode):
        model = run(mode, ("inner.0", lambda event: event.output * 2, "forward"), edits=True)
        return [p.grad for p in model.parameters()]

    assert all(torch.allclose(a, b) for a, b in zip(gradients(None), gradients(reentrant), strict=True))


@MODES
def test_the_end_of_a_repeated_pass_is_no_error(reentrant):
    heard = []
    run(reentrant, (None, heard.append, "forward_error"))
    assert heard == []


@MODES
def test_in_a_trainer(reentrant):
    heard = []
    tap = trainer()
    tap.taps.tap(
        "net.inner.0", lambda e: heard.append((e.kind, e.step, e.recompute)), kinds=["forward", "grad_output"], every=2
    )
    tap.fit(Training(Checkpointed(reentrant)), loader(4))
    steps = {(kind, step) for kind, step, _ in heard}
    assert steps == {("forward", 1), ("grad_output", 1), ("forward", 3), ("grad_output", 3)}
    assert len(heard) == 4


@MODES
@pytest.mark.parametrize("kinds", [["forward"], ["forward", "forward_pre"]], ids=["after", "around"])
def test_a_backward_pass_inside_of_a_step(reentrant, kinds):
    """A module that drives its optimisers itself differentiates twice while its step still runs."""

    class Manual(Training):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for _ in range(2):
                self.manual_backward(self.net(batch).square().mean())

    heard = []
    fit = trainer()
    fit.taps.tap("net.inner.0", lambda e: heard.append((e.kind, e.step, e.call_index, e.recompute)), kinds=kinds)
    fit.fit(Manual(Checkpointed(reentrant)), loader(1))
    assert heard == [(kind, 0, call, False) for call in (0, 1) for kind in sorted(kinds, reverse=True)]


@MODES
def test_captures_have_one_record_with_its_gradient(reentrant):
    torch.manual_seed(0)
    model = Checkpointed(reentrant)
    with tapping(model) as taps:
        kept = taps.capture("inner.1", keep="all", grads=True)
        model(X).sum().backward()
        (record,) = kept.records()
    assert record.grad.shape == (2, 6)


@MODES
def test_gradients_of_inputs_are_heard_once(reentrant):
    heard, x = [], X.clone().requires_grad_()
    model = nn.Sequential(nn.Linear(4, 2))
    with tapping(model) as taps:
        taps.tap("0", lambda event: heard.append(event.kind), kinds="grad_input")
        for _ in range(2):
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert heard == ["grad_input"] * 2
