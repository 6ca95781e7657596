"""Which of a hook's arguments a function gets that is called by position."""

import functools
from unittest.mock import MagicMock, create_autospec

import pytest

from hookbus.callback import Callback
from hookbus.dialects.signature import SignatureMismatchError, positional_arguments

OFFERED = ("trainer", "pl_module", "outputs", "batch", "batch_idx")
STEP = ("batch", "batch_idx", "dataloader_idx")


def none():
    pass


def all_named(trainer, pl_module, outputs, batch, batch_idx):
    pass


def all_renamed(t, m, o, b, i):
    pass


def more_with_default(trainer, pl_module, outputs, batch, batch_idx, unused=0):
    pass


def star(trainer, pl_module, *args):
    pass


def star_kwargs(*args, **kwargs):
    pass


def fewer(trainer, pl_module):
    pass


def fewer_in_another_order(batch, trainer):
    pass


def fewer_some_nameless(_, __, outputs):
    pass


def fewer_keywords(batch, *, flag=False, **kwargs):
    pass


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (none, ()),
        (all_named, OFFERED),
        (all_renamed, OFFERED),
        (more_with_default, OFFERED),
        (star, OFFERED),
        (star_kwargs, OFFERED),
        (fewer, ("trainer", "pl_module")),
        (fewer_in_another_order, ("batch", "trainer")),
        (fewer_some_nameless, ("trainer", "pl_module", "outputs")),
        (fewer_keywords, ("batch",)),
        (functools.partial(all_named, 1), ("pl_module", "outputs", "batch", "batch_idx")),
        (dict, OFFERED),  # no signature to be found
        (MagicMock(), OFFERED),
        (create_autospec(all_named), OFFERED),
        (create_autospec(Callback, instance=True).on_train_batch_end, OFFERED),
    ],
)
def test_arguments(function, expected):
    assert positional_arguments(function, OFFERED) == expected


def swapped(trainer, batch_idx, mood):
    pass


def too_many(trainer, pl_module, outputs, batch, batch_idx, mood):
    pass


@pytest.mark.parametrize("function", [swapped, too_many])
def test_a_parameter_that_can_get_no_value_is_an_error(function):
    names = ", ".join(function.__code__.co_varnames)
    with pytest.raises(
        SignatureMismatchError, match=rf"takes \({names}\), but the hook has \(trainer, .*, batch_idx\)"
    ):
        positional_arguments(function, OFFERED)


def test_a_required_keyword_is_an_error():
    def function(trainer, *, mood):
        pass

    with pytest.raises(SignatureMismatchError, match=r"keyword-only argument\(s\) mood, which no hook passes"):
        positional_arguments(function, OFFERED)


def named(batch, batch_idx, dataloader_idx):
    pass


def defaulted(batch, batch_idx, dataloader_idx=0):
    pass


def own_words(b, i, loader):
    pass


def named_and_star(batch, batch_idx, dataloader_idx, *args):
    pass


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (star_kwargs, ("batch", "batch_idx")),
        (named, STEP),
        (defaulted, ("batch", "batch_idx")),
        (own_words, STEP),
        (named_and_star, STEP),
    ],
)
def test_a_spare_argument_goes_to_those_who_demand_it(function, expected):
    assert positional_arguments(function, STEP, spare=("dataloader_idx",)) == expected


def test_names_of_the_authors_own_are_passed_by_position():
    def step(b, i):
        pass

    assert positional_arguments(step, ("batch", "batch_idx", "dataloader_idx")) == ("batch", "batch_idx")
