"""Record the constructors of Lightning's callbacks and the keys of their states, as the tests here compare with them.

Run it with an environment that has Lightning 2.6, from the top of the repository::

    python -m tests.callbacks.data.record_signatures
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any


def parameters_of(kind: Any) -> list[list[str | None]]:
    """Name, kind and default of each parameter of the constructor; the default as text, None for none."""
    return [
        [p.name, p.kind.name, None if p.default is inspect.Parameter.empty else text_of(p.default)]
        for p in inspect.signature(kind).parameters.values()
    ]


def text_of(default: Any) -> str:
    """A default as text that does not depend on where in memory it is."""
    return f"function {default.__name__}" if inspect.isfunction(default) else repr(default)


def state_keys(callbacks: Any, folder: str) -> dict[str, str]:
    """Keys of some instances."""
    made = {
        "EarlyStopping": callbacks.EarlyStopping("v", mode="max", patience=7),
        "ModelCheckpoint": callbacks.ModelCheckpoint(folder, monitor="v", every_n_train_steps=5),
        "ModelCheckpoint, plain": callbacks.ModelCheckpoint(),
        "Timer": callbacks.Timer(),
        "BackboneFinetuning": callbacks.BackboneFinetuning(),
        "StochasticWeightAveraging": callbacks.StochasticWeightAveraging(0.1),
        "WeightAveraging": callbacks.WeightAveraging(),
        "EMAWeightAveraging": callbacks.EMAWeightAveraging(),
        "ModelPruning": callbacks.ModelPruning("l1_unstructured"),
        "LearningRateMonitor": callbacks.LearningRateMonitor(),
        "SpikeDetection": callbacks.SpikeDetection(),
    }
    return {name: callback.state_key for name, callback in made.items()}


def main() -> None:
    callbacks = importlib.import_module("lightning.pytorch.callbacks")
    data = {
        "signatures": {name: parameters_of(getattr(callbacks, name)) for name in sorted(callbacks.__all__)},
        "modules": {
            name: importlib.import_module(getattr(callbacks, name).__module__).__name__
            for name in sorted(callbacks.__all__)
        },
        "state_keys": state_keys(callbacks, "folder"),
    }
    path = Path(__file__).parent / "signatures.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
