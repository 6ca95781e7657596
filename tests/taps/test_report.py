"""What was selected and never called is said, and can be looked up; as can all hooks on a network."""

import warnings

import pytest
import torch
from tests.taps.networks import Net, Training, Wrapper, loader, trainer
from torch import nn

from hookbus import hookimpl, tapping
from hookbus.taps import TapWarning, installed_hooks

X = torch.linspace(-1, 1, 8).view(2, 4)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.direct = nn.Linear(4, 4)
        self.idle = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        return self.direct.forward(self.used(x))


def test_attention_that_uses_its_projection_without_calling_it():
    model = Wrapper(nn.MultiheadAttention(4, 2, batch_first=True))
    x = torch.ones(1, 3, 4)
    with tapping(model) as taps:
        taps.tap("inner.out_proj", print)
        with pytest.warns(
            TapWarning, match=r"selected 'inner.out_proj', which was never called.*uses the weights of its out_proj"
        ):
            model(x, x, x)
        (row,) = taps.report().never_fired
        assert (row.module, row.calls) == ("inner.out_proj", 0)
        assert "never  inner.out_proj" in str(taps.report())


@pytest.mark.parametrize("pattern", ["direct", "idle.*", ["used", "direct"]])
def test_silence_is_said_once_after_the_first_pass(pattern):
    model = Unused()
    with tapping(model) as taps:
        taps.tap(pattern, lambda event: None)
        with pytest.warns(TapWarning, match="never called in its first forward pass") as caught:
            model(X)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(X)


@pytest.mark.parametrize(
    "options", [{"modules": "**"}, {"modules": None}, {"modules": "direct", "on_missing": "ignore"}]
)
def test_wide_selections_may_be_silent_in_part(options):
    model = Unused()
    with warnings.catch_warnings(), tapping(model) as taps:
        warnings.simplefilter("error")
        taps.tap(options.pop("modules"), lambda event: None, **options)
        model(X)
        assert {row.module for row in taps.report().never_fired} >= {"direct"}


def test_counts_and_aliases():
    model = Net()
    model.other = model.head
    with tapping(model) as taps:
        taps.tap("head", lambda event: None, kinds=["forward", "grad_output"])
        model(X).sum().backward()
        taps.tap("head", lambda event: None)
        model(X)
        rows = [(row.hook, row.module, row.aliases, row.calls) for row in taps.report().rows]
    assert rows == [
        ("on_module_forward", "head", ("other",), 2),
        ("on_module_forward", "head", ("other",), 1),
        ("on_module_grad_output", "head", ("other",), 1),
    ]


def test_report_without_taps_is_empty():
    assert tapping(Net()).report().rows == ()


def test_silence_in_a_trainer():
    class Plugin:
        @hookimpl(modules="net.idle.*")
        def on_module_forward(self): ...

    with pytest.warns(
        TapWarning, match="plugin 'Plugin', hook 'on_module_forward'.* selected 'net.idle.0', 'net.idle.1'"
    ):
        trainer(Plugin()).fit(Training(Unused()), loader(2))


def test_hooks_of_everybody_are_listed():
    model = Net()

    def foreign(*_): ...

    model.head.register_forward_hook(foreign)
    model.head.weight.register_hook(lambda grad: grad)
    with tapping(model) as taps:
        taps.tap("stem", print, kinds=["forward", "parameter_grad"])
        rows = [(row.name, row.kind, row.taps) for row in taps.hooks()]
    assert set(rows) == {
        ("", "forward_pre", True),
        ("", "forward", True),
        ("stem", "forward", True),
        ("stem.weight", "gradient", True),
        ("stem.weight", "accumulated_gradient", True),
        ("stem.bias", "gradient", True),
        ("stem.bias", "accumulated_gradient", True),
        ("head", "forward", False),
        ("head.weight", "gradient", False),
    }
    assert [(row.name, row.kind, row.taps) for row in installed_hooks(model)] == [
        ("head", "forward", False),
        ("head.weight", "gradient", False),
    ]
    assert installed_hooks(model)[0].hook is foreign
