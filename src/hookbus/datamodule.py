"""The data module: where batches come from, apart from the module that is trained on them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hookbus.hparams import HyperparametersMixin, arguments_for
from hookbus.module_hooks import DataHooks

if TYPE_CHECKING:
    from typing_extensions import Self


class LightningDataModule(DataHooks, HyperparametersMixin):
    """Downloads, splits and loads data. Override ``prepare_data``, ``setup`` and the dataloaders.

    Attributes:
        name: a name of your choice.
        trainer: the trainer to which it is attached, None before.
        prepare_data_per_node: whether ``prepare_data`` runs once per node (else once in all).
        allow_zero_length_dataloader_with_multiple_devices: Lightning's; without effect on one device.

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
    prepare_data_per_node = True
    allow_zero_length_dataloader_with_multiple_devices = False

    def __init__(self) -> None:
        self.trainer: Any = None

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

        def loader(dataset: Any, shuffle: bool) -> DataLoader[Any]:
            shuffle = shuffle and not isinstance(dataset, IterableDataset)
            return DataLoader(
                dataset, batch_size=batch_size, shuffle=shuffle, num_workers=num_workers, pin_memory=False
            )

        def loaders(datasets: Any, shuffle: bool) -> Any:
            if isinstance(datasets, Mapping):
                return {key: loader(dataset, shuffle) for key, dataset in datasets.items()}
            if isinstance(datasets, (list, tuple)):
                return [loader(dataset, shuffle) for dataset in datasets]
            return loader(datasets, shuffle)

        made = cls(**datamodule_kwargs)
        given = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}
        for prefix, datasets in given.items():
            if datasets is not None:
                shuffle = prefix == "train"
                setattr(
                    made, f"{prefix}_dataloader", lambda datasets=datasets, shuffle=shuffle: loaders(datasets, shuffle)
                )
        return made

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: Any = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A data module made again from the hyper-parameters and the state in a checkpoint.

        Args:
            checkpoint_path: the file.
            map_location: where tensors go, as in ``torch.load``.
            hparams_file: not supported.
            weights_only: refuse to unpickle anything but tensors and plain data; None means True.
            **kwargs: arguments that win over saved ones.
        """
        if hparams_file is not None:
            raise TypeError("hparams_file is not supported: pass the hyper-parameters as keyword arguments")
        checkpoint = torch.load(checkpoint_path, map_location=map_location, weights_only=weights_only is not False)
        saved = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
        made = cls(**arguments_for(cls, saved, checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME), kwargs))
        if cls.__qualname__ in checkpoint:
            made.load_state_dict(checkpoint[cls.__qualname__])
        return made


DataModule = LightningDataModule
