"""Two processes on one machine: names without wrappers, and which gradients are local and which are the mean."""

import pytest
import torch.distributed as dist
from tests.taps.ranks import printed_by_both

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed with gloo"
)

# A chain of two 2x2 matrices of ones, given (r + 1, r + 1) on rank r; the loss is the sum of what comes out.
FORWARD = {"0": [4.0, 8.0], "2": [8.0, 16.0]}
GRAD_OUTPUT = {"0": [4.0, 4.0], "2": [2.0, 2.0]}
LOCAL = {"0.weight": [8.0, 16.0], "2.weight": [8.0, 16.0]}
MEAN = {"0.weight": 12.0, "2.weight": 12.0}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks print."""
    return printed_by_both("tests.taps.two_ranks", tmp_path_factory.mktemp("ranks"))


def heard(rank, kind, step=1):
    return {name: value for what, name, _, value, when in rank["heard"] if (what, when) == (kind, step)}


@pytest.mark.parametrize("way", ["ddp", "fsdp", "fsdp, nested"])
def test_each_rank_hears_of_its_own_activations_under_plain_names(ranks, way):
    for rank in range(2):
        found = ranks[rank][way]
        assert heard(found, "forward") == {name: values[rank] for name, values in FORWARD.items()}
        assert heard(found, "grad_output") == {name: values[rank] for name, values in GRAD_OUTPUT.items()}
        assert {step for *_, step in found["heard"]} == {0, 1}
        assert found["hooks"][0] > 0
        assert found["hooks"][1] == 0


def test_gradients_of_parameters_are_local_under_ddp_until_backward_returns(ranks):
    for rank in range(2):
        found = ranks[rank]["ddp"]
        assert heard(found, "parameter_grad") == {name: values[rank] for name, values in LOCAL.items()}
        assert found["grads"] == list(MEAN.values())


def test_under_ddp_a_gradient_is_said_to_be_local_or_a_running_sum(ranks):
    for rank in range(2):
        own = LOCAL["0.weight"][rank]
        assert [row[1:] for row in ranks[rank]["kinds, ddp"]] == [
            ["local", own],  # under no_sync
            ["accumulated", 2 * own],
            ["accumulated", 2 * MEAN["0.weight"] + own],  # on top of the mean of what came before
            ["local", own],
        ]
        assert [row[1:] for row in ranks[rank]["kinds, ddp with views"]] == [
            ["local", own],
            ["local", own],
            ["accumulated", 2 * own],
        ]


@pytest.mark.parametrize("way", ["fsdp", "fsdp, nested"])
def test_under_fsdp_a_gradient_is_said_to_be_reduced(ranks, way):
    mean = MEAN["0.weight"]
    for rank in range(2):
        said = [row[1:] for row in ranks[rank][f"kinds, {way}"]]
        assert said[:2] == [["reduced", mean], ["reduced", 2 * mean]]
        assert said[2:] in ([], [["reduced", mean]])


@pytest.mark.parametrize("way", ["fsdp", "fsdp, nested"])
def test_gradients_of_parameters_are_reduced_and_sharded_under_fsdp(ranks, way):
    for rank in range(2):
        found = ranks[rank][way]
        kinds = {kind for what, _, kind, *_ in found["heard"] if what == "parameter_grad"}
        assert kinds == {"DTensor"}
        assert heard(found, "parameter_grad") == MEAN
        assert found["grads"] == list(MEAN.values())


@pytest.mark.parametrize("way", ["ddp", "fsdp", "fsdp, nested"])
def test_features_are_those_of_each_rank_and_training_goes_on_as_ever(ranks, way):
    for rank in range(2):
        found = ranks[rank][f"features, {way}"]
        value = FORWARD["0"][rank]
        assert found["features"] == {"0": value, "1": value, "alone": value}
        assert found["grads"] == list(MEAN.values())
        assert found["hooks"] == 0
        assert found["later"] == ([] if way == "ddp" else ["ran"])  # the hooks of FSDP must see a pass to its end


@pytest.mark.parametrize(("way", "gradients"), [("ddp", [4.0, 8.0]), ("fsdp, nested", [6.0, 6.0])])
def test_gradients_through_features_are_local_under_ddp_and_the_mean_of_parts_that_fsdp_has_sharded(
    ranks, way, gradients
):
    assert [ranks[rank][f"features, {way}"]["through"] for rank in range(2)] == gradients


def test_outside_of_a_trainer_the_rank_is_that_of_the_process_group(ranks):
    assert [found["rank"] for found in ranks] == [[], [1]]
