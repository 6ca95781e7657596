from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus.engine.precision import MixedPrecision, Precision, make_precision
from hookbus.errors import MisconfigurationException

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        *((word, "32-true") for word in (32, "32", "32-true")),
        *((word, "64-true") for word in (64, "64", "64-true")),
        *((word, "16-mixed") for word in (16, "16", "16-mixed")),
        *((word, "bf16-mixed") for word in ("bf16", "bf16-mixed")),
        ("16-true", "16-true"),
        ("bf16-true", "bf16-true"),
    ],
)
def test_names(asked: Any, name: str) -> None:
    assert make_precision(asked, CPU).precision == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(MisconfigurationException, match=r"bf16-mixed.*got 'fp8'"):
        make_precision("fp8", CPU)


@pytest.mark.parametrize(
    ("name", "dtype"), [("64-true", torch.float64), ("16-true", torch.float16), ("bf16-true", torch.bfloat16)]
)
def test_true_precision_converts_floats_and_the_default(name: str, dtype: torch.dtype) -> None:
    precision = make_precision(name, CPU)
    module = torch.nn.BatchNorm1d(2)
    precision.convert_module(module)
    assert module.weight.dtype == dtype
    assert module.num_batches_tracked.dtype == torch.int64
    batch = precision.convert_input({"x": [torch.ones(1)], "y": torch.ones(1).long(), "n": "name"})
    assert batch["x"][0].dtype == dtype
    assert batch["y"].dtype == torch.int64
    for context in (precision.init_context, precision.forward_context):
        with context():
            assert torch.zeros(1).dtype == dtype
        assert torch.zeros(1).dtype == torch.float32


def test_full_precision_leaves_everything_alone() -> None:
    precision = make_precision("32-true", CPU)
    batch = [torch.ones(1).double()]
    assert precision.convert_input(batch) is batch
    assert precision.convert_module(torch.nn.Linear(1, 1).double()).weight.dtype == torch.float64
    assert precision.forward_context() is precision.forward_context()


def test_mixed_precision_computes_in_16_bit_and_keeps_32() -> None:
    precision = make_precision("bf16-mixed", CPU)
    layer = torch.nn.Linear(2, 1)
    with precision.forward_context():
        assert layer(torch.ones(1, 2)).dtype == torch.bfloat16
    assert layer.weight.dtype == torch.float32
    assert precision.state_dict() == {}


def step(
    precision: Precision, answer: Any, *, automatic: bool = True, infinite: bool = False
) -> tuple[list[Any], float]:
    """Step once from weight 1 with gradient 1; what after_closure saw of the gradient, and the weight then."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    seen: list[Any] = []

    def closure() -> Any:
        if answer is not None or not automatic:
            precision.scale((weight * (float("inf") if infinite else 1.0)).sum()).backward()
        return answer

    def after_closure() -> None:
        seen.append(None if weight.grad is None else weight.grad.item())

    precision.run_optimizer_step(optimizer, closure, after_closure, automatic=automatic)
    return seen, weight.item()


def test_the_plain_step_runs_closure_and_hooks_inside_the_optimizer() -> None:
    precision = make_precision(32, CPU)
    assert step(precision, torch.ones(())) == ([1.0], 0.5)
    assert step(precision, None) == ([None], 1.0)  # no loss: the hooks run, there is just nothing to update with
    weight = torch.nn.Parameter(torch.ones(1))
    calls: list[str] = []

    def closure() -> torch.Tensor:
        calls.append("closure")
        weight.grad = None
        loss = (weight**2).sum()
        loss.backward()
        return loss

    optimizer = torch.optim.LBFGS([weight], max_iter=3)
    precision.run_optimizer_step(optimizer, closure, lambda: calls.append("after"), automatic=True)
    assert len(calls) >= 4
    assert calls == ["closure", "after"] * (len(calls) // 2)


def test_hooks_see_unscaled_gradients() -> None:
    precision = make_precision("16-mixed", CPU)
    assert precision.scale(torch.ones(())).item() == 2.0**16
    assert step(precision, torch.ones(())) == ([1.0], 0.5)


def test_infinite_gradients_skip_the_step_and_lower_the_scale() -> None:
    precision = make_precision("16-mixed", CPU)
    seen, weight = step(precision, torch.ones(()), infinite=True)
    assert seen == [float("inf")]
    assert weight == 1.0
    assert precision.scale(torch.ones(())).item() == 2.0**15


def test_a_scaler_skips_the_step_without_a_loss_and_can_go_on() -> None:
    precision = make_precision("16-mixed", CPU)
    assert step(precision, None) == ([None], 1.0)
    assert step(precision, torch.ones(())) == ([1.0], 0.5)
    assert step(precision, None, automatic=False) == ([1.0], 0.5)  # by hand: the closure returns nothing, as it may


def test_lbfgs_cannot_be_scaled() -> None:
    optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(MisconfigurationException, match="LBFGS"):
        make_precision("16-mixed", CPU).run_optimizer_step(optimizer, lambda: None, lambda: None, automatic=True)


def test_the_scale_is_state() -> None:
    first, second = make_precision("16-mixed", CPU), make_precision("16-mixed", CPU)
    step(first, torch.ones(()), infinite=True)
    second.load_state_dict(first.state_dict())
    assert second.scale(torch.ones(())).item() == 2.0**15
    assert type(first).__qualname__ == MixedPrecision.__qualname__ == "MixedPrecision"  # the key in a checkpoint


@pytest.mark.parametrize(
    ("value", "algorithm", "expected"),
    [
        (1.0, "norm", [0.6, 0.8]),
        (1.0, None, [0.6, 0.8]),
        (3.5, "value", [3.0, 3.5]),
        (0, "norm", [3.0, 4.0]),
        (None, "value", [3.0, 4.0]),
    ],
)
def test_clipping(value: float | None, algorithm: str | None, expected: list[float]) -> None:
    weight, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.tensor([3.0, 4.0])
    optimizer = torch.optim.SGD([weight, unused], lr=1)
    make_precision(32, CPU).clip_gradients(optimizer, value, algorithm)
    torch.testing.assert_close(weight.grad, torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipping_without_any_gradient(algorithm: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)
    make_precision(32, CPU).clip_gradients(optimizer, 1.0, algorithm)
