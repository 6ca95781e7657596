"""Templates of file names that are not reached through ModelCheckpoint alone."""

from __future__ import annotations

import pytest
import torch

from hookbus.callbacks.checkpoint_names import check_template, fill, pattern


def test_a_field_may_occur_twice_and_without_its_name() -> None:
    assert fill("{a}-{a:.1f}", {"a": torch.tensor(2.0)}, insert_names=False) == "2.0-2.0"
    assert fill("{a}-{ab}", {"a": 1, "ab": 2}, equals=":") == "a:1-ab:2"


@pytest.mark.parametrize("template", ["", "plain", "{a}", "{a:.2f}", "{val/loss:02.0f}-{epoch:02d}", "{a:>8}"])
def test_what_is_accepted_can_be_filled(template: str) -> None:
    check_template(template)
    fill(template, {"a": 0.5, "epoch": 1})


@pytest.mark.parametrize(
    ("template", "name", "matches"),
    [
        ("last", "last.ckpt", True),
        ("last", "last-v3.ckpt", True),
        ("last", "lastly.ckpt", False),
        ("last", "last-v3.ckpt.tmp", False),
        ("last", "at-last.ckpt", False),
        ("{epoch}-last", "epoch=3-last.ckpt", True),
        ("{epoch}-last", "epoch=3-last-v1.ckpt", True),
        ("l.st", "last.ckpt", False),
    ],
)
def test_names_made_from_a_template_are_recognised(template: str, name: str, matches: bool) -> None:
    assert bool(pattern(template, ".ckpt").match(name)) is matches
