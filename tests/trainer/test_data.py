"""Counting, limiting and walking over batches."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler, TensorDataset

import hookbus
from hookbus.errors import MisconfigurationException, PossibleUserWarning
from hookbus.trainer.combined import CombinedLoader
from hookbus.trainer.data import batches, evaluation_loaders, length, set_epoch, training_loader


class Stream(IterableDataset):
    """Numbers, without saying how many."""

    def __init__(self, number):
        self.number = number
        self.read = 0

    def __iter__(self):
        for i in range(self.number):
            self.read += 1
            yield torch.tensor([float(i)])


class SizedStream(Stream):
    def __len__(self):
        return self.number


def numbers(count, **options):
    return DataLoader(TensorDataset(torch.arange(count).float()), **options)


class Noting(hookbus.LightningModule):
    """Notes the numbers of which its batches consist."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, batch_idx):
        self.seen += batch.tolist()
        return self.layer(batch.float().unsqueeze(1)).mean()

    def train_dataloader(self):
        return DataLoader(range(6), 6, shuffle=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("every", "order"),  # as Lightning 2.6.6 gives it for this very module
    [
        (1, [0, 1, 4, 3, 2, 5, 5, 4, 3, 1, 0, 2, 0, 4, 2, 1, 5, 3]),
        (2, [0, 1, 4, 3, 2, 5, 4, 2, 0, 5, 1, 3, 3, 5, 0, 2, 1, 4]),
    ],
)
def test_reloaded_data_are_shuffled_in_lightnings_order(every, order):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    run = hookbus.Trainer(max_epochs=3, reload_dataloaders_every_n_epochs=every, accelerator="cpu", **quiet)
    model = Noting()
    torch.manual_seed(1)
    run.fit(model)
    assert model.seen == order


@pytest.mark.parametrize(
    ("limit", "used"),
    [(1.0, 10), (3, 3), (50, 10), (0.5, 5), (0.29, 2), (0.1, 1), (0, 0), (0.0, 0), (1, 1)],
)
def test_a_limit_is_a_number_or_a_share(limit, used):
    assert training_loader(numbers(10), limit, overfit=False).num_batches == [used]
    assert evaluation_loaders("val", [numbers(10), numbers(20)], limit).num_batches[0] == used


def test_a_share_of_less_than_a_batch_is_refused_with_the_least_one():
    with pytest.raises(MisconfigurationException, match=r"0\.1 of 4 batch\(es\) is less than one.*at least 0\.25"):
        training_loader(numbers(4), 0.1, overfit=False)


def test_a_share_of_the_unknown_is_refused():
    with pytest.raises(MisconfigurationException, match=r"share of all batches.*does not know its length"):
        training_loader(DataLoader(Stream(4)), 0.5, overfit=False)


def test_a_number_limits_the_unknown():
    assert training_loader(DataLoader(Stream(4)), 3, overfit=False).num_batches == [3]
    assert training_loader(DataLoader(Stream(4)), 1.0, overfit=False).num_batches == [math.inf]


def test_an_empty_loader_is_said():
    with pytest.warns(UserWarning, match="val_dataloader is empty.*length 0"):
        assert evaluation_loaders("val", numbers(0), 1.0).num_batches == [0]


def test_something_that_is_no_iterable_is_refused():
    with pytest.raises(TypeError, match=r"train_dataloader must give an iterable of batches.*got int: 3"):
        training_loader(3, 1.0, overfit=False)
    with pytest.raises(TypeError, match="test_dataloader must give an iterable"):
        evaluation_loaders("test", [numbers(2), object()], 1.0)


def test_length_of_what_knows_it():
    assert length(numbers(7, batch_size=2)) == 4
    assert length(numbers(7, batch_size=2, drop_last=True)) == 3
    assert length([1, 2, 3]) == 3
    assert length(DataLoader(SizedStream(6), batch_size=2)) == 3
    assert length(DataLoader(Stream(6))) is None
    assert length(iter([1, 2])) is None


# -- walking -----------------------------------------------------------------------------------------------------------


def test_the_last_batch_is_marked():
    assert [last for _, last in batches([1, 2, 3], 3)] == [False, False, True]
    assert [(b, last) for b, last in batches([1, 2, 3], 2)] == [(1, False), (2, True)]
    assert list(batches([1, 2, 3], 0)) == []


def test_the_end_of_a_stream_is_known_one_batch_ahead():
    stream = Stream(3)
    walk = batches(stream, math.inf)
    assert next(walk)[1] is False
    assert stream.read == 2
    assert [last for _, last in walk] == [False, True]


def test_no_more_is_read_from_a_stream_than_the_limit():
    stream = Stream(10)
    assert [last for _, last in batches(stream, 3)] == [False, False, True]
    assert stream.read == 3


def test_an_empty_stream_gives_nothing():
    assert list(batches(Stream(0), math.inf)) == []


def test_a_loader_that_promised_too_much_is_told_so():
    class Boastful(list):
        def __len__(self):
            return 5

    with pytest.warns(UserWarning, match="Boastful promised 5 batches and ended after 2"):
        assert [b for b, _ in batches(Boastful([1, 2]), 5)] == [1, 2]


