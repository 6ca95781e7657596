"""What an event says of a parameter's gradient: of one backward pass, or a sum. Several processes: test_distributed."""

import math
import weakref

import pytest
import torch
from tests.taps.networks import Net, Training, hooks_on, loader, trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookbus
from hookbus import tapping

X = torch.linspace(-1, 1, 8).view(2, 4)


def said(model, run, modules="*", **options):
    """What is said of each gradient of a parameter while ``run`` runs."""
    heard = []
    with tapping(model) as taps:
        taps.tap(modules, lambda event: heard.append(event.grad_kind), kinds="parameter_grad", **options)
        run()
    assert hooks_on(model) == 0
    return heard


def test_a_second_backward_pass_accumulates_until_the_gradients_are_forgotten():
    model = nn.Linear(4, 1, bias=False)

    def run():
        for _ in range(3):
            model(X).sum().backward()
        model.zero_grad()
        model(X).sum().backward()

    assert said(model, run, "") == ["local", "accumulated", "accumulated", "local"]


def test_a_gradient_that_was_there_before_the_tap_counts():
    model = nn.Linear(4, 1, bias=False)
    model(X).sum().backward()
    assert said(model, lambda: model(X).sum().backward(), "") == ["accumulated"]


def test_so_does_one_that_came_at_a_step_that_was_not_due():
    model = nn.Linear(4, 1, bias=False)

    def run():
        model(X).sum().backward()
        model(X).sum().backward()

    assert said(model, run, "", every=2) == ["accumulated"]


@pytest.mark.parametrize("factor", [1.0, math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_was_set_to_zeros_is_no_sum(factor, dtype):
    model = nn.Linear(4, 1, bias=False, dtype=dtype)

    def run():
        (model(X.to(dtype)).sum() * factor).backward()
        model.zero_grad(set_to_none=False)
        (model(X.to(dtype)).sum() * factor).backward()

    assert said(model, run, "") == ["local", "local"]


def test_sparse_gradients():
    model = nn.Embedding(5, 2, sparse=True)

    def run():
        for _ in range(2):
            model(torch.tensor([1, 3])).sum().backward()

    assert said(model, run, "") == ["local", "accumulated"]


def test_a_parameter_used_twice_in_one_pass_gets_one_gradient():
    model = Net()
    model.head = nn.Linear(6, 4)
    model.stem.weight = nn.Parameter(torch.randn(6, 4))

    def run():
        model(model(X)).sum().backward()

    assert set(said(model, run, "stem")) == {"local"}


def test_gradients_that_are_not_added_to_anything_do_not_count():
    model = nn.Linear(4, 1, bias=False)

    def run():
        torch.autograd.grad(model(X).sum(), model.weight)
        model(X).sum().backward()
        torch.autograd.grad(model(X).sum(), model.weight)
        model.zero_grad()
        torch.autograd.backward(model(X).sum(), inputs=[model.weight])

    assert said(model, run, "") == ["local", "local"]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_gradients_with_a_graph():
    model = nn.Linear(4, 1, bias=False)

    def run():
        for _ in range(2):
            model(X).square().sum().backward(create_graph=True)
        model.zero_grad()

    assert said(model, run, "") == ["local", "accumulated"]


def test_no_gradient_is_kept():
    model, kept = nn.Linear(4, 1, bias=False), []
    model.weight.register_hook(lambda grad: kept.append(weakref.ref(grad)))
    with tapping(model) as taps:
        taps.tap("", lambda event: None, kinds="parameter_grad")
        for _ in range(2):
            model(X).sum().backward()
        assert kept[1]() is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    model = Net()

    def run():
        for _ in range(2):
            x = X.clone().requires_grad_()
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    assert said(model, run, "head") == ["local"] * 2 + ["accumulated"] * 2


def test_a_compiled_network():
    torch._dynamo.reset()
    model = Net()
    fast = torch.compile(model, backend="aot_eager")
    heard = []
    with tapping(fast) as taps:
        taps.tap("head", lambda event: heard.append(event.grad_kind), kinds="parameter_grad")
        for _ in range(2):
            fast(X).sum().backward()
    assert heard == ["local"] * 2 + ["accumulated"] * 2
    torch._dynamo.reset()


@pytest.mark.parametrize("to_none", [True, False])
def test_the_batches_of_an_accumulation_window(to_none):
    """The trainer forgets old gradients between forward and backward, when hooks are on already."""

    class Zeroing(Training):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            optimizer.zero_grad(set_to_none=to_none)

    heard, model = [], Zeroing()
    run = trainer(accumulate_grad_batches=3)
    run.taps.tap(
        "net.head",
        lambda event: heard.append((event.name[-4:], event.micro_step, event.grad_kind)),
        kinds="parameter_grad",
    )
    run.fit(model, loader(5))
    assert [row[1:] for row in heard if row[0] == "bias"] == [
        *((0, "local"), (1, "accumulated"), (2, "accumulated")),
        *((0, "local"), (1, "accumulated")),
    ]
    assert hooks_on(model) == 0


def test_manual_optimization():
    class Manual(Training):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            for _ in range(2):
                self.manual_backward(self.net(batch).square().mean())
            optimizer.step()

    heard = []
    run = trainer()
    run.taps.tap("net.head", lambda event: heard.append(event.grad_kind), kinds="parameter_grad")
    run.fit(Manual(), loader(2))
    assert heard == (["local"] * 2 + ["accumulated"] * 2) * 2


def test_other_kinds_of_events_have_none():
    kinds = ["forward_pre", "forward", "forward_error", "grad_output", "grad_input"]
    heard = []

    def fail(module, args):
        if args[0].sum() > 1e6:
            raise ValueError

    model = Net()
    model.head.register_forward_pre_hook(fail)
    with tapping(model) as taps:
        taps.tap("head", lambda event: heard.append((event.kind, event.grad_kind)), kinds=kinds)
        model(X).sum().backward()
        model.stem.bias.data.fill_(1e9)
        with pytest.raises(ValueError):
            model(X)
    assert set(heard) == {(kind, None) for kind in kinds}


def test_an_implementation_on_the_bus_can_ask():
    class Asks:
        def __init__(self):
            self.said = set()

        @hookbus.hookimpl(modules="net.head")
        def on_parameter_grad(self, event):
            self.said.add((event.micro_step, event.grad_kind))

    asks = Asks()
    trainer(asks, accumulate_grad_batches=2).fit(Training(), loader(4))
    assert asks.said == {(0, "local"), (1, "accumulated")}
