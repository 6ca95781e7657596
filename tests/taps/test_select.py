"""Modules are found by names as the author wrote them, whatever is wrapped round them."""

import re

import pytest
import torch
from tests.taps.networks import Block, Net
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from hookbus import tapping
from hookbus.taps import Selection, SelectionError, TapWarning
from hookbus.taps.select import Structure, compiled_pattern, places, select, unwrapped


def chosen(model, *, called=True, **selection):
    selection.setdefault("on_missing", "error")
    return [place.name for place in select(places(model), Selection(**selection), called=called, who="a test")]


def test_places_are_in_the_order_of_definition():
    names = [place.name for place in places(Net())]
    assert names == [
        *("", "stem", "blocks", "blocks.0", "blocks.0.conv", "blocks.0.act", "blocks.1", "blocks.1.conv"),
        *("blocks.1.act", "relu", "head"),
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("stem", ["stem"]),
        ("*", ["stem", "relu", "head"]),
        ("blocks.*", ["blocks.0", "blocks.1"]),
        ("blocks.*.act", ["blocks.0.act", "blocks.1.act"]),
        ("blocks.[!0].act", ["blocks.1.act"]),
        ("blocks.?.conv", ["blocks.0.conv", "blocks.1.conv"]),
        ("**.act", ["blocks.0.act", "blocks.1.act"]),
        ("**relu", ["relu"]),
        ("**.relu", ["relu"]),
        ("blocks.**", ["blocks.0", "blocks.0.conv", "blocks.0.act", "blocks.1", "blocks.1.conv", "blocks.1.act"]),
        ("", [""]),
        (re.compile(r"\.(act|conv)$"), ["blocks.0.conv", "blocks.0.act", "blocks.1.conv", "blocks.1.act"]),
        (["head", "stem"], ["stem", "head"]),
    ],
    ids=str,
)
def test_names_and_patterns(pattern, names):
    assert chosen(Net(), modules=pattern) == names


def test_double_star_means_everything_but_the_network_itself():
    assert chosen(Net(), modules="**") == [p.name for p in places(Net()) if p.name and p.callable]


def test_none_means_everything_that_is_called():
    names = chosen(Net())
    assert "" in names
    assert "blocks" not in names  # a ModuleList is never called


def test_dots_and_other_signs_in_patterns_are_meant_literally():
    assert compiled_pattern("a.b+c").fullmatch("a.b+c")
    assert not compiled_pattern("a.b").fullmatch("axb")


def test_types_follow_isinstance():
    class Odd(nn.Linear):
        pass

    model = nn.Sequential(Odd(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert chosen(model, types=nn.Linear) == ["0", "2"]
    assert chosen(model, types=(nn.ReLU, Odd)) == ["0", "1"]


def test_where_and_types_and_names_combine():
    model = Net()
    assert chosen(model, modules="blocks.**", types=nn.Linear, where=lambda name, _: "1" in name) == ["blocks.1.conv"]


def test_a_module_can_be_given_itself():
    model = Net()
    assert chosen(model, modules=model.blocks[1]) == ["blocks.1"]
    assert chosen(model, modules=[model.head, "stem"]) == ["stem", "head"]


def test_shared_module_is_one_place_under_all_its_names():
    model = nn.Module()
    model.enc = nn.Linear(2, 2)
    model.dec = model.enc
    (place,) = [place for place in places(model) if place.name]
    assert (place.name, place.aliases) == ("enc", ("dec",))
    assert chosen(model, modules="dec") == ["enc"]


def test_a_module_that_contains_itself_does_not_loop():
    model = Net()
    model.blocks[0].owner = [model]  # not a submodule
    model.blocks[0].add_module("up", model)
    assert "blocks.0.conv" in [place.name for place in places(model)]


def test_wrappers_have_no_part_in_names():
    model = Net()
    plain = [place.name for place in places(model)]
    inside = Net()
    inside.blocks[0] = checkpoint_wrapper(inside.blocks[0])
    inside.head = torch.compile(inside.head, backend="eager")
    assert [place.name for place in places(inside)] == plain
    assert [place.name for place in places(torch.compile(Net(), backend="eager"))] == plain
    assert [place.name for place in places(nn.DataParallel(Net()))] == plain
    assert type(next(p.module for p in places(inside) if p.name == "blocks.0")) is Block
    assert chosen(inside, modules=inside.head) == ["head"]


def test_module_called_module_is_no_wrapper():
    model = nn.Module()
    model.module = nn.Linear(1, 1)
    assert [place.name for place in places(model)] == ["", "module"]
    assert unwrapped(model) is model


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("steam", r"'steam', and no module of the network has such a name; did you mean 'stem'\?"),
        ("zzz", r"there are stem, blocks, blocks.0"),
        ("blocks", r"'blocks', a ModuleList, which is never called.*select those: 'blocks\.\*'"),
        (re.compile("q{3}"), r"'q\{3\}'"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_with_a_way_out(pattern, message):
    with pytest.raises(SelectionError, match=message):
        chosen(Net(), modules=pattern)


def test_one_wrong_name_among_right_ones_is_found():
    with pytest.raises(SelectionError, match="steam"):
        chosen(Net(), modules=["head", "steam"])


def test_foreign_module_is_an_error():
    with pytest.raises(SelectionError, match="Linear that is no part of the network"):
        chosen(Net(), modules=nn.Linear(1, 1))


def test_no_module_of_a_type_is_an_error():
    with pytest.raises(SelectionError, match="none fits types=Conv2d"):
        chosen(Net(), types=nn.Conv2d)


def test_on_missing():
    with pytest.warns(TapWarning, match="steam"):
        assert chosen(Net(), modules="steam", on_missing="warn") == []
    assert chosen(Net(), modules="steam", on_missing="ignore") == []


def test_containers_count_where_nothing_needs_to_be_called():
    assert chosen(Net(), modules="blocks", called=False) == ["blocks"]


def test_structure_notices_what_comes_goes_and_is_replaced():
    model = Net()
    structure = Structure(model)
    assert not structure.changed()
    model.head = nn.Linear(6, 3)
    assert structure.changed()
    structure = Structure(model)
    model.stem.lora = nn.Linear(1, 1)
    assert structure.changed()
    structure = Structure(model)
    del model.stem.lora
    assert structure.changed()


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_a_module_of_torchscript_is_one_place():
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    scripted = torch.jit.trace(inner, torch.ones(1, 2))
    model, heard = nn.Sequential(scripted, nn.Linear(2, 1)), []
    with tapping(model) as taps:
        taps.tap("**", lambda event: heard.append(event.name))
        model(torch.ones(1, 2))
    assert heard == ["0", "1"]
    with tapping(model) as taps, pytest.raises(SelectionError, match=r"selects '0\.0', and no module"):
        taps.tap("0.0", print)
