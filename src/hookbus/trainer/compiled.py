"""``torch.compile(module)`` passed to a Trainer: what was compiled is ``forward``; a trainer calls the steps.

So the steps are compiled in the same way, and the module itself is trained, as Lightning does it
(``lightning.pytorch.utilities.compile``). Hooks are called outside of the compiled code.
"""

from __future__ import annotations

from typing import Any

#: What a trainer calls on a module to compute.
_COMPUTE = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def is_compiled(model: Any) -> bool:
    """Whether ``model`` is what ``torch.compile`` makes of a module."""
    return "_orig_mod" in getattr(model, "_modules", ()) and hasattr(model, "dynamo_ctx")


def from_compiled(model: Any) -> Any:
    """The module in ``model``, with compiled methods in place of those that compute; once only.

    Args:
        model: what ``torch.compile`` made of a LightningModule.
    """
    module = model._orig_mod
    if getattr(module, "_compiler_ctx", None) is None:
        originals = {name: getattr(module, name) for name in _COMPUTE if getattr(module, name, None) is not None}
        for name, method in originals.items():
            setattr(module, name, model.dynamo_ctx(method))
        module._compiler_ctx = {f"original_{name}": method for name, method in originals.items()}
    return module


def to_uncompiled(model: Any) -> Any:
    """The module with its own methods again.

    Args:
        model: a module that :func:`from_compiled` gave, or what ``torch.compile`` made.

    Raises:
        ValueError: it is neither.
    """
    module = model._orig_mod if is_compiled(model) else model
    if getattr(module, "_compiler_ctx", None) is None:
        raise ValueError(f"to_uncompiled needs a compiled module, got a {type(model).__name__} that is not compiled")
    for name in _COMPUTE:
        vars(module).pop(name, None)
    module._compiler_ctx = None
    return module
