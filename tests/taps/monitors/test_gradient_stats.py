"""Gradients are measured as the optimiser gets them, and updates as what it does to the weights."""

import math
import warnings

import pytest
import torch
from tests.taps.monitors.waiting import Waiting, pretend_device
from tests.taps.networks import Net, Training, loader, trainer
from torch import nn

import hookbus
from hookbus.taps.monitors import GradientStats


class Grouped(Training):
    """Two groups of parameters."""

    def configure_optimizers(self):
        head = list(self.net.head.parameters())
        rest = [p for name, p in self.net.named_parameters() if not name.startswith("head")]
        return torch.optim.AdamW([{"params": rest, "name": "body"}, {"params": head, "lr": 0.1}], lr=0.01)


class Oracle(hookbus.Callback):
    """What a user would compute by hand."""

    def __init__(self):
        self.grads, self.before, self.after = {}, {}, {}

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.grads = {name: p.grad.clone() for name, p in pl_module.named_parameters() if p.grad is not None}
        self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.after = {name: p.detach().clone() for name, p in pl_module.named_parameters()}


class Log:
    def __init__(self):
        self.calls = []

    @hookbus.hookimpl
    def log_metrics(self, metrics, step):
        self.calls.append((step, dict(metrics)))


def check(stats, oracle):
    names = [row.name for row in stats.table()]
    assert sorted(names) == sorted(oracle.grads)
    for row in stats.table():
        grad, before, after = oracle.grads[row.name], oracle.before[row.name], oracle.after[row.name]
        assert (row.numel, row.nonfinite) == (grad.numel(), 0)
        assert row.norm == pytest.approx(grad.norm().item(), rel=1e-6)
        assert row.rms == pytest.approx(grad.square().mean().sqrt().item(), rel=1e-6)
        assert row.weight_norm == pytest.approx(before.norm().item(), rel=1e-6)
        assert row.update_ratio == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-5)
    whole = torch.cat([grad.flatten() for grad in oracle.grads.values()])
    assert stats.table("total")[0].norm == pytest.approx(whole.norm().item(), rel=1e-6)


@pytest.mark.parametrize("where", ["host", "device"])
def test_norms_and_updates_are_those_of_a_run_with_accumulation_and_clipping(where, monkeypatch):
    if where == "device":
        pretend_device(monkeypatch)
    stats, oracle, log = GradientStats(every=2), Oracle(), Log()
    run = trainer(stats, log, callbacks=[oracle], accumulate_grad_batches=2, gradient_clip_val=1e-3)
    run.fit(Grouped(), loader(8))
    check(stats, oracle)
    assert [row.name for row in stats.table("group")] == ["body", "pg2"]
    body = [grad.flatten() for name, grad in oracle.grads.items() if not name.startswith("net.head")]
    assert stats.table("group")["body"].norm == pytest.approx(torch.cat(body).norm().item(), rel=1e-6)
    names = {f"gradients/{word}{group}" for word in ("norm", "update_ratio") for group in ("", "/body", "/pg2")}
    assert [(step, set(metrics)) for step, metrics in log.calls] == [
        (s, names | {"gradients/nonfinite"}) for s in (1, 3)
    ]
    assert log.calls[-1][1]["gradients/norm"] == stats.table("total")["total"].norm > 1e-3


def test_what_is_logged():
    def names(level, **arguments):
        log = Log()
        trainer(GradientStats(every=1, log=level, **arguments), log).fit(Training(), loader(1))
        return set(log.calls[0][1])

    total = {"gradients/norm", "gradients/update_ratio", "gradients/nonfinite"}
    assert names("total") == names("group") == total  # of one group there is no more to say
    assert "gradients/update_ratio/net.stem.bias" in names("parameter")
    assert names("total", updates=False, prefix="grads") == {"grads/norm", "grads/nonfinite"}


def test_a_part_of_the_network():
    stats = GradientStats("net.blocks.**", types=nn.Linear, every=1)
    model = Training()
    model.net.blocks[0].conv.bias.requires_grad_(False)
    trainer(stats).fit(model, loader(1))
    prefix = "net.blocks."
    assert [row.name for row in stats.table()] == [
        prefix + name for name in ("0.conv.weight", "1.conv.weight", "1.conv.bias")
    ]


def test_scaled_gradients_are_unscaled_and_a_step_that_is_left_out_is_no_update():
    class Model(Training):
        scale = 1.0

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * self.scale

    stats, oracle, model = GradientStats(every=1), Oracle(), Model()
    run = trainer(stats, oracle, precision="16-mixed")
    run.fit(model, loader(12))
    assert run.scaler.get_scale() > 1
    check(stats, oracle)
    model.scale = math.inf
    trainer(stats, precision="16-mixed").fit(model, loader(1))
    row = stats.table("total")[0]
    assert (row.update_norm, row.update_ratio) == (None, None)
    assert row.nonfinite > 0
    assert not math.isfinite(row.norm)


