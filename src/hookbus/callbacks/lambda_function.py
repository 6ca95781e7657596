"""``LambdaCallback``: a callback made of functions, for what is not worth a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from hookbus.callback import CALLBACK_HOOKS, Callback
from hookbus.hookspecs import nearest


class LambdaCallback(Callback):
    """Calls functions at hooks.

    Args:
        **hooks: a function for each hook that a :class:`~hookbus.Callback` has, by its name; it is given what the method
            of that name would get. None for a hook counts as absent.

    Raises:
        TypeError: there is no such hook, or something that is no function was given.

    Example:
        >>> from hookbus.callbacks import LambdaCallback
        >>> callback = LambdaCallback(
        ...     on_train_epoch_end=lambda trainer, module: print("epoch", trainer.current_epoch, "is over")
        ... )
    """

    role: ClassVar[str] = "mutator"  # what the functions do is not known

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        super().__init__()
        for name, function in hooks.items():
            if name not in CALLBACK_HOOKS:
                guess = nearest(name, CALLBACK_HOOKS)
                raise TypeError(
                    f"LambdaCallback: callbacks have no hook {name!r}" + (f"; did you mean {guess!r}?" if guess else "")
                )
            if function is not None:
                if not callable(function):
                    raise TypeError(f"LambdaCallback: {name} must be a function, got {function!r}")
                setattr(self, name, function)

    # What editors and inspect.signature show: all the hooks there are, from the one place that lists them.
    __signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in CALLBACK_HOOKS]
    )
