from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from hookbus.engine.optimizer import LightningOptimizer, parameters_of, unwrap
from hookbus.errors import MisconfigurationException


@pytest.fixture
def sgd() -> torch.optim.SGD:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=0.5, momentum=0.9)


def test_it_passes_for_the_wrapped_optimizer(sgd: torch.optim.SGD) -> None:
    wrapped = LightningOptimizer(sgd)
    assert isinstance(wrapped, LightningOptimizer)
    assert isinstance(wrapped, torch.optim.SGD)
    assert not isinstance(wrapped, torch.optim.Adam)
    assert wrapped.param_groups is sgd.param_groups
    assert wrapped.state is sgd.state
    assert wrapped.defaults["momentum"] == 0.9
    assert wrapped.optimizer is unwrap(wrapped) is unwrap(sgd) is sgd
    assert parameters_of(wrapped) == parameters_of(sgd)
    assert repr(wrapped).startswith("LightningSGD (")
    with pytest.raises(AttributeError, match="SGD"):
        wrapped.no_such_thing


def test_what_is_set_or_loaded_reaches_the_wrapped_optimizer(sgd: torch.optim.SGD) -> None:
    wrapped: Any = LightningOptimizer(sgd)
    state = copy.deepcopy(sgd.state_dict())
    state["param_groups"][0]["lr"] = 0.25
    wrapped.load_state_dict(state)
    assert sgd.param_groups[0]["lr"] == 0.25
    assert wrapped.param_groups is sgd.param_groups
    wrapped.note = "n"
    assert sgd.note == "n"
    wrapped.zero_grad()
    assert sgd.param_groups[0]["params"][0].grad is None


def test_step_goes_to_the_given_function(sgd: torch.optim.SGD) -> None:
    calls: list[Any] = []

    def step(optimizer: Any, closure: Any = None, **kwargs: Any) -> str:
        calls.append((optimizer, closure, kwargs))
        return "result"

    wrapped = LightningOptimizer(sgd, step=step)
    assert wrapped.step() == "result"
    assert wrapped.step(closure := (lambda: None), extra=1) == "result"
    assert calls == [(sgd, None, {}), (sgd, closure, {"extra": 1})]
    with pytest.raises(MisconfigurationException, match="closure"):
        wrapped.step(3)  # type: ignore[arg-type]


def test_a_scheduler_made_from_it_sees_its_steps(sgd: torch.optim.SGD, recwarn: pytest.WarningsRecorder) -> None:
    calls: list[Any] = []

    def step(optimizer: Any, closure: Any, **kwargs: Any) -> None:
        calls.append(optimizer)
        optimizer.step(closure)

    wrapped: Any = LightningOptimizer(sgd, step=step)
    scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 1, gamma=0.5)
    wrapped.step()
    scheduler.step()
    assert calls == [sgd]
    assert sgd.param_groups[0]["lr"] == 0.25
    assert not recwarn.list


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_copies_step_an_optimizer_of_their_own(sgd: torch.optim.SGD, clone: Any) -> None:
    def of_the_trainer(*args: Any) -> None:
        raise AssertionError("a copy must not drive the trainer")

    copied = clone(LightningOptimizer(sgd, step=of_the_trainer))
    assert isinstance(copied, LightningOptimizer)
    [weight] = parameters_of(copied)
    weight.grad = torch.ones(1)
    copied.step()
    assert weight.item() == 0.5
    assert parameters_of(sgd)[0].item() == 1.0


def test_toggling_needs_a_module(sgd: torch.optim.SGD) -> None:
    with pytest.raises(RuntimeError, match=r"self\.optimizers"), LightningOptimizer(sgd).toggle_model():
        pass
