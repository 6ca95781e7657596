"""The data module: where batches come from, apart from the module that is trained on them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hookbus.hparams import HyperparametersMixin
from hookbus.module_hooks import DataHooks
from hookbus.reload import class_only, constructor_arguments, hparams_from_file, read_checkpoint

if TYPE_CHECKING:
    from typing_extensions import Self


class LightningDataModule(DataHooks, HyperparametersMixin):
    """Downloads, splits and loads data. Override ``prepare_data``, ``setup`` and the dataloaders.

    Attributes:
        name: a name of your choice.
        trainer: the trainer to which it is attached, None before.
        prepare_data_per_node, allow_zero_length_dataloader_with_multiple_devices: see :class:`DataHooks`.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> import hookbus
        >>> class Ones(hookbus.LightningDataModule):
        ...     def train_dataloader(self):
        ...         return DataLoader(torch.ones(8, 2), batch_size=4)
        >>> len(Ones().train_dataloader())
        2
    """

    name: str | None = None
    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "datamodule_hparams_type"
    trainer: Any = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should keep of this data module."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""

    def on_exception(self, exception: BaseException) -> None:
        """When a run is left by an exception."""

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        val_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        test_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        predict_dataset: Dataset[Any] | Iterable[Dataset[Any]] | None = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> LightningDataModule:
        """A data module that loads the given datasets; only training data are shuffled.

        Args:
            train_dataset: a dataset, or a sequence or mapping of datasets; likewise the three below.
            val_dataset: see above.
            test_dataset: see above.
            predict_dataset: see above.
            batch_size: samples per batch.
            num_workers: worker processes of each loader.
            **datamodule_kwargs: for the constructor of this class.
        """

        accepted = inspect.signature(cls.__init__).parameters
        for name, value in (("batch_size", batch_size), ("num_workers", num_workers)):
            if name in accepted:
                datamodule_kwargs.setdefault(name, value)
        made = cls(**datamodule_kwargs)
        options = {"batch_size": batch_size, "num_workers": num_workers, "pin_memory": torch.cuda.is_available()}
        given = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}
        for prefix, datasets in given.items():
            if datasets is not None:
                make = functools.partial(_loaders, datasets, shuffle=prefix == "train", **options)
                setattr(made, f"{prefix}_dataloader", make)
        return made

    @class_only
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str] | IO[bytes],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A data module made again from the hyper-parameters and the state in a checkpoint.

        Args:
            checkpoint_path: a file that a Trainer of hookbus or Lightning wrote, or such a file opened for reading.
            map_location: where tensors go, as in ``torch.load``.
            hparams_file: a ``.yaml`` or ``.csv`` file whose hyper-parameters take the place of those in the checkpoint.
            weights_only: refuse to unpickle anything but tensors and plain data; None means True.
            **kwargs: arguments of the constructor that win over saved ones.
        """
        checkpoint = read_checkpoint(checkpoint_path, map_location, weights_only)
        if hparams_file is not None:
            checkpoint[cls.CHECKPOINT_HYPER_PARAMS_KEY] = hparams_from_file(hparams_file)
        saved = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
        made = cls(**constructor_arguments(cls, saved, checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME), kwargs))
        if cls.__qualname__ in checkpoint:
            made.load_state_dict(checkpoint[cls.__qualname__])
        return made


def _loaders(datasets: Any, *, shuffle: bool, **options: Any) -> Any:
    """A loader for a dataset; for a sequence or mapping of datasets, one for each."""
    if isinstance(datasets, Mapping):
        return {key: _loaders(dataset, shuffle=shuffle, **options) for key, dataset in datasets.items()}
    if isinstance(datasets, (list, tuple)):
        return [_loaders(dataset, shuffle=shuffle, **options) for dataset in datasets]
    return DataLoader(datasets, shuffle=shuffle and not isinstance(datasets, IterableDataset), **options)


DataModule = LightningDataModule
