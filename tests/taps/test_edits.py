"""Edits are handed on from one to the next, must fit, and say whose they are."""

import pytest
import torch
from tests.taps.networks import Many, Wrapper, hooks_on
from torch import nn

from hookbus import hookimpl, tapping
from hookbus.taps import EditError, Replace

X = torch.linspace(-1, 1, 8).view(2, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def test_each_editor_gets_what_the_one_before_made(model):
    seen = []
    plain = model(X)
    with tapping(model) as taps:
        taps.tap("2", lambda event: event.output + 1, edits=True)
        taps.tap("2", lambda event: seen.append(event.output))
        taps.tap("2", lambda event: event.output * 2, edits=True)
        assert torch.allclose(model(X), (plain + 1) * 2)
    assert torch.allclose(seen[0], plain + 1)
    assert not seen[0].requires_grad


def test_none_leaves_everything_as_it_is(model):
    with tapping(model) as taps:
        taps.tap("**", lambda event: None, edits=True, kinds=["forward", "forward_pre", "grad_output"])
        taps.tap("2", lambda event: None, edits=True, kinds="grad_input")
        output = model(X)
        output.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    again = model(X)
    again.sum().backward()
    assert torch.equal(output, again)
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, model.parameters(), strict=True))


def test_arguments(model):
    with tapping(model) as taps:
        taps.tap("0", lambda event: (event.args[0] * 0,), kinds="forward_pre", edits=True)
        assert torch.allclose(model(X), model[2](torch.relu(model[0].bias)).expand(2, 2))


def test_keyword_arguments():
    model = Wrapper(Many("tensor"))
    with tapping(model) as taps:
        taps.tap("inner", lambda event: Replace(kwargs={"scale": 3.0}), kinds="forward_pre", edits=True)
        assert torch.equal(model(X), 3 * X)


def test_edits_are_differentiable(model):
    scale = torch.tensor(2.0, requires_grad=True)
    with tapping(model) as taps:
        taps.tap("0", lambda event: event.output * scale, edits=True)
        model(X).sum().backward()
    assert scale.grad is not None


def test_gradient_of_outputs(model):
    model(X).sum().backward()
    plain = model[0].weight.grad.clone()
    model.zero_grad()
    with tapping(model) as taps:
        taps.tap("0", lambda event: event.grad * 10, kinds="grad_output", edits=True)
        model(X).sum().backward()
    assert torch.allclose(model[0].weight.grad, 10 * plain)


def test_gradient_of_inputs_is_the_contribution_of_the_module():
    """What a residual connection brings past the module is not edited; what goes to the module's own weights neither."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return x + self.inner(x)

    model = Residual()
    x = X.clone().requires_grad_()
    heard = []
    with tapping(model) as taps:
        taps.tap("inner", lambda event: heard.append(event.grad), kinds="grad_input")
        taps.tap("inner", lambda event: event.grad * 0, kinds="grad_input", edits=True)
        model(x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(heard[0], x.grad)  # an observer hears of the whole gradient of the tensor
    assert model.inner.weight.grad.abs().sum() > 0


def test_gradient_of_inputs_that_the_module_overwrites_cannot_be_edited(model):
    with tapping(model) as taps:
        taps.tap("1", lambda event: event.grad / 2, kinds="grad_input", edits=True)
        with pytest.raises(EditError, match=r"that module works on it in place; .*kinds='grad_output'"):
            model(X)
        with torch.no_grad():
            model(X)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda event: event.output.mean(), r"expected \(2, 2\) float32 on cpu, got \(\) float32 on cpu"),
        (lambda event: event.output.double(), r"expected \(2, 2\) float32 on cpu, got \(2, 2\) float64"),
        (lambda event: event.output.to("meta"), r"got \(2, 2\) float32 on meta"),
        (lambda event: (event.output,), r"structure of the output .*expected Tensor with tensors at itself, got tuple"),
        (lambda event: 3, r"got int with tensors at no place"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_plugin_and_module(model, edit, message):
    class Clumsy:
        @hookimpl(modules="2", edits=True)
        def on_module_forward(self, event):
            return edit(event)

    with tapping(model, Clumsy()), pytest.raises(EditError, match=message) as caught:
        model(X)
    assert "plugin 'Clumsy'" in str(caught.value)
    assert "forward of 2" in str(caught.value)
    assert hooks_on(model) == 0


def test_shape_change_can_be_allowed(model):
    with tapping(model) as taps:
        taps.tap("2", lambda event: event.output.mean(), edits=True, allow_shape_change=True)
        assert model(X).shape == ()


def test_arguments_must_come_as_a_tuple(model):
    with tapping(model) as taps:
        taps.tap("0", lambda event: event.args[0], kinds="forward_pre", edits=True)
        with pytest.raises(
            EditError, match=r"returned a Tensor .* expected a tuple of positional arguments, such as \(x,\)"
        ):
            model(X)


def test_gradient_must_fit(model):
    with tapping(model) as taps:
        taps.tap("0", lambda event: event.grad[:1], kinds="grad_output", edits=True)
        with pytest.raises(EditError, match=r"changed the gradient .*expected \(2, 4\).* got \(1, 4\)") as caught:
            model(X).sum().backward()
    assert "some gradients are accumulated" in " ".join(caught.value.__notes__)


def test_no_gradient_can_be_put_where_there_is_none():
    model = Wrapper(nn.LSTM(4, 3))
    with tapping(model) as taps:
        taps.tap(
            "inner", lambda event: torch.ones(1, 1, 3) if event.grad is None else None, kinds="grad_output", edits=True
        )
        _, (h, _) = model(X.view(2, 1, 4))
        with pytest.raises(EditError, match="there is no gradient to replace"):
            h.sum().backward()


@pytest.mark.parametrize("shape", ["tuple", "dict", "dataclass", "named"])
def test_structures_stay(shape):
    model = Wrapper(Many(shape))
    with tapping(model) as taps:
        taps.tap("inner", lambda event: event.output, edits=True)
        taps.capture("inner", attached=True)
        assert type(model(X)) is type(Many(shape)(X))


def test_a_gradient_that_has_been_added_cannot_be_replaced_but_changed_in_place(model):
    def zero(event):
        event.parameter.grad.zero_()

    with tapping(model) as taps:
        tap = taps.tap("2", lambda event: event.grad * 0, kinds="parameter_grad", edits=True)
        with pytest.raises(EditError, match=r"returned a Tensor for <parameter_grad of 2\.\w+, .* added already"):
            model(X).sum().backward()
        tap.close()
        model.zero_grad()
        taps.tap("2", zero, kinds="parameter_grad", edits=True)
        model(X).sum().backward()
    assert not model[2].weight.grad.any()
    assert model[0].weight.grad.any()