def test_an_iterator_is_made_once_per_walk():
    made = []

    class Counts:
        def __len__(self):
            return 2

        def __iter__(self):
            made.append(1)
            return iter([1, 2])

    list(batches(Counts(), 2))
    assert made == [1]


# -- collections -------------------------------------------------------------------------------------------------------


def test_a_collection_of_training_loaders_is_as_long_as_the_longest():
    loaders = training_loader({"a": numbers(2), "b": numbers(5)}, 1.0, overfit=False)
    assert loaders.num_batches == [5]
    assert set(next(loaders.loaders[0].batches())) == {"a", "b"}
    assert set(loaders.given) == {"a", "b"}


def test_a_combined_loader_is_taken_as_it_is():
    combined = CombinedLoader([numbers(2), numbers(5)], "min_size")
    assert training_loader(combined, 1.0, overfit=False).num_batches == [2]
    assert evaluation_loaders("val", combined, 1.0).num_batches == [2]


def test_evaluation_loaders_are_walked_one_after_the_other():
    nested = {"a": numbers(1), "b": [numbers(2), numbers(3)]}
    assert evaluation_loaders("val", nested, 1.0).num_batches == [1, 2, 3]
    assert evaluation_loaders("val", CombinedLoader(nested, "sequential"), 1.0).num_batches == [1, 2, 3]


# -- overfitting -------------------------------------------------------------------------------------------------------


def values(loader):
    return [float(v) for (batch,) in loader for v in batch]


def test_overfitting_takes_the_same_batches_in_order():
    with pytest.warns(UserWarning, match="train_dataloader in order.* its RandomSampler is not used"):
        loader = training_loader(numbers(6, batch_size=2, shuffle=True), 2, overfit=True).loaders[0]
    assert values(loader) == values(loader) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert loader.batch_size == 2


def test_overfitting_leaves_an_ordered_loader_alone():
    given = numbers(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training_loader(given, 2, overfit=True).loaders[0] is given


class Jumping(Sampler):
    """Every other sample."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(range(0, len(self.data), 2))

    def __len__(self):
        return len(self.data) // 2


class Named(DataLoader):
    """A loader of one's own."""


def test_overfitting_takes_the_samples_in_order_whatever_the_sampler_and_keeps_the_kind_of_loader():
    given = Named(TensorDataset(torch.arange(6).float()), batch_size=4, sampler=Jumping(range(6)), drop_last=True)
    with pytest.warns(UserWarning, match="val_dataloader in order.* its Jumping is not used"):
        loaders = evaluation_loaders("val", [given], 1.0, overfit=True)
    assert values(loaders.loaders[0]) == [0.0, 1.0, 2.0, 3.0]
    assert type(loaders.given[0]) is Named
    assert values(given) == []  # the loader that was given is as it was: three samples do not fill a batch


def test_the_loader_that_a_trainer_shows_is_the_one_in_order():
    with pytest.warns(UserWarning, match="RandomSampler"):
        loaders = training_loader(numbers(4, shuffle=True), 2, overfit=True)
    assert loaders.given is loaders.loaders[0]


def test_who_shuffles_the_data_of_an_evaluation_is_warned():
    with pytest.warns(PossibleUserWarning, match="val_dataloader shuffles its samples"):
        evaluation_loaders("val", [numbers(2), CombinedLoader([numbers(2, shuffle=True)])], 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluation_loaders("val", [numbers(2), Stream(3)], 1.0)


def test_overfitting_reaches_into_collections():
    with pytest.warns(UserWarning, match="RandomSampler is not used"):
        combined = training_loader({"a": numbers(6, shuffle=True)}, 2, overfit=True).loaders[0]
    first, second = ([float(b["a"][0]) for b in combined.batches()] for _ in range(2))
    assert first == second == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# -- epochs of samplers ------------------------------------------------------------------------------------------------


def test_samplers_are_told_the_epoch():
    told = []

    class Sampler(DistributedSampler):
        def set_epoch(self, epoch):
            told.append(epoch)

    data = TensorDataset(torch.arange(4))
    loader = DataLoader(data, sampler=Sampler(data, num_replicas=1, rank=0))
    set_epoch(loader, 3)
    set_epoch(CombinedLoader([loader, numbers(2)]), 4)
    assert told == [3, 4]


def test_a_list_may_be_a_sampler():
    set_epoch(DataLoader(range(3), sampler=[2, 0]), 1)  # as torch has it, any iterable may


def test_each_epoch_of_a_fit_is_told():
    told = []

    class Sampler(DistributedSampler):
        def set_epoch(self, epoch):
            told.append(epoch)

    class Module(hookbus.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return self.net(batch[0].unsqueeze(1)).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = TensorDataset(torch.arange(4).float())
    trainer = hookbus.Trainer(
        max_epochs=3, logger=False, enable_progress_bar=False, enable_checkpointing=False, accelerator="cpu"
    )
    trainer.fit(Module(), DataLoader(data, sampler=Sampler(data, num_replicas=1, rank=0)))
    assert told == [0, 1, 2]
