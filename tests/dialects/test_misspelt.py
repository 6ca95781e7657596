"""Methods of a module whose names are a slip away from a hook's."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import LightningModule, hookimpl
from hookbus.dialects.callback import HookNameWarning
from hookbus.dialects.misspelt import distance, slipped, warn_of_misspelt_methods
from hookbus.dialects.module import MODULE_HOOKS


def named(*names, **methods):
    """A module with methods of these names that take a batch."""
    return type("Mine", (LightningModule,), {name: lambda self, batch: None for name in names} | methods)()


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("on_train_epoch_strat", "on_train_epoch_start"),
        ("on_train_epoch_ends", "on_train_epoch_end"),
        ("on_validation_bacth_end", "on_validation_batch_end"),
        ("validation_stp", "validation_step"),
        ("trainig_step", "training_step"),
        ("test_setp", "test_step"),
    ],
)
def test_a_slip_is_warned_of_with_the_right_name_and_the_place_of_the_method(name, hook):
    with pytest.warns(HookNameWarning, match=rf"Mine\.{name} is not a hook .*; did you mean '{hook}'\?") as caught:
        warn_of_misspelt_methods(named(name))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "names",
    [
        ("on_epoch_done", "on_batch", "on_my_own_helper", "on_step_end"),
        ("text_step", "next_step", "best_step", "reset_step", "train_step", "shared_step", "step", "val_step"),
        ("validation_step", "validation_steps"),  # the hook itself is there
        ("on_train_start", "on_train_strat"),
        ("_validation_stp", "on_checkpoint_saved"),
    ],
)
def test_methods_of_ones_own_are_not(names):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misspelt_methods(named(*names), known=("on_checkpoint_saved",))


def test_a_number_of_steps_is_no_step():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misspelt_methods(named(validation_steps=lambda self: 3, predict_steps=property(lambda self: 1 / 0)))


@pytest.mark.parametrize("name", MODULE_HOOKS)
def test_no_hook_is_taken_for_another_one(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misspelt_methods(named(name))


def test_distances():
    assert distance("", "abc") == 3
    assert distance("step", "stpe") == 1
    assert distance("kitten", "sitting") == 3
    assert not slipped("on_fit_end", "on_fit_end")


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_a_distance_is_symmetric_and_zero_only_for_equals(first, second):
    assert distance(first, second) == distance(second, first)
    assert (distance(first, second) == 0) == (first == second)


def test_an_override_without_the_mark_of_what_it_overrides_is_warned_of():
    class Marked(LightningModule):
        @hookimpl(modules="net")
        def on_module_forward(self, event):
            pass

    class Unmarked(Marked):
        def on_module_forward(self, event):
            pass

    class MarkedAgain(Marked):
        @hookimpl(modules="net")
        def on_module_forward(self, event):
            pass

    with pytest.warns(
        HookNameWarning, match=r"Unmarked\.on_module_forward overrides a method that is marked.*hookimpl"
    ):
        warn_of_misspelt_methods(Unmarked(), ["on_module_forward"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misspelt_methods(MarkedAgain(), ["on_module_forward"])
