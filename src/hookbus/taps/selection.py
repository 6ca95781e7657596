"""Which modules, when, and how: everything that a subscription says besides what is to be done."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from torch import nn

from hookbus.markers import PHASES, HookimplOptions

if TYPE_CHECKING:
    from hookbus.taps.event import Moment

#: One module: by name, by pattern, or the very object.
Which: TypeAlias = "str | re.Pattern[str] | nn.Module"


@dataclass(frozen=True)
class Selection:
    """Where in the network, how often, and by which rules.

    A plugin whose selection is known only when it is made has one as its attribute ``tap_selection``; it takes the place
    of the options of all its marks.

    Attributes:
        modules: names, patterns (``*`` is one part of a dotted name, ``**`` any number of parts), compiled regular
            expressions (searched for), or module objects; None for all modules.
        types: their classes; subclasses count.
        where: asked with name and module; truth selects.
        every: at every N-th step: the N-th, the 2N-th, … In training steps are optimiser steps, and all batches of an
            accumulation window belong to one; in an evaluation they are batches.
        at: at these steps only, counted from 1.
        once: at the first step that the others allow, and never again.
        phases: some of :data:`hookbus.markers.PHASES`; None for all.
        ranks: processes by global rank; None for all.
        micro: which batches of an accumulation window: ``all``, the ``first``, or the ``last``.
        recompute: whether forward passes that activation checkpointing repeats during backward count, too.
        edits: whether what is returned takes the place of what was given.
        allow_shape_change: whether an edit may change structure, shapes, dtypes and devices.
        on_missing: what to do if no module matches: ``error``, ``warn`` or ``ignore``; for all but ``ignore`` it is also
            said after the first step if none of the modules was called.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is out of range.
    """

    modules: Which | Collection[Which] | None = None
    types: type | tuple[type, ...] | None = None
    where: Callable[[str, nn.Module], object] | None = None
    every: int | None = None
    at: frozenset[int] | None = None
    once: bool = False
    phases: frozenset[str] | None = None
    ranks: frozenset[int] | None = None
    micro: Literal["all", "first", "last"] = "all"
    recompute: bool = False
    edits: bool = False
    allow_shape_change: bool = False
    on_missing: Literal["error", "warn", "ignore"] = "warn"

    def __post_init__(self) -> None:
        self._check_types()
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be a number of steps of at least 1, got {self.every}")
        if self.at is not None and (not self.at or min(self.at) < 1):
            raise ValueError(f"at must name steps counted from 1, got {sorted(self.at)}")
        if self.phases is not None and not self.phases <= set(PHASES):
            raise ValueError(f"phases must be some of {', '.join(PHASES)}; got {sorted(self.phases)}")
        for name, words in (("micro", ("all", "first", "last")), ("on_missing", ("error", "warn", "ignore"))):
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}; got {getattr(self, name)!r}")

    def _check_types(self) -> None:
        kinds = (self.types,) if self.types is not None and not isinstance(self.types, tuple) else self.types or ()
        for kind in kinds:
            if not isinstance(kind, type):
                raise TypeError(f"types must be classes, such as torch.nn.Linear, got {kind!r} ({type(kind).__name__})")
        wrong = next((which for which in self.wanted if not isinstance(which, (str, re.Pattern, nn.Module))), None)
        if wrong is not None:
            raise TypeError(
                "modules must be names, patterns, compiled regular expressions or module objects, got "
                f"{wrong!r} ({type(wrong).__name__})" + ("; classes go to types=…" if isinstance(wrong, type) else "")
            )
        if self.where is not None and not callable(self.where):
            raise TypeError(f"where must be a function of name and module, got {self.where!r}")
        numbers = {"every": () if self.every is None else (self.every,), "at": self.at or (), "ranks": self.ranks or ()}
        for name, values in numbers.items():
            for value in values:
                if not isinstance(value, Integral) or isinstance(value, bool):
                    raise TypeError(f"{name} must be given as int, got {value!r} ({type(value).__name__})")

    @classmethod
    def of(cls, options: HookimplOptions) -> Selection:
        """What the options of a mark say."""
        return cls(
            modules=options.get("modules"),
            types=options.get("types"),
            every=options.get("every"),
            at=options.get("at"),
            once=bool(options.get("once")),
            phases=options.get("phases"),
            ranks=frozenset([0]) if options.get("rank_zero") else None,
            edits=bool(options.get("edits")),
        )

    @property
    def wanted(self) -> tuple[Which, ...]:
        """The modules asked for, one by one; empty for all."""
        if self.modules is None:
            return ()
        several = isinstance(self.modules, Collection) and not isinstance(self.modules, (str, nn.Module))
        return tuple(cast("Collection[Which]", self.modules)) if several else (cast("Which", self.modules),)

    @property
    def scheduled(self) -> bool:
        """Whether there are steps at which it is not due."""
        return bool(
            self.every not in (None, 1) or self.at or self.once or self.phases or self.ranks or self.micro != "all"
        )

    def due(self, moment: Moment) -> bool:
        """Whether the step that begins is one of its own, ``once`` left aside."""
        if self.phases is not None and moment.phase not in self.phases:
            return False
        if self.ranks is not None and moment.rank not in self.ranks:
            return False
        if self.micro != "all" and not (moment.micro_step == 0 if self.micro == "first" else moment.last_micro):
            return False
        if self.every is not None and moment.number % self.every:
            return False
        return self.at is None or moment.number in self.at

    def __str__(self) -> str:
        words = [f"modules={', '.join(map(_word, self.wanted))}"] if self.modules is not None else []
        if self.types is not None:
            kinds = self.types if isinstance(self.types, tuple) else (self.types,)
            words.append("types=" + ", ".join(kind.__name__ for kind in kinds))
        if self.where is not None:
            words.append(f"where={getattr(self.where, '__name__', self.where)}")
        return " ".join(words) or "all modules"


def schedule(
    *,
    at: int | Collection[int] | None = None,
    phases: str | Collection[str] | None = None,
    ranks: int | Collection[int] | None = None,
    types: type | Collection[type] | None = None,
    **others: Any,
) -> Selection:
    """A selection from arguments as people write them: one value or several.

    Raises:
        TypeError, ValueError: as of :class:`Selection`.
    """
    return Selection(
        at=None if at is None else frozenset(_several(at)),
        phases=None if phases is None else frozenset(_several(phases)),
        ranks=None if ranks is None else frozenset(_several(ranks)),
        types=types if types is None or isinstance(types, type) else tuple(_several(types)),
        **others,
    )


def _several(given: Any) -> Iterable[Any]:
    """What was given, one by one; a word is one value."""
    return given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def _word(which: Which) -> str:
    if isinstance(which, str):
        return repr(which)
    return f"re.compile({which.pattern!r})" if isinstance(which, re.Pattern) else type(which).__name__
