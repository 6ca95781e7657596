"""The place in the training data: a run that goes on sees the batches that it has not seen, in the order they had."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.checkpoint import world
from tests.checkpoint.world import Net, Numbers, Plan, resumed_equals_straight, saver, train
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hookbus.checkpoint import rng
from hookbus.checkpoint.cursor import Cursor
from hookbus.engine.nested import tensors_in
from hookbus.errors import MisconfigurationException
from hookbus.trainer.combined import CombinedLoader


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Rows of unknown number; with ``noise``, each draws from the random streams."""

    def __init__(self, count: int, *, noise: bool = False) -> None:
        self.count, self.noise = count, noise
        self.given, self.goes_on = 0, False

    def __iter__(self) -> Iterator[torch.Tensor]:
        first = self.given if self.goes_on else 0
        self.goes_on = False
        for i in range(first, self.count):
            self.given = i + 1
            yield torch.cat([torch.tensor([float(i)]), torch.rand(3) if self.noise else torch.ones(3)])


class OwnStream(Stream):
    """Draws each row with a generator of its own."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.rng = numpy.random.default_rng(2)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            yield torch.from_numpy(self.rng.random(4)).float()


class Augmented(Numbers):
    """Changes rows by steps of which one draws, as transforms are kept in a list."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.transforms = [Scaled(), Jittered()]

    def __getitem__(self, index: int) -> torch.Tensor:
        row = super().__getitem__(index)
        for transform in self.transforms:
            row = transform(row)
        return row


class Scaled:
    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        return row / 2


class Jittered:
    def __init__(self) -> None:
        self.generator = seeded(6)

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        return row + torch.rand(len(row), generator=self.generator)


class Mixed:
    """Puts batches together with noise."""

    def __init__(self) -> None:
        self.random = random.Random(4)

    def collate(self, scale: float, rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(rows) + scale * self.random.random()


class StatefulStream(Stream):
    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given, self.goes_on = state["given"], True


class OwnSampler(Sampler):  # type: ignore[type-arg]
    """Shuffles with a generator of its own."""

    def __init__(self, count: int) -> None:
        self.count, self.rng = count, numpy.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(self.count).tolist())

    def __len__(self) -> int:
        return self.count


class Wrapping(OwnSampler):
    """Takes the indices from another sampler, which draws."""

    def __init__(self, count: int) -> None:
        self.count, self.base = count, OwnSampler(count)

    def __iter__(self) -> Iterator[int]:
        return iter(self.base)


