"""What does the digit reader look at? Grad-CAM while it trains, and afterwards.

    pip install "hookbus[examples]" hookbus-gradcam
    python examples/gradcam_digits.py

The network is that of examples/digits.py. While it trains the plugin draws the same four digits after each epoch; in the end
some test digits are drawn with the class that the network reads, and the share of the maps on the strokes is counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from digits import Batch, DigitReader, loaders

import hookbus

try:
    from hookbus_gradcam import GradCamMonitor, Picture, draw, gradcam, resized
except ModuleNotFoundError as error:
    sys.exit(f"{error}; this example needs: pip install hookbus-gradcam")


class Validated(DigitReader):
    """Also validated after each epoch, for that is when the plugin draws."""

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.test_step(batch, batch_idx)


def main(argv: Sequence[str] | None = None) -> float:
    """Train and draw; returns the share of the maps that lies on the digits' strokes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="runs/gradcam_digits", help="where metrics and pictures go")
    options = parser.parse_args(argv)

    torch.set_num_threads(1)
    hookbus.seed_everything(0)
    train, test = loaders(0)
    model = Validated()
    # Installed, the plugin would do this by itself, for the last convolution. Here another layer is chosen as well.
    monitor = GradCamMonitor(layers=["network.2", "network.5"], target="label")
    trainer = hookbus.Trainer(max_epochs=options.epochs, default_root_dir=options.out, callbacks=[monitor])
    trainer.fit(model, train, test)
    folder = Path(trainer.log_dir) / "gradcam"
    print(f"pictures of the training: {len(list(folder.glob('*.png')))} in {folder}")

    images, _ = next(iter(test))
    maps = gradcam(model, images, "network.5")
    read = model(images).argmax(dim=1)
    strokes = images[:, 0] > 0.25
    share = float((resized(maps, images.shape[-2:]) * strokes).sum() / maps.sum())
    print(f"Grad-CAM: {share:.0%} of the maps on the strokes, which are {strokes.float().mean():.0%} of the pixels")
    shown = [Picture(images[i], maps[i], f"read as {read[i]}") for i in range(8)]
    draw(shown, folder / "test.png", "the digit reader after training")
    print(f"picture: {folder / 'test.png'}")
    return share


if __name__ == "__main__":
    main()
