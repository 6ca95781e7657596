"""From maps to pictures: normalising, resizing, and drawing them over what the model was given.

Drawn with matplotlib's objects on its Agg canvas, without pyplot: no window, no global state, no figure left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EPSILON: Final = 1e-7
_MODES: Final = {1: "linear", 2: "bilinear", 3: "trilinear"}
_COLOURS: Final = "jet"
_COLUMNS: Final = 4
_INCHES: Final = 2.4


@dataclass(frozen=True)
class Picture:
    """One sample with its map.

    Attributes:
        image: what the model was given: (C, H, W) or (H, W), with a third dimension of space (C, D, H, W), or a signal
            (C, L). None for the map alone.
        cam: the map, of the image's dimensions of space or fewer places.
        caption: what stands above it.
    """

    image: Tensor | None
    cam: Tensor
    caption: str = ""


def normalised(maps: Tensor) -> Tensor:
    """Each sample's map between 0 and 1: the minimum subtracted, divided by the maximum plus 1e-7.

    Args:
        maps: of shape (N, …).
    """
    flat = maps.flatten(1)
    flat = flat - flat.amin(dim=1, keepdim=True)
    return (flat / (flat.amax(dim=1, keepdim=True) + _EPSILON)).view_as(maps)


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps in another size, interpolated linearly in one to three dimensions.

    Args:
        maps: of shape (N, …).
        size: of the dimensions of space: ``image.shape[-2:]``.

    Raises:
        ValueError: more than three dimensions of space, or another number of them in ``size``.
    """
    dimensions = maps.ndim - 1
    if dimensions not in _MODES or len(size) != dimensions:
        raise ValueError(
            f"cannot resize maps of shape {tuple(maps.shape)} to {tuple(size)}: expected 1 to 3 dimensions of space"
        )
    return interpolate(maps.unsqueeze(1), tuple(size), mode=_MODES[dimensions], align_corners=False).squeeze(1)


def draw(pictures: Sequence[Picture], path: str | Path | None = None, title: str = "") -> NDArray[np.uint8]:
    """Draw maps over their images, in a grid with a colour bar.

    Images outside of 0 to 1 are stretched into it. Of volumes the slice is drawn in which the map is strongest.

    Args:
        pictures: at least one.
        path: where to write it as PNG; folders are made. None to write nothing.
        title: above the grid.

    Returns:
        The drawing, of shape (height, width, 3).

    Raises:
        ValueError: there is nothing to draw, or an image cannot be drawn.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    if not pictures:
        raise ValueError("expected at least one picture to draw, got none")
    columns = min(_COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    figure: Any = Figure(figsize=(_INCHES * columns + 1, (_INCHES + 0.3) * rows + 0.4), dpi=120, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    shown = None
    for axes, picture in zip(grid.flat, pictures, strict=False):
        shown = _overlay(axes, picture)
    for axes in grid.flat:
        axes.set_axis_off()
    bar = figure.colorbar(shown, ax=grid.ravel().tolist())
    bar.set_label("map, scaled to 0 … 1")
    if title:
        figure.suptitle(title)
    canvas.draw()
    drawing = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawing).save(path, format="PNG")
    return drawing


def _overlay(axes: Any, picture: Picture) -> Any:
    image, cam, where = _flat(picture)
    height, width = image.shape[:2]
    aspect = "auto" if picture.cam.ndim == 1 else "equal"
    axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1, aspect=aspect)
    shown = axes.imshow(
        cam.numpy(),
        cmap=_COLOURS,
        alpha=0.5,
        vmin=0,
        vmax=1,
        aspect=aspect,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
    )
    axes.set_title("\n".join(filter(None, (picture.caption, where))), fontsize=8)
    return shown


def _flat(picture: Picture) -> tuple[Tensor, Tensor, str]:
    """The image as (H, W) or (H, W, 3) and the map as (H, W), both from 0 to 1, and which slice they are."""
    cam = picture.cam.detach().float().cpu()
    image = torch.zeros_like(cam) if picture.image is None else picture.image.detach().float().cpu()
    spatial = cam.ndim
    if image.ndim == spatial:
        image = image.unsqueeze(0)
    if spatial not in _MODES or image.ndim != spatial + 1:
        raise ValueError(f"cannot draw a map of shape {tuple(cam.shape)} over an image of shape {tuple(image.shape)}")
    cam = resized(normalised(cam.unsqueeze(0)), image.shape[1:])[0].clamp(0, 1)
    where = ""
    if spatial == 3:
        depth = int(cam.flatten(1).sum(dim=1).argmax())
        where = f"slice {depth} of {image.shape[1]}"
        image, cam = image[:, depth], cam[depth]
    if spatial == 1:  # a signal: channels become rows
        image, cam = image.unsqueeze(0), cam.unsqueeze(0)
    image = image.permute(1, 2, 0) if image.shape[0] == 3 else image.mean(dim=0)
    return _stretched(image.nan_to_num()), cam.nan_to_num(), where


def _stretched(image: Tensor) -> Tensor:
    low, high = image.aminmax()
    if low >= 0 and high <= 1:
        return image
    return (image - low) / (high - low).clamp(min=torch.finfo(image.dtype).tiny)