class CountingSampler(OwnSampler):
    """Has a state that no generator shows."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.rounds = 0

    def __iter__(self) -> Iterator[int]:
        self.rounds += 1
        return iter([(i + self.rounds) % self.count for i in range(self.count)])

    def state_dict(self) -> dict[str, int]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.rounds = state["rounds"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stateful_loader(*args: Any, **options: Any) -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loaders.StatefulDataLoader(*args, **options)


LOADERS: dict[str, Callable[[], Any]] = {
    "a generator": lambda: DataLoader(Numbers(18), batch_size=3, shuffle=True, generator=seeded(5)),
    "weights": lambda: DataLoader(Numbers(18), batch_size=3, sampler=WeightedRandomSampler(torch.ones(18), 18)),
    "a subset": lambda: DataLoader(
        Numbers(18), batch_size=3, sampler=SubsetRandomSampler(range(18), generator=seeded(2))
    ),
    "replacement": lambda: DataLoader(Numbers(66), batch_size=11, sampler=RandomSampler(Numbers(66), replacement=True)),
    "a sampler with numpy": lambda: DataLoader(Numbers(18), batch_size=3, sampler=OwnSampler(18)),
    "a batch sampler": lambda: DataLoader(
        Numbers(18), batch_sampler=BatchSampler(RandomSampler(Numbers(18)), 3, drop_last=False)
    ),
    "no batching": lambda: DataLoader([Numbers(3 * i + 3).rows[-3:] for i in range(6)], batch_size=None, shuffle=True),
    "noise": lambda: DataLoader(Numbers(18, noise=True), batch_size=3, shuffle=True),
    "a stream": lambda: DataLoader(Stream(18), batch_size=3),
    "a stream with noise": lambda: DataLoader(Stream(18, noise=True), batch_size=3),
    "a stream with a generator": lambda: DataLoader(OwnStream(18), batch_size=3),
    "streams with generators": lambda: {"a": DataLoader(OwnStream(18), batch_size=3)},
    "a generator in a subset": lambda: DataLoader(Subset(Augmented(20), range(18)), batch_size=3, shuffle=True),
    "a generator in a sampler's sampler": lambda: DataLoader(Numbers(18), batch_size=3, sampler=Wrapping(18)),
    "a generator that collates": lambda: DataLoader(
        Numbers(18), batch_size=3, collate_fn=functools.partial(Mixed().collate, 2.0)
    ),
    "a stream with a state": lambda: DataLoader(StatefulStream(18, noise=True), batch_size=3),
    "two loaders": lambda: [
        DataLoader(Numbers(18), batch_size=3, shuffle=True),
        DataLoader(Numbers(6), batch_size=3, shuffle=True),
    ],
    "torchdata": lambda: stateful_loader(Numbers(18, noise=True), batch_size=3, shuffle=True),
    "torchdata with a generator": lambda: stateful_loader(Numbers(18), batch_size=3, shuffle=True, generator=seeded(4)),
    "torchdata with a stream": lambda: stateful_loader(StatefulStream(18, noise=True), batch_size=3),
}
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "workers": lambda: DataLoader(Numbers(18), batch_size=3, shuffle=True, num_workers=2),
    "persistent workers": lambda: DataLoader(
        Numbers(18), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "torchdata with workers": lambda: stateful_loader(Numbers(18), batch_size=3, shuffle=True, num_workers=2),
}
REPLAYED: dict[str, Callable[[], Any]] = {
    "noise in workers": lambda: DataLoader(Numbers(18, noise=True), batch_size=3, shuffle=True, num_workers=2),
    "a stream in workers": lambda: DataLoader(Stream(9, noise=True), batch_size=3, num_workers=2),
}


def with_loader(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], *, persistent: bool = False) -> None:
    """Let trainings use another loader, and a module that takes several batches at once."""
    step = Net.training_step
    workers = {"num_workers": 1, "persistent_workers": True} if persistent else {}
    monkeypatch.setattr(
        world,
        "loaders",
        lambda plan: (make(), DataLoader(Numbers(7), batch_size=3, shuffle=True, generator=seeded(8), **workers)),
    )
    monkeypatch.setattr(
        Net,
        "training_step",
        lambda self, batch, i: step(self, torch.cat([*tensors_in(batch)]), i),
    )


MOMENTS = [("on_train_batch_end", 0), ("on_train_batch_end", 8), ("on_validation_end", 1)]


@pytest.mark.filterwarnings("ignore:.*has no state and cannot be indexed", "ignore:.*set_vital")
@pytest.mark.parametrize(("moment", "nth"), MOMENTS)
@pytest.mark.parametrize("name", LOADERS)
def test_the_data_go_on(name: str, moment: str, nth: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_loader(monkeypatch, LOADERS[name])
    plan = Plan(epochs=2 if nth else 1)
    assert resumed_equals_straight(plan, moment, min(nth, 6 * plan.epochs - 2), tmp_path) is not None


@pytest.mark.filterwarnings("ignore:.*set_vital")
@pytest.mark.parametrize(("moment", "nth"), [("on_train_batch_end", 7), ("on_train_epoch_end", 0)])
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_the_data_of_workers_go_on(
    name: str, moment: str, nth: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_loader(monkeypatch, WITH_WORKERS[name])
    assert resumed_equals_straight(Plan(epochs=2), moment, nth, tmp_path) is not None


@pytest.mark.parametrize(("moment", "nth"), [("on_train_batch_end", 2), ("on_train_batch_end", 7)])
def test_persistent_workers_of_the_validation(
    moment: str, nth: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_loader(monkeypatch, LOADERS["noise"], persistent=True)
    assert resumed_equals_straight(Plan(epochs=2), moment, nth, tmp_path) is not None


@pytest.mark.filterwarnings("ignore:.*has no state and cannot be indexed")
@pytest.mark.parametrize("name", REPLAYED)
def test_what_workers_draw_is_drawn_again_by_loading_again(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_loader(monkeypatch, REPLAYED[name])
    plan = Plan(epochs=2)
    assert resumed_equals_straight(plan, "on_train_batch_end", 2, tmp_path, resume_data="replay") is not None


def test_a_validation_that_comes_late_draws_as_if_nothing_had_been(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sanity check has drawn from the generator of its loader, long before the loader is asked for again."""
    with_loader(monkeypatch, LOADERS["a generator"])
    seen: list[list[float]] = []
    monkeypatch.setattr(Net, "validation_step", lambda self, batch, i: seen.append(batch[:, 0].tolist()))

    options: dict[str, Any] = {"check_val_every_n_epoch": 2, "num_sanity_val_steps": 2}
    train(Plan(epochs=2), saver(tmp_path / "a.ckpt", "on_train_batch_end", 2), **options)
    straight = seen[2:]
    seen.clear()
    train(Plan(epochs=2), ckpt_path=tmp_path / "a.ckpt", **options)
    assert seen == straight
    assert straight


