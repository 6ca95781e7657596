"""What is captured stays as it was, is bounded, and holds no graph."""

import gc

import pytest
import torch
from tests.taps.networks import Many, Net, Wrapper, hooks_on
from torch import nn

from hookbus import tapping
from hookbus.taps import CaptureFullError, StaleCaptureError
from hookbus.taps.capture import _bytes

X = torch.linspace(-1, 1, 8).view(2, 4)


@pytest.fixture
def inplace():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 1))


def test_values_survive_operations_in_place(inplace):
    expected = inplace[0](X)
    with tapping(inplace) as taps:
        kept = taps.capture("*")
        on_cpu = taps.capture("0", device="cpu")
        half = taps.capture("0", dtype=torch.float64)
        inplace(X)
    assert (expected < 0).any()
    for capture in (kept, on_cpu, half):
        assert torch.allclose(capture["0"].float(), expected)
        assert not capture["0"].requires_grad
    assert half["0"].dtype == torch.float64


def test_what_is_not_cloned_and_overwritten_is_an_error(inplace):
    with tapping(inplace) as taps:
        kept = taps.capture("*", clone="never")
        inplace(X)
    assert kept["2"].shape == (2, 1)
    with pytest.raises(StaleCaptureError, match="'0' has been overwritten by an in-place operation"):
        kept["0"]


def test_gradients_belong_to_the_value(inplace):
    with tapping(inplace) as taps:
        kept = taps.capture("0", grads=True)
        inplace(X).sum().backward()
    hidden = inplace[0](X)
    (expected,) = torch.autograd.grad(inplace[2](torch.relu(hidden)).sum(), hidden)
    assert torch.equal(kept.grad("0"), expected)
    assert kept.records()[0].grads.keys() == {()}


def test_nothing_is_kept_of_the_graph():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture(None, keep="all", grads=True)
        model(X).sum().backward()
    gc.collect()
    assert all(record.value.grad_fn is None for record in kept)


def test_every_call_of_a_module_has_its_record():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("relu", grads=True)
        model(X).sum().backward()
        model(X).sum().backward()
        first, second = kept.records("relu")
    assert (first.call_index, second.call_index) == (0, 1)
    assert first.moment.step == second.moment.step == 1
    assert not torch.equal(first.value, second.value)
    assert first.grad.shape == second.grad.shape == (2, 6)
    assert torch.equal(kept["relu"], second.value)


@pytest.mark.parametrize(("keep", "steps"), [("last", [4]), (2, [3, 4]), ("all", [0, 1, 2, 3, 4])])
def test_how_many_records_are_kept(keep, steps):
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("head", keep=keep)
        for _ in range(5):
            model(X)
    assert [record.moment.step for record in kept] == steps
    assert kept.nbytes == sum(record.nbytes for record in kept) == len(steps) * 2 * 3 * 4


def test_memory_is_flat_over_a_thousand_steps():
    model = Net()
    with tapping(model) as taps:
        last = taps.capture(None, grads=True)
        bounded = taps.capture(None, keep="all", grads=True, max_bytes="4KB")
        counts = []
        for step in range(1000):
            model(X).sum().backward()
            if step in (200, 999):
                gc.collect()
                counts.append((sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()), last.nbytes))
        assert bounded.nbytes <= 4000
    assert counts[0] == counts[1]
    assert hooks_on(model) == 0


def test_oldest_give_way_when_it_is_full():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("head", keep="all", max_bytes=50)  # 24 bytes each
        for _ in range(4):
            model(X)
    assert [record.moment.step for record in kept] == [2, 3]
    assert kept.dropped == 2


def test_stopping_when_it_is_full():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("head", keep="all", max_bytes=50, on_full="stop")
        for _ in range(4):
            model(X)
        assert [record.moment.step for record in kept] == [0, 1]
        assert kept.dropped == 2
        kept.clear()
        model(X)
        assert len(kept) == 1


def test_raising_when_it_is_full():
    model = Net()
    with tapping(model) as taps:
        taps.capture("head", keep="all", max_bytes=50, on_full="raise")
        model(X)
        model(X)
        with pytest.raises(CaptureFullError, match="needs 24 bytes, and 48 of 50 are taken; raise max_bytes"):
            model(X)


