"""What is recorded: each scenario is a function of a bench, under the name of its family and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.trainer.order.bench import Bench

Scenario = Callable[[Bench], None]

FAMILIES = (
    "frames",
    "batches",
    "limits",
    "validation",
    "stopping",
    "optimizing",
    "schedulers",
    "callbacks",
    "failing",
    "resuming",
)


def scenarios(family: str) -> dict[str, Scenario]:
    """The scenarios of one family, by name."""
    found: dict[str, Scenario] = import_module(f"tests.trainer.order.scenarios.{family}").SCENARIOS
    return found


class Register(dict[str, Scenario]):
    """The scenarios of one file; used as a decorator, or with options only where nothing special happens."""

    def __call__(self, scenario: Scenario) -> Scenario:
        assert scenario.__name__ not in self, scenario.__name__
        self[scenario.__name__] = scenario
        return scenario

    def fit(self, name: str, trainer: dict[str, Any] | None = None, **module: Any) -> None:
        """A scenario that fits a module.

        Args:
            name: of the scenario.
            trainer: options of the trainer.
            **module: options of the module.
        """

        def scenario(bench: Bench) -> None:
            bench.trainer(**(trainer or {}))
            bench.fit(bench.module(**module))

        scenario.__name__ = name
        self(scenario)