def test_what_is_not_finite_is_counted_before_clipping_spreads_it():
    class Model(Training):
        def training_step(self, batch, batch_idx):
            self.net.head.weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([1]), math.nan))
            return super().training_step(batch, batch_idx)

    stats = GradientStats(every=1)
    trainer(stats, gradient_clip_val=1.0).fit(Model(), loader(1))
    assert {row.name: row.nonfinite for row in stats.table() if row.nonfinite} == {"net.head.weight": 6}
    assert math.isnan(stats.table("total")[0].norm)


def step_by_hand(stats, parameter_grads, **arguments):
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros_like(grad)) for name, grad in parameter_grads.items()})
    for name, grad in parameter_grads.items():
        model[name].grad = grad
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with stats.watch(model, optimizer):
        optimizer.step()
    return stats.table()


def test_great_gradients_do_not_count_as_infinite():
    rows = step_by_hand(GradientStats(), {"a": torch.full((4,), 1e30), "b": torch.full((4,), 6e4).half()})
    assert [row.nonfinite for row in rows] == [0, 0]
    assert rows["a"].norm == pytest.approx(2e30)
    assert rows["b"].norm == pytest.approx(1.2e5, rel=1e-3)
    assert rows["a"].update_ratio is None  # of weights that are zero


def test_sparse_and_shared_parameters():
    model = nn.ModuleDict({"words": nn.Embedding(5, 3, sparse=True), "out": nn.Linear(3, 5, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stats = GradientStats()
    with stats.watch(model, optimizer):
        model["words"](torch.tensor([1, 1, 2])).sum().backward()
        optimizer.step()
    assert {row.name: row.norm for row in stats.table()} == {"words.weight": pytest.approx(math.sqrt(3 * 4 + 3))}

    tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    tied["b"].weight = tied["a"].weight
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.1)
    with stats.watch(tied, optimizer):
        tied["b"](tied["a"](torch.ones(1, 2))).sum().backward()
        optimizer.step()
    assert [row.name for row in stats.table()] == ["a.weight"]


class Twice(torch.optim.SGD):
    """Its step calls that of its base, so that torch's hooks fire twice."""

    def step(self, closure=None):
        result = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.5)
        return result


@pytest.mark.parametrize("kind", [torch.optim.SGD, Twice])
def test_a_hand_written_loop(kind):
    model = Net()
    optimizer, stats = kind(model.parameters(), lr=0.1), GradientStats(every=2)
    with stats.watch(model, optimizer):
        for turn in range(5):
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            if turn == 3:
                expected = {
                    name: (p.grad.norm().item(), (p.detach() - before[name]).norm().item())
                    for name, p in model.named_parameters()
                }
    assert {row.name: (row.norm, row.update_norm) for row in stats.table()} == {
        name: (pytest.approx(norm), pytest.approx(update, rel=1e-5)) for name, (norm, update) in expected.items()
    }
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks


def test_a_loop_with_closures_and_one_with_two_optimizers():
    model, stats = Net(), GradientStats()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def closure():
        lbfgs.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    with stats.watch(model, lbfgs):
        lbfgs.step(closure)
    assert stats.table("total")[0].norm > 0
    assert stats.table("total")[0].update_norm > 0

    first = torch.optim.SGD(model.stem.parameters(), lr=0.1)
    second = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with stats.watch(model, first, second):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            first.step()
            second.step()
    assert [row.name for row in stats.table("group")] == ["SGD/pg1", "SGD-1/pg1"]
    assert {row.name for row in stats.table()} == {"stem.weight", "stem.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize("fused", [False, True])
def test_a_loop_with_a_scaler(fused):
    model, stats = nn.Linear(2, 1, bias=False), GradientStats()
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with stats.watch(model, optimizer), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler.scale(model(torch.tensor([[3.0, 4.0]])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert stats.table()["weight"].norm == pytest.approx(5.0)


def test_manual_optimization_with_two_optimizers_and_lbfgs_in_a_trainer():
    class Manual(Training):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.net(batch).square().mean())
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(self.net.stem.parameters(), lr=0.1), torch.optim.Adam(self.net.head.parameters())]

    class Lbfgs(Training):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=2)

    stats = GradientStats(every=1)
    trainer(stats).fit(Manual(), loader(2))
    assert {row.name for row in stats.table("group")} == {"SGD/pg1", "Adam/pg1"}
    assert all(row.update_ratio > 0 for row in stats.table())
    trainer(stats).fit(Lbfgs(), loader(1))
    assert stats.table("total")[0].update_ratio > 0


def test_a_device_is_waited_for_once_per_step(monkeypatch):
    pretend_device(monkeypatch)
    model, stats = Net(), GradientStats()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    with stats.watch(model, optimizer), Waiting() as waiting:
        optimizer.step()
        assert not waiting.count
        stats.table()
    assert waiting.count == {"tolist": 1}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"phases": "val"}, TypeError, "once per optimizer step, in training"),
        ({"micro": "last"}, TypeError, "no argument micro"),
        ({"log": "everything"}, ValueError, "log must be one of 'parameter', 'group', 'total'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        GradientStats(**arguments)
    with pytest.raises(ValueError, match="level must be one of"):
        GradientStats().table("layer")