def test_a_record_that_is_too_large_is_never_taken():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("head", max_bytes=10)
        model(X)
    assert len(kept) == 0
    assert kept.dropped == 1


def test_samples_are_small_in_memory_too():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("head", sample=lambda tensor: tensor[:1], grads=True)
        model(X).sum().backward()
    assert kept["head"].shape == (1, 3)
    assert kept["head"].untyped_storage().nbytes() == kept["head"].numel() * 4
    assert kept.grad("head").shape == (1, 3)


def test_inputs():
    model = Wrapper(Many("tensor"))
    x = X.clone().requires_grad_()
    with tapping(model) as taps:
        kept = taps.capture("inner", what="input", grads=True)
        model(x).sum().backward()
        assert torch.equal(kept["inner"], X)
        assert torch.equal(kept.grad("inner"), x.grad)
        model(x, scale=2.0)
        assert kept["inner"][1] == {"scale": 2.0}


@pytest.mark.parametrize("shape", ["tuple", "list", "dict", "named", "dataclass", "structseq"])
def test_structures_are_kept(shape):
    model = Wrapper(Many(shape))
    with tapping(model) as taps:
        kept = taps.capture("inner", grads=True)
        output = model(X)
    assert type(kept["inner"]) is type(output)


def test_inference_mode_gives_tensors_that_can_be_used():
    model = Net()
    with tapping(model) as taps, torch.inference_mode():
        kept = taps.capture("head")
        never = taps.capture("head", clone="never")
        model(X)
    for capture in (kept, never):
        assert not capture["head"].is_inference()
        (capture["head"] * torch.ones(3, requires_grad=True)).sum().backward()


def test_attached_values_give_gradients_at_that_value_and_touch_nothing_else(inplace):
    inplace[0].weight.grad = torch.full((6, 4), 7.0)
    with tapping(inplace) as taps:
        kept = taps.capture("0", attached=True)
        score = inplace(X).sum()
        (grad,) = torch.autograd.grad(score, kept["0"])
    hidden = inplace[0](X)
    assert torch.equal(kept["0"], hidden)  # before the ReLU that works in place
    (expected,) = torch.autograd.grad(inplace[2](torch.relu(hidden)).sum(), hidden)
    assert torch.equal(grad, expected)
    assert torch.equal(inplace[0].weight.grad, torch.full((6, 4), 7.0))
    assert inplace[2].weight.grad is None


def test_attached_values_of_a_frozen_network(inplace):
    inplace.requires_grad_(False)
    with tapping(inplace) as taps:
        kept = taps.capture(["0", "1"], attached=True)
        grads = torch.autograd.grad(inplace(X).sum(), [kept["0"], kept["1"]])
        assert all(grad.abs().sum() > 0 for grad in grads)
        inputs = taps.capture("2", what="input", attached=True)
        assert torch.autograd.grad(inplace(X).sum(), inputs["2"])[0].shape == (2, 6)


def test_wrong_names_are_helped():
    model = Net()
    with tapping(model) as taps:
        kept = taps.capture("head")
        with pytest.raises(KeyError, match="there are none yet"):
            kept["head"]
        model(X)
        with pytest.raises(KeyError, match="did you mean 'head'"):
            kept["haed"]
        assert "head" in kept
        assert kept.names() == ["head"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep must be"),
        ({"what": "weights"}, "what must be one of output, input"),
        ({"on_full": "pray"}, "on_full must be one of"),
        ({"clone": "always"}, "clone must be one of auto, never"),
        ({"attached": True, "device": "cpu"}, "an attached capture keeps tensors as they are"),
        ({"edits": True}, "does not edit"),
        ({"max_bytes": "lots"}, "max_bytes must be a number of bytes"),
    ],
)
def test_what_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tapping(Net()).capture("head", **options)


@pytest.mark.parametrize(("text", "number"), [("256MB", 256_000_000), ("1.5 kib", 1536), (7, 7), ("12", 12)])
def test_bytes_in_words(text, number):
    assert _bytes(text) == number
