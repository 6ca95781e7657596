"""Questions about objects that packages written for Lightning ask through its helpers."""

from __future__ import annotations

import inspect
import pickle
import types
from typing import Any

from hookbus.callback import Callback
from hookbus.datamodule import LightningDataModule
from hookbus.module import LightningModule


def is_overridden(method_name: str, instance: object | None = None, parent: type | None = None) -> bool:
    """Whether ``instance`` brings its own ``method_name``, on its class or as an attribute.

    Args:
        method_name: the method.
        instance: the object; for None the answer is False.
        parent: the class whose method it would have overridden; None finds it among hookbus's own.

    Raises:
        ValueError: ``parent`` is None, and the object derives from none of hookbus's classes.
    """
    if instance is None:
        return False
    if parent is None:
        bases = (LightningModule, LightningDataModule, Callback)
        parent = next((base for base in bases if isinstance(instance, base)), None)
        if parent is None:
            raise ValueError(
                f"is_overridden({method_name!r}, …): {type(instance).__name__} derives from no LightningModule, "
                "LightningDataModule or Callback; pass parent="
            )
    own, original = getattr(instance, method_name, None), getattr(parent, method_name, None)
    if own is None or original is None:
        return False
    own = inspect.unwrap(own, stop=lambda f: isinstance(f, types.MethodType))
    return getattr(own, "__func__", own) is not getattr(original, "__func__", original)


def is_picklable(value: object) -> bool:
    """Whether ``pickle.dumps`` takes it."""
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - objects raise whatever they like in __reduce__
        return False
    return True


def get_init_args(frame: types.FrameType) -> dict[str, Any]:
    """The arguments with which the ``__init__`` that runs in ``frame`` was called, without ``self``; {} elsewhere."""
    if "__class__" not in frame.f_locals:
        return {}
    values = inspect.getargvalues(frame)
    found = {name: values.locals[name] for name in values.args[1:]}
    if values.keywords:
        found.update(values.locals[values.keywords])
    return found


def lightning_hasattr(model: Any, attribute: str) -> bool:
    """Whether the module, its hyper-parameters or its data module has ``attribute``."""
    return bool(_holders(model, attribute))


def lightning_getattr(model: Any, attribute: str) -> Any:
    """Its value there; the data module's goes before the hyper-parameters', and these before the module's."""
    return _read(_holder(model, attribute), attribute)


def lightning_setattr(model: Any, attribute: str, value: Any) -> None:
    """Set it in every place that has it."""
    _holder(model, attribute)
    for holder in _holders(model, attribute):
        if isinstance(holder, dict):
            holder[attribute] = value
        else:
            setattr(holder, attribute, value)


def _holders(model: Any, attribute: str) -> list[Any]:
    trainer = getattr(model, "_trainer", None)
    datamodule = None if trainer is None else trainer.datamodule
    found = [model] if hasattr(model, attribute) else []
    if attribute in getattr(model, "hparams", {}):
        found.append(model.hparams)
    if datamodule is not None and hasattr(datamodule, attribute):
        found.append(datamodule)
    if datamodule is not None and attribute in getattr(datamodule, "hparams", {}):
        found.append(datamodule.hparams)
    return found


def _holder(model: Any, attribute: str) -> Any:
    holders = _holders(model, attribute)
    if not holders:
        raise AttributeError(
            f"neither {type(model).__name__} nor its hyper-parameters or data module has {attribute!r}"
        )
    return holders[-1]


def _read(holder: Any, attribute: str) -> Any:
    return holder[attribute] if isinstance(holder, dict) else getattr(holder, attribute)
