"""The attribute that a finder tunes: a learning rate or a batch size, wherever module and data module keep it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from hookbus.errors import MissingFieldError


class TunedAttribute:
    """One name, in the module, its hyper-parameters, the data module and its hyper-parameters.

    Args:
        trainer: knows the module and the data module.
        name: the attribute's name.

    Raises:
        MissingFieldError: nobody has it.
    """

    def __init__(self, trainer: Any, name: str) -> None:
        self.name = name
        self._holders = list(_holders(trainer, name))
        if not self._holders:
            raise MissingFieldError(
                f"there is no {name!r} to tune: neither {type(trainer.lightning_module).__name__} nor its hparams, nor the "
                f"datamodule has such a field; set self.{name} in __init__ and use it, or name another one"
            )

    @property
    def value(self) -> Any:
        """The present value, of the first holder."""
        holder = self._holders[0]
        return holder[self.name] if isinstance(holder, MutableMapping) else getattr(holder, self.name)

    @value.setter
    def value(self, value: Any) -> None:
        for holder in self._holders:
            if isinstance(holder, MutableMapping):
                holder[self.name] = value
            else:
                setattr(holder, self.name, value)


def has_attribute(trainer: Any, name: str) -> bool:
    """Whether anybody has an attribute of this name to tune."""
    return next(_holders(trainer, name), None) is not None


def _holders(trainer: Any, name: str) -> Iterator[Any]:
    for owner in (trainer.lightning_module, trainer.datamodule):
        if owner is None:
            continue
        hparams = getattr(owner, "hparams", None)
        if hasattr(owner, name):
            yield owner
        if isinstance(hparams, MutableMapping):
            if name in hparams:
                yield hparams
        elif hparams is not None and hasattr(hparams, name):
            yield hparams
