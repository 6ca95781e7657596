"""Monitors of two processes that train together: what is merged, what is the same anyway, and that nobody waits in vain."""

import math

import pytest
import torch
import torch.distributed as dist
from tests.taps.monitors.two_ranks import BINS, data, network, rows, steps
from tests.taps.ranks import printed_by_both

from hookbus import tapping
from hookbus.taps.monitors import ActivationStats, DeadNeurons, GradientStats
from hookbus.taps.monitors.processes import gathered

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed with gloo"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both print."""
    return printed_by_both("tests.taps.monitors.two_ranks", tmp_path_factory.mktemp("ranks"))


def alone(monitor, *batches):
    """The table of one process that is given all batches."""
    with tapping(network(), monitor) as taps:
        assert taps._model is not None
        for x in batches:
            taps._model(x)
    return rows(monitor)


def alike(found, expected):
    """Whether two tables are the same but for the order of additions."""
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        for one, other in zip(found[name], row, strict=True):
            other = list(other) if isinstance(other, tuple) else other
            assert (
                one == other if not isinstance(other, float) else math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
            )
    return True


# -- in a loop by hand ------------------------------------------------------------------------------------------------


def test_the_table_after_a_flush_is_that_of_one_process_with_all_the_data(ranks):
    everything = [*data(0), *data(1)]
    expected = alone(ActivationStats(histogram=BINS), *everything)
    assert expected["0"][6] == 8  # values that are not finite, all of them in rank 1
    for rank in range(2):
        tables = ranks[rank]["in_a_loop"]["tables"]
        assert alike(tables["stats"], expected)
        assert alike(tables["alone"], alone(ActivationStats(), *data(rank)))
    assert ranks[0]["in_a_loop"]["tables"]["stats"] == ranks[1]["in_a_loop"]["tables"]["stats"]


def test_a_unit_is_dead_if_it_was_active_in_no_process(ranks):
    own = [set(alone(DeadNeurons(), *data(rank))["1"][1]) for rank in range(2)]
    assert own[0] != own[1]
    for rank in range(2):
        assert ranks[rank]["in_a_loop"]["tables"]["dead"] == {"1": [8, sorted(own[0] & own[1]), 4]}


def test_a_flush_gives_what_a_trainer_would_log(ranks):
    expected = ActivationStats()
    with tapping(network(), expected) as taps:
        for x in [*data(0), *data(1)]:
            taps._model(x)
    figures = expected.flush()
    for rank in range(2):
        stats, _, dead = ranks[rank]["in_a_loop"]["logged"]
        assert stats == pytest.approx(figures, rel=1e-5, abs=1e-6)
        assert dead["dead_neurons/share"] == dead["dead_neurons/share/1"]
        assert ranks[rank]["in_a_loop"]["nothing more"] == {}


