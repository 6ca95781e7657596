"""Copies of a tapped network work, report to nobody, and keep nothing; foreign hooks keep their places."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from tests.taps.networks import Net, hooks_on
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from hookbus import tapping

X = torch.linspace(-1, 1, 8).view(2, 4)
KINDS = ["forward_pre", "forward", "forward_error", "grad_output", "grad_input", "parameter_grad"]


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), saved],
    ids=["deepcopy", "copy", "pickle", "save"],
)
def test_copies_report_to_nobody_and_lose_their_hooks_at_the_first_call(duplicate):
    model, heard = Net(), []
    with tapping(model) as taps:
        taps.tap(None, lambda event: heard.append(event.name), kinds=KINDS)
        other = duplicate(model)
        if duplicate is not copy.copy:  # whose submodules are those of the original
            assert torch.equal(other(X), Net.forward(model, X))
            heard.clear()
            other(X).sum().backward()
            assert heard == []
            assert hooks_on(other) == 0
        model(X)
        assert heard
    assert hooks_on(model) == 0


def test_a_copy_survives_an_error_at_its_first_call():
    with tapping(Net()) as taps:
        taps.tap(None, lambda event: None, kinds=KINDS)
        other = copy.deepcopy(taps._model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        other(torch.ones(2, 3))
    other(X)
    assert hooks_on(other) == 0


def test_averaged_copies_of_a_model_in_training_are_not_heard():
    model, heard = Net(), []
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(1))
        averaged = AveragedModel(model)
        averaged(X)
        averaged.update_parameters(model)
    assert heard == []


def test_state_dict_is_that_of_the_plain_network():
    model = Net()
    plain = list(model.state_dict())
    with tapping(model) as taps:
        taps.tap(None, lambda event: None, kinds=KINDS)
        assert list(model.state_dict()) == plain


def test_a_hook_that_was_unpickled_keeps_its_place(tmp_path):
    """In a new process torch counts hooks from zero, and would replace the unpickled one."""
    script = """
import sys, torch, hookbus
from tests.taps.test_trampoline import Noted
model = torch.load(sys.argv[1], weights_only=False)
with hookbus.tapping(model) as taps:
    taps.tap("0", lambda event: None, kinds=["forward", "forward_pre"])
    model(torch.ones(1, 2))
assert Noted.calls == 2, Noted.calls
"""
    model = nn.Sequential(nn.Linear(2, 2))
    for register, hooks in (
        (model[0].register_forward_hook, "_forward_hooks"),
        (model[0].register_forward_pre_hook, "_forward_pre_hooks"),
    ):
        register(Noted())
        held = getattr(model[0], hooks)
        held[0] = held.popitem()[1]
    torch.save(model, tmp_path / "model.pt")
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "model.pt")], check=True)


class Noted:
    calls = 0

    def __call__(self, *_):
        Noted.calls += 1


def test_ids_stay_unique():
    model = nn.Linear(1, 1)
    model._forward_hooks[RemovableHandle.next_id + 3] = Noted()
    with tapping(nn.Sequential(model)) as taps:
        for _ in range(6):
            taps.tap("0", lambda event: None)
        assert len(model._forward_hooks) == 2


def test_output_of_a_tapped_network_can_be_saved_and_copied():
    model = Net()
    with tapping(model) as taps:
        taps.tap("head", lambda event: None, kinds="grad_output")
        x = torch.ones(1, 4)
        output = model(x)
        detached = pickle.loads(pickle.dumps(output.detach()))
    assert torch.equal(output, detached)


def test_functional_call_and_vmap():
    model, heard = Net(), []
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append(tuple(event.output.shape)))
        weights = dict(model.named_parameters())
        torch.func.functional_call(model, weights, (X,))
        torch.func.vmap(model)(X)
    assert heard == [(2, 3), (3,)]


@pytest.mark.parametrize("kinds", [KINDS, "forward", "forward_pre", "forward_error"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("where", ["0", ""])
def test_a_foreign_hook_may_take_taps_off_while_torch_walks_over_the_hooks(kinds, moment, where):
    """torch calls a hook that was taken off meanwhile once more, without what it has asked for."""
    net, taps = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    plain = net(X)
    module = net.get_submodule(where)
    if moment == "before":
        module.register_forward_pre_hook(lambda *_: taps[0].close())
    else:
        module.register_forward_hook(lambda *_: taps[0].close())
    taps.append(tapping(net))
    taps[0].tap("*", lambda event: None, kinds=kinds)
    for called in (module, net):
        called(X)
    assert torch.equal(net(X), plain)
    assert hooks_on(net) == 1


@pytest.mark.parametrize("method", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_ctrl_c_while_a_hook_is_put_on_a_parameter_leaves_none(method, monkeypatch):
    net, original = nn.Sequential(nn.Linear(4, 2)), getattr(torch.Tensor, method)

    def interrupted(self, hook):
        original(self, hook)
        raise KeyboardInterrupt

    with tapping(net) as taps:
        monkeypatch.setattr(torch.Tensor, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            taps.tap("*", print, kinds="parameter_grad")
        monkeypatch.undo()
    assert hooks_on(net) == 0
