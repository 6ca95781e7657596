"""``self.log``: the numbers are those that Lightning 2.6 gives for the same calls (``data/metrics.json``)."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.errors import MisconfigurationException
from hookbus.trainer.metric_rules import resolve_options
from hookbus.trainer.metrics import OPTIONS, MetricStore

RECORD = json.loads((Path(__file__).parent / "data" / "metrics.json").read_text())
FUNCTIONS = {"torch.min": torch.min}


class Mean:
    """A metric object with the interface of torchmetrics."""

    def __init__(self) -> None:
        self.resets = 0
        self.reset()

    def reset(self) -> None:
        self.sum, self.count = torch.zeros(()), 0
        self.resets += 1

    def update(self, values: Any) -> None:
        self.sum, self.count = self.sum + torch.as_tensor(values).sum(), self.count + len(values)

    def compute(self) -> Any:
        return self.sum / self.count

    def forward(self, values: Any) -> None:
        self.update(values)
        self._forward_cache = torch.as_tensor(values).mean()


#: Those of ``self.log``.
DEFAULTS = {**dict.fromkeys(OPTIONS), "reduce_fx": "mean", "add_dataloader_idx": True}
DEFAULTS.update(prog_bar=False, sync_dist=False, rank_zero_only=False)


def log(store: MetricStore, name: str, value: Any, hook: str = "training_step", size: int | None = 1, **options: Any):
    where = {
        "dataloader_idx": options.pop("dataloader_idx", None),
        "several_loaders": options.pop("several_loaders", False),
    }
    given = (*({**DEFAULTS, **options}[option] for option in OPTIONS),)
    store.log(name, value, given, hook=hook, batch_size=size, **where)


def started(stage: str = "train", **kwargs: Any) -> MetricStore:
    store = MetricStore(**kwargs)
    store.start(stage)
    return store


def plain(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


# --- replay of what Lightning did -----------------------------------------------------------------------------------


def value_of(event: dict[str, Any], metrics: dict[str, Mean]) -> Any:
    kind, value = event["kind"], event["value"]
    if kind == "metric":
        return metrics[value]
    if kind in ("float", "int", "bool"):
        return value
    return torch.tensor(float(value)).to(getattr(torch, kind)).requires_grad_(kind.startswith("float"))


def check(actual: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    assert actual.keys() == expected.keys(), where
    for name, wanted in expected.items():
        if isinstance(wanted, list):
            number, dtype = wanted
            assert isinstance(actual[name], torch.Tensor), (where, name)
            assert actual[name].shape == (), (where, name)
            assert str(actual[name].dtype) == f"torch.{dtype}", (where, name)
            assert not actual[name].requires_grad
        else:
            number = wanted
            assert isinstance(actual[name], float), (where, name)
        assert float(actual[name]) == pytest.approx(float(number), rel=1e-6, nan_ok=True), (where, name)


@pytest.mark.parametrize("scenario", RECORD["scenarios"])
def test_the_dictionaries_equal_lightnings_at_every_moment(scenario: str) -> None:
    store = MetricStore()
    metrics = {"mean": Mean()}
    returned: list[dict[str, Any]] = []
    for number, event in enumerate(RECORD["scenarios"][scenario]):
        where = f"{scenario}, event {number}"
        if "see" in event:
            check(store.callback_metrics, event["callback"], f"{where}: callback_metrics in {event['see']}")
            check(store.logged_metrics, event["logged"], f"{where}: logged_metrics in {event['see']}")
            check(store.progress_bar_metrics, event["progress"], f"{where}: progress_bar_metrics in {event['see']}")
        elif "sent" in event:
            sent = store.step_metrics() if event["sent"] == "step" else store.epoch_metrics()
            check(sent, event["metrics"], f"{where}: sent to the loggers")
        elif "returned" in event:
            for part, wanted in zip(returned, event["returned"], strict=True):
                check({name: float(value) for name, value in part.items()}, wanted, where)
        elif event["do"] == "log":
            options = {key: FUNCTIONS.get(str(option), option) for key, option in event["options"].items()}
            loader = event["loader"]
            log(
                store,
                event["name"],
                value_of(event, metrics),
                event["hook"],
                event["size"],
                dataloader_idx=loader,
                several_loaders=loader is not None,
                **options,
            )
        elif event["do"] == "forward":
            metrics[event["metric"]].forward(event["value"])
        elif event["do"] == "start":
            store.start(event["stage"])
        elif event["do"] == "finish_batches":
            store.finish_batches(event["loader"])
        else:
            if event["do"] == "finish_epoch":
                returned = [store.epoch_metrics(0), store.epoch_metrics(1)]
                if returned[0] == returned[1]:
                    returned.pop()
            getattr(store, event["do"])()


@pytest.mark.parametrize("hook", RECORD["hooks"])
def test_each_hook_allows_what_lightning_allows(hook: str) -> None:
    for on_step, on_epoch in product((None, False, True), repeat=2):
        wanted = RECORD["hooks"][hook][f"{on_step},{on_epoch}"]
        possible = isinstance(wanted, list) and wanted != [False, False]  # refused a moment later
        options = dict.fromkeys(("prog_bar", "logger", "sync_dist", "rank_zero_only"), False)
        arguments = {**options, "on_step": on_step, "on_epoch": on_epoch, "reduce_fx": "mean"}
        arguments.update(add_dataloader_idx=True, metric_attribute=None)
        if possible:
            resolved = resolve_options("x", hook, **arguments)
            assert [resolved.on_step, resolved.on_epoch] == wanted
        else:
            with pytest.raises(MisconfigurationException, match=hook):
                resolve_options("x", hook, **arguments)


# --- values ---------------------------------------------------------------------------------------------------------


def test_a_long_epoch_is_reduced_exactly() -> None:
    store = started()
    values = torch.randn(1000, dtype=torch.float64)
    for index, value in enumerate(values):
        log(store, "mean", value, on_epoch=True, size=3)
        log(store, "weighted", value, on_epoch=True, size=index % 7)
        log(store, "sum", value, on_epoch=True, reduce_fx="sum")
        log(store, "max", value, on_epoch=True, reduce_fx="max")
        log(store, "min", float(value), on_epoch=True, reduce_fx="min")
        log(store, "mixed", value if index % 2 else float(value), on_epoch=True)
        store.finish_batch()
    epoch = plain(store.epoch_metrics())
    weights = torch.arange(1000) % 7
    assert epoch["mean_epoch"] == pytest.approx(float(values.mean()), abs=1e-12)
    assert epoch["weighted_epoch"] == pytest.approx(float((values * weights).sum() / weights.sum()), abs=1e-12)
    assert epoch["sum_epoch"] == pytest.approx(float(values.sum()))
    assert epoch["max_epoch"] == float(values.max())
    assert epoch["min_epoch"] == pytest.approx(float(values.min()))
    assert epoch["mixed_epoch"] == pytest.approx(float(values.mean()), abs=1e-12)


def test_a_tensor_changed_in_place_afterwards_keeps_its_logged_value() -> None:
    store = started()
    counter = torch.zeros(())
    for _ in range(20):
        counter += 1
        log(store, "count", counter, on_epoch=True)
        loss = counter * 1
        log(store, "loss", loss)
        loss /= 10
        store.finish_batch()
    assert plain(store.step_metrics()) == {"count_step": 20.0, "loss": 20.0}
    assert plain(store.epoch_metrics()) == {"count_epoch": 10.5}


def test_a_value_that_was_read_does_not_change_later() -> None:
    store = started()
    log(store, "loss", torch.tensor(1.0), on_epoch=True)
    kept = store.callback_metrics["loss"]
    log(store, "loss", torch.tensor(2.0), on_epoch=True)
    assert float(kept) == 1.0
    assert float(store.callback_metrics["loss"]) == 2.0


def test_values_from_inference_mode_and_outside_mix() -> None:
    store = started("validate")
    with torch.inference_mode():
        log(store, "x", torch.ones(()) * 2, "validation_step", on_step=True)
    log(store, "x", torch.ones(()) * 4, "validation_step", on_step=True)
    with torch.inference_mode():
        value = store.epoch_metrics()["x_epoch"]
    value.requires_grad_()  # an inference tensor would refuse
    assert float(value.detach()) == 3.0


def test_a_batch_size_may_be_a_tensor() -> None:
    store = started()
    tokens = torch.tensor(1)
    for value in (1.0, torch.tensor(4.0)):
        log(store, "x", value, on_epoch=True, size=tokens)
        tokens += 1
    assert plain(store.epoch_metrics()) == {"x_epoch": 3.0}


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    store = started()
    log(store, "x", numpy.float32(1.5))
    log(store, "y", numpy.int64(2))
    assert plain(store.callback_metrics) == {"x": 1.5, "y": 2.0}


class Counting(torch.Tensor):
    """Counts how often somebody waits for its value."""

    waits = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy"):
            Counting.waits += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_step_never_waits_for_a_value() -> None:
    store = started()
    for _ in range(300):
        value = torch.ones(()).as_subclass(Counting)
        log(store, "x", value, on_epoch=True, prog_bar=True, size=4)
        store.finish_batch()
        store.callback_metrics, store.logged_metrics, store.step_metrics()
    assert Counting.waits == 0
    assert store.progress_bar_metrics == {"x_step": 1.0}


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1.0}, "log_dict"),
        (torch.zeros(2, 3), r"\(2, 3\)"),
        (torch.zeros(0), r"\(0,\)"),
        (None, "NoneType"),
        ("text", "str"),
        ([1.0], "list"),
        (1j, "complex"),
    ],
)
def test_what_is_not_one_number_is_refused(value: Any, message: str) -> None:
    store = started()
    with pytest.raises(ValueError, match=message):
        log(store, "loss", value)
    assert store.callback_metrics == {}
    log(store, "loss", torch.ones(1, 1))
    with pytest.raises(ValueError, match=message):
        log(store, "loss", value)
    assert plain(store.callback_metrics) == {"loss": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_step": False, "on_epoch": False}, "would keep nothing"),
        ({"reduce_fx": "median"}, "'mean', 'sum', 'max' or 'min'"),
        ({"reduce_fx": lambda values: values}, "'mean', 'sum', 'max' or 'min'"),
        ({"hook": "on_train_epoch_end", "on_step": True}, "only on_step=False"),
        ({"hook": "on_train_epoch_end", "on_epoch": False}, "only on_step=False"),
        ({"hook": "setup"}, "not possible inside `setup`.*training_step"),
        ({"hook": "on_fit_start"}, "not possible inside `on_fit_start`"),
        ({"hook": "predict_step"}, "not possible inside `predict_step`"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        log(started(), "x", 1.0, **options)


def test_other_options_for_a_known_name_are_refused() -> None:
    store = started()
    log(store, "x", 1.0)
    log(store, "x", 2.0, on_step=True, logger=True, reduce_fx=torch.mean)  # the same, spelled out
    log(store, "x", 3.0, "on_train_epoch_end")  # another hook is another value
    with pytest.raises(MisconfigurationException, match="prog_bar=False before and now with prog_bar=True"):
        log(store, "x", 1.0, prog_bar=True)


def test_a_name_with_the_loaders_suffix_is_refused() -> None:
    store = started("validate")
    with pytest.raises(MisconfigurationException, match="add_dataloader_idx=False"):
        log(store, "x/dataloader_idx_0", 1.0, "validation_step")
    log(store, "x/dataloader_idx_0", 1.0, "validation_step", add_dataloader_idx=False)


def test_one_name_for_two_loaders_is_refused() -> None:
    store = started("validate")
    options = {"add_dataloader_idx": False, "several_loaders": True}
    log(store, "x", 1.0, "validation_step", dataloader_idx=0, **options)
    with pytest.raises(MisconfigurationException, match="loader 0 and for loader 1"):
        log(store, "x", 1.0, "validation_step", dataloader_idx=1, **options)


def test_logging_without_a_loop_is_refused() -> None:
    with pytest.raises(MisconfigurationException, match="inside `training_step` was called while no training"):
        log(MetricStore(), "x", 1.0)
    with pytest.raises(MisconfigurationException, match=r"inside `on_fit_start`.*allowed in .*training_step"):
        log(MetricStore(), "x", 1.0, "on_fit_start")


# --- metric objects -------------------------------------------------------------------------------------------------


def test_a_metric_object_that_was_only_updated_has_no_step_value() -> None:
    store, mean = started(), Mean()
    mean.update([1.0, 2.0])
    log(store, "m", mean, on_step=True, on_epoch=True)
    store.finish_batch()
    assert store.step_metrics() == {}
    assert plain(store.epoch_metrics()) == {"m_epoch": 1.5}
    resets = mean.resets
    store.finish_epoch()
    assert mean.resets == resets + 1


def test_metric_objects_start_from_nothing_after_the_sanity_check() -> None:
    store, mean = started("sanity"), Mean()
    mean.update([100.0])
    log(store, "m", mean, "validation_step")
    store.finish_batches()
    store.reset()
    assert mean.count == 0
    assert store.callback_metrics == {}


def test_a_metric_object_must_compute_a_tensor() -> None:
    store, mean = started(), Mean()
    mean.compute = lambda: {"a": torch.ones(())}
    log(store, "m", mean, on_step=False, on_epoch=True)
    with pytest.raises(ValueError, match=r"compute\(\) of the metric object logged as 'm' must be a tensor, got dict"):
        store.finish_batches()


def test_object_and_number_under_one_name_are_refused() -> None:
    store = started()
    log(store, "m", Mean())
    with pytest.raises(MisconfigurationException, match="metric object before and now with a float"):
        log(store, "m", 1.0)
    log(store, "n", 1.0)
    with pytest.raises(ValueError, match="Mean"):
        log(store, "n", Mean())


# --- moments --------------------------------------------------------------------------------------------------------


def test_a_validation_in_between_does_not_disturb_the_training_epoch() -> None:
    store = started()
    log(store, "loss", 1.0, on_epoch=True)
    store.finish_batch()
    store.start("validate")
    log(store, "loss", 10.0, "validation_step")
    store.finish_epoch()
    assert float(store.callback_metrics["loss"]) == 10.0
    log(store, "loss", 3.0, on_epoch=True)
    store.finish_batch()
    store.finish_batches()
    assert plain(store.callback_metrics) == {"loss": 2.0, "loss_step": 3.0, "loss_epoch": 2.0}


def test_the_dictionaries_are_live() -> None:
    store = started()
    store.callback_metrics["mine"] = torch.ones(())
    log(store, "x", 1.0)
    assert set(store.callback_metrics) == {"mine", "x"}


def test_a_second_epoch_starts_from_nothing_even_after_an_error() -> None:
    store = started()
    log(store, "x", 100.0, on_step=False, on_epoch=True)
    store.finish_batch()
    store.start("validate")
    log(store, "v", 1.0, "validation_step")
    store.start("train")  # the error left both epochs open
    log(store, "x", 2.0, on_step=False, on_epoch=True)
    assert plain(store.epoch_metrics()) == {"x": 2.0}


# --- several processes ----------------------------------------------------------------------------------------------


class OtherRank:
    """Stands for a second process that logged ``value`` with the same weight, and counts the reductions."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[float]]] = []

    def __call__(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        self.calls.append((operation, tensor.tolist()))
        other = tensor * 3
        if operation == "sum":
            return tensor + other
        if operation == "mean":
            return (tensor + other) / 2
        return torch.maximum(tensor, other) if operation == "max" else torch.minimum(tensor, other)


def test_values_of_an_epoch_are_reduced_together_at_one_moment() -> None:
    rank = OtherRank()
    store = started("validate", reduce_across_ranks=rank)
    options = {"sync_dist": True, "hook": "validation_step"}
    for value in (1.0, 3.0):
        log(store, "mean", torch.tensor(value), **options)
        log(store, "sum", value, reduce_fx="sum", **options)
        log(store, "max", value, reduce_fx="max", **options)
        log(store, "own", value, hook="validation_step")
        store.finish_batch()
    assert store.callback_metrics == {}
    assert rank.calls == []
    store.finish_batches()
    assert rank.calls == [("sum", [4.0, 2.0, 4.0, 0.0]), ("max", [3.0, 0.0])]
    expected = {"mean": 2.0, "sum": 16.0, "max": 9.0, "own": 2.0}
    assert plain(store.callback_metrics) == expected
    assert plain(store.epoch_metrics()) == expected
    log(store, "late", 2.0, "on_validation_epoch_end", sync_dist=True, reduce_fx="sum")
    calls = len(rank.calls)
    assert plain(store.callback_metrics) == {**expected, "late": 8.0}
    store.epoch_metrics(), store.progress_bar_metrics, store.state_dict()
    assert len(rank.calls) == calls, "reading never talks to other processes"


def test_values_of_a_step_are_reduced_when_they_are_logged() -> None:
    rank = OtherRank()
    store = started(reduce_across_ranks=rank)
    log(store, "x", torch.tensor(2.0), sync_dist=True)
    log(store, "only_here", torch.tensor(2.0), sync_dist=True, rank_zero_only=True)
    assert rank.calls == [("mean", [2.0])]
    assert plain(store.step_metrics()) == {"x": 4.0, "only_here": 2.0}


# --- state ----------------------------------------------------------------------------------------------------------


def run(store: MetricStore, values: list[float]) -> None:
    for value in values:
        log(store, "loss", torch.tensor(value), on_epoch=True, prog_bar=True, size=int(value))
        log(store, "best", value, on_epoch=True, reduce_fx="max")
        store.finish_batch()


def test_a_running_epoch_survives_a_checkpoint(tmp_path: Path) -> None:
    whole, first, second = started(), started(), started()
    run(whole, [1.0, 2.0, 3.0, 4.0])
    run(first, [1.0, 2.0])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert plain(second.callback_metrics) == plain(first.callback_metrics)
    assert second.progress_bar_metrics == {"loss_step": 2.0}
    second.start("train")
    run(second, [3.0, 4.0])
    assert plain(second.epoch_metrics()) == plain(whole.epoch_metrics())
    assert plain(second.callback_metrics) == plain(whole.callback_metrics)
    assert second.progress_bar_metrics == whole.progress_bar_metrics


def test_an_epoch_that_is_over_leaves_nothing_to_the_next() -> None:
    first, second = started(), started()
    run(first, [1.0, 2.0])
    first.finish_batches()
    second.load_state_dict(first.state_dict())
    assert plain(second.callback_metrics) == plain(first.callback_metrics)
    second.start("train")
    run(second, [3.0])
    assert plain(second.epoch_metrics()) == {"loss_epoch": 3.0, "best_epoch": 3.0}
