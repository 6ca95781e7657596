"""What taps cost: per call of a module against raw hooks, and per training step for each monitor, against plain baselines.

    python benchmarks/taps.py [--json FILE] [--repeats N]

Calls: a chain of modules that do next to nothing, so that the hooks show. A figure is the cost of one module more, from
chains of two lengths; what taps cost once per forward pass is a line of its own.

Steps: a CNN of 52 layers on 16 images, trained by hookbus's Trainer. Three monitors as other libraries have them are
written out below, as callbacks without hookbus's taps: of gradients like ``wandb.watch``, of activations like fastai's
``ActivationStats`` and Composer's ``ActivationMonitor``. What ``every=100`` costs is less than the noise of such a step, so it
is put together: a hundredth of what a step costs that is due, and what one costs that is not. The latter does not depend on the
network (but for hooks that stay, those of ``wandb.watch``), and is measured on a small one, of 10 layers one number wide.

Times are those of the process (CPU time, one thread). The candidates take turns; of calls the lowest decile counts, of steps
the fastest one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hookbus
from hookbus import hookimpl, tapping
from hookbus.taps import monitors

clock = time.process_time


# -- per call of a module ----------------------------------------------------------------------------------------------


def chain(length: int, *, linear: bool = False) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1, 1) if linear else nn.Identity() for _ in range(length)))


def raw(register: Callable[[nn.Module], Any], number: int = 1) -> Callable[[nn.Module], Any]:
    """Put hooks on each module of a chain."""

    def put_on(model: nn.Module) -> None:
        for module in model.children():
            for _ in range(number):
                register(module)

    return put_on


def taps(number: int = 1, **options: Any) -> Callable[[nn.Module], Any]:
    """Tap each module of a chain."""

    def put_on(model: nn.Module) -> Any:
        made = tapping(model)
        for _ in range(number):
            made.tap("*", lambda event: None, **options)
        return made  # whoever forgets taps takes them off

    return put_on


class Plugin:
    @hookimpl(modules="*")
    def on_module_forward(self, event: Any) -> None: ...


def _gradient_hook(module: nn.Module, args: Any, output: Tensor) -> None:
    output.register_hook(lambda grad: None)


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "no hook": lambda model: None,
    "1 bare forward hook": raw(lambda m: m.register_forward_hook(lambda *_: None)),
    "1 tap": taps(),
    "1 plugin": lambda model: tapping(model, Plugin()),
    "3 bare forward hooks": raw(lambda m: m.register_forward_hook(lambda *_: None), 3),
    "3 taps": taps(3),
    "10 bare forward hooks": raw(lambda m: m.register_forward_hook(lambda *_: None), 10),
    "10 taps": taps(10),
    "1 bare forward pre-hook": raw(lambda m: m.register_forward_pre_hook(lambda *_: None)),
    "1 tap of forward_pre": taps(kinds="forward_pre"),
    "1 tap, not due": taps(every=10**9),
}
BACKWARD: dict[str, Callable[[nn.Module], Any]] = {
    "no hook": lambda model: None,
    "forward hook + output.register_hook": raw(lambda m: m.register_forward_hook(_gradient_hook)),
    "1 tap of grad_output": taps(kinds="grad_output"),
    "full backward hook": raw(lambda m: m.register_full_backward_hook(lambda *_: None)),
    "1 bare parameter hook": raw(
        lambda m: [p.register_post_accumulate_grad_hook(lambda _: None) for p in m.parameters()]
    ),
    "1 tap of parameter_grad": taps(kinds="parameter_grad"),
}
SHORT, LONG = 16, 80


def per_call(candidates: dict[str, Callable[[nn.Module], Any]], repeats: int, *, backward: bool) -> dict[str, Any]:
    x, models, held = torch.ones(1, 1), {}, []
    for name, put_on in candidates.items():
        for length in (SHORT, LONG):
            model = models[name, length] = chain(length, linear=backward)
            held.append(put_on(model))
    times: dict[Any, list[float]] = {key: [] for key in models}
    rounds = 5 if backward else 20
    for _ in range(repeats):
        for key, model in models.items():
            start = clock()
            for _ in range(rounds):
                out = model(x)
                if backward:
                    out.sum().backward()
            times[key].append((clock() - start) / rounds)
    least = {key: sorted(found)[repeats // 10] for key, found in times.items()}
    found = {}
    for name in candidates:
        slope = (least[name, LONG] - least[name, SHORT]) / (LONG - SHORT)
        found[name] = {"call_ns": slope * 1e9, "pass_us": (least[name, SHORT] - SHORT * slope) * 1e6}
    return found


# -- per step ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act2(x + self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x))))))


class CNN(hookbus.LightningModule):
    """8 residual blocks of 6 layers, 3 layers before and one after them: 52."""

    def __init__(self, width: int, blocks: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).logsumexp(1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)


class Scheduled(hookbus.Callback):
    """A monitor that puts hooks on before each step that is due, and takes them off after it."""

    def __init__(self, every: int) -> None:
        self.every, self.handles, self.rows = every, [], []

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % self.every == 0:
            leaves = [module for module in pl_module.modules() if not list(module.children())]
            self.handles = [module.register_forward_hook(self.hear) for module in leaves]

    def on_train_batch_end(self, *args: Any) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def hear(self, module: nn.Module, args: Any, output: Tensor) -> None:
        raise NotImplementedError


class LikeFastai(Scheduled):
    """Mean, standard deviation, share of values near zero and a histogram of 40 bins of each activation."""

    def hear(self, module: nn.Module, args: Any, output: Tensor) -> None:
        act = output.detach().float()
        near_zero = (act <= 0.05).long().sum().item() / act.numel()
        self.rows = [act.mean().item(), act.std().item(), near_zero, act.cpu().histc(40, 0, 10)]


class LikeComposer(Scheduled):
    """Norm along the last dimension, mean, kurtosis, skewness and maximum of each activation."""

    def hear(self, module: nn.Module, args: Any, output: Tensor) -> None:
        act = output.detach()
        mean = act.mean()
        centred = act - mean
        scaled = centred / centred.square().mean().sqrt()
        norm, last = torch.linalg.vector_norm(act, dim=-1).mean(), act.max(dim=-1).values.mean()
        skewness, kurtosis = scaled.pow(3).mean(), scaled.pow(4).mean()
        self.rows = [value.item() for value in (norm, mean, kurtosis, skewness, last)]


class LikeWandb(hookbus.Callback):
    """A histogram of 64 bins of each gradient as soon as it has come, by hooks on parameters that are there all the time."""

    def __init__(self, every: int) -> None:
        self.every, self.handles, self.rows = every, [], []

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        self.handles = [p.register_hook(self.hook()) for p in pl_module.parameters()]

    def on_train_end(self, *args: Any) -> None:
        for handle in self.handles:
            handle.remove()

    def hook(self) -> Callable[[Tensor], None]:
        calls = 0

        def hear(grad: Tensor) -> None:
            nonlocal calls
            calls += 1
            if calls % self.every:
                return
            flat = grad.detach().reshape(-1)
            flat = flat[torch.isfinite(flat)]
            low, high = flat.min().item(), flat.max().item()
            self.rows = flat.histc(64, min=low, max=high).cpu().tolist()

        return hear


STEPS: dict[str, Callable[[int], Any]] = {
    "like fastai": LikeFastai,
    "like Composer": LikeComposer,
    "ActivationStats": lambda every: monitors.ActivationStats(every=every),
    "like wandb.watch": LikeWandb,
    "GradientStats": lambda every: monitors.GradientStats(every=every),
    "GradientStats(updates=False)": lambda every: monitors.GradientStats(every=every, updates=False),
    "NaNGuard": lambda every: monitors.NaNGuard(every=every),
    "DeadNeurons": lambda every: monitors.DeadNeurons(every=every),
    "LayerTimer": lambda every: monitors.LayerTimer(every=every),
}


class Stopwatch(hookbus.Callback):
    """The time of the fastest step, from one batch to the next."""

    def __init__(self) -> None:
        self.seconds = float("inf")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        now = clock()
        if batch_idx > 2:
            self.seconds = min(self.seconds, now - self.before)
        self.before = now


def seconds_per_step(monitor: Any, width: int, blocks: int, size: int, steps: int) -> float:
    watch = Stopwatch()
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(16, 3, size, size, generator=generator)
    loader = DataLoader([0] * (steps + 1), batch_size=None, collate_fn=lambda _: batch)
    with tempfile.TemporaryDirectory() as folder:
        trainer = hookbus.Trainer(
            max_epochs=1,
            accelerator="cpu",
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=folder,
            callbacks=[watch, *([monitor] if monitor is not None else [])],
        )
        trainer.fit(CNN(width, blocks), loader)
    return watch.seconds


def per_step(repeats: int) -> dict[str, Any]:
    """Milliseconds of a plain step, and what each monitor adds: to steps that are due, that are not, and at every=100."""
    cases = {"every=1": (1, 16, 8, 16, 12), "not due": (10**9, 1, 1, 2, 200)}
    least: dict[tuple[str, str], float] = {}
    for _ in range(repeats):
        for case, (every, *shape) in cases.items():
            for name, make in {"plain": lambda _: None, **STEPS, "plain again": lambda _: None}.items():
                seconds = seconds_per_step(make(every), *shape)
                key = name.removesuffix(" again"), case
                least[key] = min(seconds, least.get(key, seconds))
    step = least["plain", "every=1"]
    found: dict[str, Any] = {"step_ms": step * 1e3, "monitors": {}}
    for name in STEPS:
        added = {case: least[name, case] - least["plain", case] for case in cases}
        found["monitors"][name] = {
            "every=1": added["every=1"] / step,
            "not_due_us": added["not due"] * 1e6,
            "every=100": (added["every=1"] / 100 + added["not due"]) / step,
        }
    return found


# -- printing ----------------------------------------------------------------------------------------------------------


def show_calls(title: str, found: dict[str, Any]) -> None:
    plain, reference = found["no hook"], {}
    print(f"\n{title:40}{'ns/call':>9}{'added':>8}{'x raw':>8}{'us/pass':>9}")
    for name, row in found.items():
        kind = name.split(" ", 1)[1] if name[0].isdigit() else name
        number = name.split(" ", 1)[0]
        if "hook" in name and name not in ("no hook", "full backward hook"):
            reference[number if name[0].isdigit() else "1"] = row
        of = reference.get(number) if "tap" in kind or "plugin" in kind else None
        times = f"{row['call_ns'] / of['call_ns']:.2f}" if of is not None and "not due" not in name else ""
        per_pass = f"{row['pass_us'] - plain['pass_us']:.1f}" if "tap" in kind or "plugin" in kind else ""
        print(f"{name:40}{row['call_ns']:>9.0f}{row['call_ns'] - plain['call_ns']:>8.0f}{times:>8}{per_pass:>9}")


def show_steps(found: dict[str, Any]) -> None:
    print(f"\n{'a step of 52 layers, 16 images':32}{found['step_ms']:.1f} ms")
    print(f"{'added by':32}{'every=1':>10}{'not due':>10}{'every=100':>11}")
    for name, row in found["monitors"].items():
        print(f"{name:32}{row['every=1']:>+10.1%}{row['not_due_us']:>7.0f} us{row['every=100']:>+11.2%}")
    print("limit: below 1% of a step at every=100")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--repeats", type=int, default=5, help="of the steps; of the calls there are twenty times as many"
    )
    parser.add_argument("--only", choices=["calls", "steps"])
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, one thread, CPU time")
    found: dict[str, Any] = {"python": sys.version, "torch": torch.__version__}
    if arguments.only != "steps":
        found["forward"] = per_call(CALLS, 20 * arguments.repeats, backward=False)
        show_calls("a call, forward (aim for 1 tap: x1.3)", found["forward"])
        found["backward"] = per_call(BACKWARD, 20 * arguments.repeats, backward=True)
        show_calls("a call, forward and backward", found["backward"])
    if arguments.only != "calls":
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            found |= per_step(arguments.repeats)
        show_steps(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