# --- one at a time ----------------------------------------------------------------------------------------------------


class Accesses(Numbers):
    """Notes which rows are loaded."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return super().__getitem__(index)


def test_what_is_skipped_is_not_loaded() -> None:
    dataset = Accesses(18)
    loader = DataLoader(dataset, batch_size=3, shuffle=True)
    cursor = Cursor(loader)
    whole = [batch[:, 0].tolist() for batch in cursor.begin()]
    iterator = cursor.begin()
    seen = [next(iterator)[:, 0].tolist() for _ in range(4)]
    state = cursor.state_dict()
    dataset.loaded.clear()
    fresh = DataLoader(dataset, batch_size=3, shuffle=True)
    rest = [batch[:, 0].tolist() for batch in Cursor(fresh).resume(state)]
    assert len(dataset.loaded) == 6
    assert sorted(chain(*seen, *rest)) == sorted(chain(*whole)) == list(range(18))
    assert [b[:, 0].tolist() for b in DataLoader(dataset, batch_size=9)] == [list(range(9)), list(range(9, 18))]


def test_taking_up_draws_nothing() -> None:
    cursor = Cursor(DataLoader(Numbers(18), batch_size=3, shuffle=True))
    next(cursor.begin())
    before = rng.capture()
    next(Cursor(DataLoader(Numbers(18), batch_size=3, shuffle=True)).resume(cursor.state_dict()))
    assert torch.equal(rng.capture()["torch"], before["torch"])


def test_a_loader_is_as_it_was_afterwards() -> None:
    loader = DataLoader(Numbers(18), batch_size=3, shuffle=True)
    sampler = loader.batch_sampler
    cursor = Cursor(loader)
    next(cursor.begin())
    list(cursor.resume(cursor.state_dict()))
    assert loader.batch_sampler is sampler
    assert len(list(cursor.begin())) == 6


def test_a_list_of_batches() -> None:
    cursor = Cursor([1, 2, 3, 4])
    iterator = cursor.begin()
    assert (next(iterator), next(iterator)) == (1, 2)
    assert list(Cursor([1, 2, 3, 4]).resume(cursor.state_dict())) == [3, 4]


def test_a_place_while_reading_ahead() -> None:
    loader = DataLoader(Stream(12, noise=True), batch_size=3)
    cursor = Cursor(loader, ahead=True)
    iterator = cursor.begin()
    batches = [next(iterator), next(iterator)]  # works on the first
    state, after = cursor.state_dict(), rng.capture()
    batches += list(iterator)
    rng.restore(after)
    with pytest.warns(UserWarning, match=r"has no state .* the 1 batches .* are loaded again"):
        again = list(Cursor(DataLoader(Stream(12, noise=True), batch_size=3), ahead=True).resume(state))
    assert len(again) == 3
    assert all(map(torch.equal, again, batches[1:]))


def test_data_without_a_state_are_refused_if_asked_for() -> None:
    cursor = Cursor(DataLoader(Stream(12), batch_size=3))
    next(cursor.begin())
    with pytest.raises(MisconfigurationException, match=r"resume_data='refuse'.* after 1 batches"):
        Cursor(DataLoader(Stream(12), batch_size=3)).resume(cursor.state_dict(), "refuse")
    indexed = Cursor(DataLoader(Numbers(12), batch_size=3))
    next(indexed.begin())
    assert len(list(Cursor(DataLoader(Numbers(12), batch_size=3)).resume(indexed.state_dict(), "refuse"))) == 3


def test_other_data_than_those_that_were_saved() -> None:
    cursor = Cursor([1, 2, 3])
    next(cursor.begin())
    with pytest.warns(UserWarning, match="saved inside an epoch over a sequence of batches, .* now is indexed data"):
        rest = list(Cursor(DataLoader(Numbers(9), batch_size=3)).resume(cursor.state_dict()))
    assert [batch[:, 0].tolist() for batch in rest] == [[3, 4, 5], [6, 7, 8]]


def test_the_state_of_a_sampler() -> None:
    def loader(rounds: int) -> Any:
        sampler = CountingSampler(12)
        sampler.rounds = rounds
        return DataLoader(Numbers(12), batch_size=3, sampler=sampler)

    cursor = Cursor(loader(4))
    iterator = cursor.begin()
    next(iterator)
    rest = list(Cursor(loader(0)).resume(cursor.state_dict()))
    assert all(map(torch.equal, rest, iterator))
    assert len(rest) == 3


def test_the_states_of_users_are_left_as_they_are() -> None:
    """A tuple that looks like the state of Python's generator, say."""
    lookalike = (1, (2, 3), None)

    class Own(Stream):
        def state_dict(self) -> dict[str, Any]:
            return {"own": lookalike, "numpy": numpy.arange(2)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.taken = state

    for ahead in (False, True):
        cursor = Cursor(DataLoader(Own(6), batch_size=2), ahead=ahead)
        iterator = cursor.begin()
        next(iterator)
        next(iterator)
        state = cursor.state_dict()["dataset"]
        assert state["own"] is lookalike
        assert isinstance(state["numpy"], numpy.ndarray)


def test_a_collection_of_any_shape() -> None:
    def loader() -> CombinedLoader:
        return CombinedLoader({"a": range(3), "b": (range(10, 14), range(2))}, "max_size_cycle")

    whole = list(Cursor(loader()).begin())
    cursor = Cursor(loader())
    iterator = cursor.begin()
    for _ in range(3):
        next(iterator)
    assert list(Cursor(loader()).resume(cursor.state_dict())) == whole[3:]


# --- in a training ----------------------------------------------------------------------------------------------------


def test_refuse_in_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_loader(monkeypatch, LOADERS["a stream"])
    path = tmp_path / "on_train_batch_end-1.ckpt"
    train(Plan(epochs=1), saver(path, "on_train_batch_end", 1), folder=tmp_path)
    with pytest.raises(MisconfigurationException, match="resume_data='refuse'"):
        train(Plan(epochs=1), ckpt_path=path, folder=tmp_path, resume_data="refuse")
    with pytest.raises(
        MisconfigurationException, match="resume_data must be one of skip, replay, refuse, got 'ignore'"
    ):
        train(Plan(epochs=1), folder=tmp_path, resume_data="ignore")


def test_a_state_cannot_go_back_to_a_batch_that_was_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_loader(monkeypatch, LOADERS["a stream with a state"])
    path = tmp_path / "x.ckpt"
    straight = train(Plan(epochs=1), saver(path, "on_before_optimizer_step", 2), folder=tmp_path / "run")
    with pytest.warns(UserWarning, match=r"in the middle of a batch, .* 1 batch\(es\) .* are left out"):
        resumed = train(Plan(epochs=1), ckpt_path=path, folder=tmp_path / "run")
    assert resumed.module.seen == straight.module.seen[3:]


def test_fewer_batches_than_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    train(Plan(epochs=1), saver(path, "on_train_batch_end", 3), folder=tmp_path)
    with pytest.warns(UserWarning, match="inside an epoch of 6 batches, and now there are 5"):
        run = train(Plan(epochs=1, batches=5), ckpt_path=path, folder=tmp_path)
    assert len(run.module.seen) == 1


def test_loaders_are_asked_for_with_the_streams_of_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A split that ``train_dataloader`` draws without a seed is drawn again."""

    def drawn(self: Any) -> Any:
        return DataLoader(torch.utils.data.Subset(Numbers(30), torch.randperm(30)[:18].tolist()), batch_size=3)

    monkeypatch.setattr(Net, "train_dataloader", drawn)
    monkeypatch.setattr(world, "loaders", lambda plan: (None, DataLoader(Numbers(6), batch_size=3)))
    assert resumed_equals_straight(Plan(), "on_train_batch_end", 8, tmp_path) is not None
    plan = Plan(options={"reload_dataloaders_every_n_epochs": 2})
    assert resumed_equals_straight(plan, "on_train_batch_end", 9, tmp_path) is not None
