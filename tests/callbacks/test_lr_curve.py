from __future__ import annotations

import math
from pathlib import Path

import pytest

from hookbus.callbacks.lr_curve import LearningRateCurve


def curve_of(*losses: float) -> LearningRateCurve:
    curve = LearningRateCurve("linear", 0.0, 1.0, len(losses))
    for loss in losses:
        curve.add(loss)
    return curve


def test_rates_run_from_the_least_to_the_greatest() -> None:
    linear = LearningRateCurve("linear", 0.1, 1.1, 10)
    assert [linear.rate(step) for step in (0, 1, 9)] == pytest.approx([0.1, 0.3, 1.1])
    exponential = LearningRateCurve("exponential", 1e-4, 1.0, 8)
    assert [exponential.rate(step) for step in (0, 3, 7)] == pytest.approx([1e-4, 1e-2, 1.0])


def test_a_loss_that_is_missing_or_infinite_does_not_count() -> None:
    curve = curve_of(*[5.0] * 12, math.nan, 4.0, math.inf, 1.0, 1.0)
    assert curve.suggestion() in curve.results["lr"]
    assert math.isnan(curve.results["loss"][12])
    with pytest.warns(UserWarning, match="of 17 step"):
        assert curve.suggestion(skip_begin=16) is None


def test_it_diverges_beyond_the_threshold() -> None:
    curve = curve_of(*[1.0] * 20)
    assert not curve.diverges(4.0)
    curve.add(1000.0)
    assert curve.diverges(4.0)
    assert not curve.diverges(None)


def test_its_plot_has_the_suggestion_in_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = curve_of(*[10.0 - i for i in range(20)])
    figure = curve.plot(suggest=True)
    (axes,) = figure.axes
    assert list(axes.lines[0].get_xdata()) == curve.results["lr"]
    assert list(axes.lines[1].get_xdata()) == [curve.suggestion()]
    assert axes.get_xscale() == "linear"
    assert LearningRateCurve("exponential", 1e-8, 1, 5).plot().axes[0].get_xscale() == "log"
    curve.save_plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[1:4] == b"PNG"
