"""Pictures: values, sizes, and that drawing leaves no trace in matplotlib's global state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from hookbus_gradcam import Picture, draw, normalised, resized


def test_normalised_maps_go_from_0_to_1_per_sample():
    maps = normalised(torch.tensor([[[1.0, 3.0], [2.0, 5.0]], [[7.0, 7.0], [7.0, 7.0]]]))
    assert torch.allclose(maps[0], torch.tensor([[0.0, 0.5], [0.25, 1.0]]), atol=1e-6)
    assert maps[1].abs().max() == 0  # nothing to see is nothing, not NaN


def test_resizing_interpolates_in_one_to_three_dimensions():
    assert resized(torch.tensor([[0.0, 1.0]]), (4,)).tolist() == [[0, 0.25, 0.75, 1]]
    assert resized(torch.ones(2, 3, 4), (6, 9)).shape == (2, 6, 9)
    assert resized(torch.ones(2, 3, 4, 5), (6, 9, 5)).shape == (2, 6, 9, 5)
    with pytest.raises(ValueError, match=r"cannot resize maps of shape \(2, 3, 4\) to \(6,\)"):
        resized(torch.ones(2, 3, 4), (6,))


def test_png_shows_the_map_where_it_is(tmp_path):
    cam = torch.zeros(8, 8)
    cam[0, 0] = 1.0
    path = tmp_path / "new" / "map.png"
    drawing = draw([Picture(torch.zeros(1, 8, 8), cam, "sample 0")], path, "a title")
    with Image.open(path) as written:
        assert np.array_equal(np.asarray(written.convert("RGB")), drawing)
    red = (drawing[..., 0].astype(int) - drawing[..., 2]) > 60
    rows, columns = np.nonzero(red[:, : drawing.shape[1] * 3 // 5])  # without the colour bar
    height, width = drawing.shape[:2]
    assert rows.max() < height / 2
    assert columns.max() < width / 2
    assert red[:, drawing.shape[1] * 3 // 5 :].any()  # the upper end of the colour bar


@pytest.mark.parametrize(
    ("image", "cam"),
    [
        (torch.randn(3, 6, 9), torch.rand(2, 3)),
        (torch.randn(6, 9), torch.rand(6, 9)),
        (torch.randn(5, 6, 9), torch.rand(2, 3)),
        (torch.randn(1, 4, 6, 9), torch.rand(2, 3, 3)),
        (torch.randn(2, 50), torch.rand(10)),
        (None, torch.rand(2, 3)),
        (torch.full((1, 4, 4), 7.0), torch.full((2, 2), float("nan"))),
    ],
)
def test_images_signals_and_volumes_are_drawn(image, cam):
    drawing = draw([Picture(image, cam)] * 5)
    assert drawing.dtype == np.uint8
    assert drawing.ndim == 3
    assert drawing.std() > 0


def test_a_volume_is_drawn_where_its_map_is_strongest():
    volume = torch.zeros(1, 4, 6, 6)
    volume[0, 2] = 1.0
    cam = torch.zeros(4, 6, 6)
    cam[2, 3, 3] = 1.0
    strongest = draw([Picture(volume, cam)])
    assert strongest.astype(int).sum() > draw([Picture(volume * 0, cam)]).astype(int).sum()


def test_what_cannot_be_drawn():
    with pytest.raises(ValueError, match="at least one picture"):
        draw([])
    with pytest.raises(ValueError, match=r"a map of shape \(2, 2\) over an image of shape \(9,\)"):
        draw([Picture(torch.zeros(9), torch.zeros(2, 2))])


def test_pyplot_knows_of_no_figure():
    from matplotlib import pyplot, rcParams

    before, settings = pyplot.get_fignums(), dict(rcParams)
    draw([Picture(torch.zeros(1, 4, 4), torch.rand(4, 4))])
    assert pyplot.get_fignums() == before
    assert dict(rcParams) == settings