def test_tables_say_whose_they_are(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_loop"]
        own = f"rank {rank} of 2"
        assert found["titles"] == [own, "all 2 ranks", own, "all 2 ranks"]
        assert found["printed"] == "all 2 ranks"
        assert ranks[rank]["of_one"]["timer"] == ranks[rank]["of_one"]["rows"] == own
    assert ActivationStats().table().title is None


def test_layers_that_only_one_process_has_called(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_loop"]
        assert found["branches"] == [["one.1", "two.1"], ["one.1", "two.1"]]
        assert found["one has seen nothing"] == [["two.1"], ["two.1"]]


def test_an_error_in_one_process_is_one_in_all(ranks):
    assert ranks[0]["in_a_loop"]["failed"].startswith("ZeroDivisionError")
    assert ranks[1]["in_a_loop"]["failed"] == (
        "RuntimeError: Test cannot merge what the processes have measured: rank 0 failed with ZeroDivisionError: "
        "integer division or modulo by zero"
    )
    for rank in range(2):
        assert "has 3 units in one process and 4 in another" in ranks[rank]["in_a_loop"]["unlike"]


# -- in a trainer -----------------------------------------------------------------------------------------------------


def merged(*batches):
    """Names as in a trainer."""
    return {f"net.{name}": row for name, row in alone(ActivationStats(), *batches).items()}


def test_each_period_is_merged_before_it_is_logged(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_trainer"]["every step"]
        assert [(step, "activations/val/std/net.0" in metrics) for step, metrics in found["logged"]] == [
            (0, False), (1, False), (2, False), (3, False), (3, True),
        ]  # fmt: skip
        assert found["meetings"] == 5
        for step, (x, y) in enumerate(zip(data(0), data(1), strict=True)):
            expected = merged(x, y)
            logged = found["logged"][step][1]
            assert logged["activations/train/std/net.0"] == pytest.approx(expected["net.0"][3], rel=1e-5)
            assert logged["activations/train/nonfinite/net.2"] == expected["net.2"][6]


def test_a_validation_with_more_batches_in_one_process(ranks):
    expected = merged(*data(0, 2), *data(1, 3))
    for rank in range(2):
        table = ranks[rank]["in_a_trainer"]["every step"]["tables"][0]
        assert alike(table, expected)  # of both phases in one: the later rows are those of the validation


def test_steps_that_are_not_due_cost_no_meeting(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_trainer"]
        assert [step for step, _ in found["second steps"]["logged"]] == [1, 3]
        assert found["second steps"]["meetings"] == 2
        assert alike(found["second steps"]["tables"][0], merged(data(0)[3], data(1)[3]))
        assert found["windows of two"]["meetings"] == 2
        assert alike(found["windows of two"]["tables"][0], merged(*data(0)[2:], *data(1)[2:]))
        assert found["once"]["meetings"] == 1
        assert alike(found["once"]["tables"][0], merged(data(0)[1], data(1)[1]))


def test_all_come_together_for_what_one_process_looks_at(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_trainer"]["rank 1 only"]
        assert found["meetings"] == len(found["logged"]) == 4
        assert alike(found["tables"][0], merged(data(1)[3]))


def test_windows_end_together_though_each_process_has_called_another_branch(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_trainer"]
        assert [step for step, _ in found["dead"]["logged"]] == [1, 3]
        assert found["dead"]["meetings"] == 2
        assert "net.two.1" in found["dead"]["tables"][0]
        assert found["dead, validation"]["meetings"] == 1
        (row,) = found["dead, validation"]["tables"][0].values()
        assert row[2] == 3  # steps, of the process that had more
    assert ranks[0]["in_a_trainer"]["dead"] == ranks[1]["in_a_trainer"]["dead"]


def test_a_monitor_that_fails_in_one_process_does_not_stop_the_others(ranks):
    assert not ranks[0]["in_a_trainer"]["said"]
    assert ranks[1]["in_a_trainer"]["said"]
    for rank in range(2):
        assert ranks[rank]["in_a_trainer"]["spoilt"]["meetings"] == 1
        assert ranks[rank]["in_a_trainer"]["spoilt"]["tables"] == [{"net.relu": [3, [], 4]}]


def test_without_sync_dist_each_has_its_own(ranks):
    for rank in range(2):
        found = ranks[rank]["in_a_trainer"]["apart"]
        assert found["meetings"] == 0
        assert alike(found["tables"][0], merged(*data(rank, 2 + rank)))
    assert ranks[0]["in_a_trainer"]["apart"]["tables"][1] != ranks[1]["in_a_trainer"]["apart"]["tables"][1]


def test_a_shared_window_is_not_kept_as_that_of_one_process(ranks):
    for rank in range(2):
        kept, fresh = ranks[rank]["in_a_trainer"]["alone"]
        assert kept == {}
        assert fresh == {"steps": 0, "active": []}
    dead = DeadNeurons()
    dead.load_state_dict({})
    assert len(dead.table()) == 0


# -- what needs no merging --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ddp", "fsdp", "fsdp, nested", "fsdp, rank 0", "ddp, rank 0"])
def test_gradients_are_those_of_the_whole_batch_and_of_whole_parameters(ranks, way):
    model, both = network(), data(0, 2)[:, :4]
    optimizer, stats = torch.optim.SGD(model.parameters(), lr=0.1), GradientStats()
    with stats.watch(model, optimizer):
        for x in both:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    for rank in range(2):
        found, collectives = ranks[rank]["gradients"][way]
        if way == "ddp, rank 0" and rank:
            assert found == []
            continue
        assert [row[:3] for row in found] == [row[:3] for row in steps(stats)]
        for one, other in zip(found, steps(stats), strict=True):
            assert one[3:] == pytest.approx(other[3:], rel=1e-5)
        assert collectives == (4 if "fsdp" in way else 0)
    if "rank" not in way:
        assert ranks[0]["gradients"][way] == ranks[1]["gradients"][way]


def test_a_guard_names_the_rank(ranks):
    assert ranks[0]["of_one"]["guard"].endswith("train step 0, epoch 0, rank 0 (found by 0)")
    assert ranks[1]["of_one"]["guard"] == "nothing"


# -- one process ------------------------------------------------------------------------------------------------------


def test_one_process_flushes_as_well():
    model, stats, dead = network(), ActivationStats(), DeadNeurons(window=9)
    with tapping(model, stats, dead):
        model(data(0)[0])
        assert stats.flush()["activations/train/mean/1"] == stats.table()["1"].mean
        assert set(dead.flush()) == {"dead_neurons/share", "dead_neurons/share/1"}
        assert stats.flush() == dead.flush() == {}
        model.eval()
        model(data(0)[1])
        assert stats.flush() == {}
        assert "activations/val/mean/1" in stats.flush("val")
    with pytest.raises(ZeroDivisionError):
        gathered(lambda: 1 // 0, "Test")


@pytest.mark.parametrize("monitor", [ActivationStats, DeadNeurons])
def test_sync_dist_is_a_switch(monitor):
    with pytest.raises(TypeError, match="sync_dist must be True or False, got 'gloo'"):
        monitor(sync_dist="gloo")
