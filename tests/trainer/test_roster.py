"""Who stands in ``trainer.callbacks`` at the beginning, and in which order."""

from __future__ import annotations

import pytest

from hookbus.callback import Callback
from hookbus.callbacks import EarlyStopping, ModelCheckpoint
from hookbus.callbacks.progress import PlainProgress, ProgressBar
from hookbus.errors import MisconfigurationException
from hookbus.trainer import roster


class First(Callback):
    placement = "first"


class Last(Callback):
    placement = "last"


class Plain(Callback):
    pass


class Other(Callback):
    pass


def test_those_that_must_come_first_or_last_do_and_the_others_keep_their_order():
    last, a, first, b = Last(), Plain(), First(), Plain()
    assert roster.ordered([last, a, first, b]) == [first, a, b, last]


def test_a_subclass_without_a_placement_of_its_own_inherits_it():
    class Mine(Last):
        pass

    mine, plain = Mine(), Plain()
    assert roster.ordered([mine, plain]) == [plain, mine]


@pytest.mark.parametrize("given", [None, (), []])
def test_no_callbacks(given):
    assert roster.given(given) == []


def test_a_single_callback_needs_no_list():
    callback = Plain()
    assert roster.given(callback) == [callback]


@pytest.mark.parametrize("junk", [3, "name", [Plain(), None]])
def test_junk_is_refused_with_the_place_where_plugins_go(junk):
    with pytest.raises(TypeError, match=r"callbacks must be hookbus.Callback objects.*Trainer\(plugins="):
        roster.given(junk)


def test_a_progress_bar_is_added_where_there_is_none():
    listed = roster.assembled([Plain()], [], bar=None, barebones=False)
    assert sum(isinstance(callback, ProgressBar) for callback in listed) == 1


def test_the_users_bar_is_kept_and_no_other_added():
    mine, discovered = PlainProgress(), PlainProgress()
    listed = roster.assembled([mine], [discovered], bar=True, barebones=False)
    assert listed == [mine]


def test_a_discovered_bar_takes_the_place_of_the_default():
    discovered = PlainProgress()
    assert roster.assembled(None, [discovered], bar=None, barebones=False) == [discovered]


def test_a_bar_that_is_switched_off_and_given_is_refused():
    with pytest.raises(MisconfigurationException, match=r"callbacks=.* has a PlainProgress: drop one"):
        roster.assembled([PlainProgress()], [], bar=False, barebones=False)


def test_a_discovered_bar_that_is_switched_off_is_left_out():
    assert roster.assembled([], [PlainProgress()], bar=False, barebones=False) == []


def test_barebones_has_no_bar_unless_asked_for():
    assert roster.assembled([], [], bar=None, barebones=True) == []
    assert len(roster.assembled([], [], bar=True, barebones=True)) == 1


def test_two_bars_of_the_user_are_refused():
    with pytest.raises(MisconfigurationException, match="one progress bar, got 2: PlainProgress, PlainProgress"):
        roster.assembled([PlainProgress(), PlainProgress()], [], bar=None, barebones=False)


def test_a_callback_of_the_module_takes_the_place_of_those_of_its_type():
    old, kept, last, new = Plain(), Other(), Last(), Plain()
    with pytest.warns(UserWarning, match="configure_callbacks.*Plain"):
        assert roster.with_model_callbacks([old, kept, last], [[new]]) == [kept, new, last]


def test_the_same_callback_given_again_replaces_nothing(recwarn):
    mine, kept = Plain(), Other()
    assert roster.with_model_callbacks([mine, kept], [mine]) == [kept, mine]
    assert not recwarn.list


def test_a_bar_of_the_module_is_the_only_one():
    mine = PlainProgress()

    class Bar(PlainProgress):
        pass

    assert roster.with_model_callbacks([Bar()], [[mine]]) == [mine]


def test_a_checkpoint_callback_is_added_where_there_is_none():
    assert [type(c) for c in roster.with_checkpoint([], None, barebones=False)] == [ModelCheckpoint]
    mine = ModelCheckpoint()
    assert roster.with_checkpoint([mine], None, barebones=False) == [mine]
    assert roster.with_checkpoint([], False, barebones=False) == []
    assert roster.with_checkpoint([], None, barebones=True) == []


def test_checkpointing_switched_off_and_passed_is_refused():
    with pytest.raises(MisconfigurationException, match="enable_checkpointing=False, but ModelCheckpoint"):
        roster.with_checkpoint([ModelCheckpoint()], False, barebones=False)


def test_two_of_a_kind_get_keys_of_their_own():
    twins = [EarlyStopping("loss"), EarlyStopping("loss"), EarlyStopping("other")]
    for _ in range(2):  # again, as at every boundary
        roster.number_twins(twins)
        assert len({callback.state_key for callback in twins}) == 3
    assert twins[0].state_key == EarlyStopping("loss").state_key
