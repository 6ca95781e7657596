"""The entry point: a Trainer calls :func:`callbacks` and gets what the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus_gradcam import settings

if TYPE_CHECKING:
    from hookbus_gradcam.monitor import GradCamMonitor


def callbacks() -> list[GradCamMonitor]:
    """The callback of one Trainer; none with ``every = 0``.

    Raises:
        hookbus_gradcam.settings.SettingsError: a setting cannot be understood.
    """
    found = settings.read()
    if not found.every:
        return []
    from hookbus_gradcam.monitor import GradCamMonitor

    layers = [layer.strip() for layer in found.layers.split(",") if layer.strip()]
    return [
        GradCamMonitor(
            found.every,
            settings.samples_called(found.samples),
            layers or None,
            method=found.method,
            target=int(found.target) if found.target.isdecimal() else found.target,
            input=found.input,
            output=found.output,
            directory=found.directory or None,
            yields=True,
        )
    ]
