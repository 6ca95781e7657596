"""A plugin in ten lines: time every backward pass by wrapping it, and see where in the order the wrapper stands.

    python examples/plugin_in_ten_lines.py

No callback system offers this: the steps of the loop are hooks, too, so a plugin can stand around one of them.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import hookbus
from hookbus import hookimpl


# --- the plugin: any module, class or object with @hookimpl functions ---------------------------------------------------
class BackwardClock:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    @hookimpl(wrapper=True)
    def backward(self):  # it names the arguments that it wants: here none of (trainer, pl_module, loss)
        start = perf_counter()
        try:
            return (yield)  # the other implementations run here, the module's own one last
        finally:
            self.seconds.append(perf_counter() - start)


# --- something to train -------------------------------------------------------------------------------------------------
class Line(hookbus.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return mse_loss(self.layer(batch), 3 * batch + 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> BackwardClock:
    """Train with the plugin; returns it."""
    clock = BackwardClock()
    trainer = hookbus.Trainer(max_epochs=2, plugins=[clock], logger=False, enable_checkpointing=False)
    trainer.fit(Line(), torch.linspace(-1, 1, 320).view(20, 16, 1))

    print(
        f"{len(clock.seconds)} backward passes, {1e6 * sum(clock.seconds) / len(clock.seconds):.0f} microseconds each"
    )
    for row in trainer.bus.order("backward"):
        print(row.index, row.plugin, *row.flags)
    return clock


if __name__ == "__main__":
    main()
