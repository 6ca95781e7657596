"""Where a network looks: class activation maps (Grad-CAM and five relatives), as functions and as a plugin for hookbus.

Once installed, the plugin draws maps of some validation samples while a network trains (:class:`GradCamMonitor`);
``-p no:gradcam`` leaves it out. The functions need no Trainer: ``gradcam(model, images, "layer4", targets=281)``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus_gradcam.functions import elementwise, gradcam, gradcam_plus_plus, hirescam, layercam, xgradcam
    from hookbus_gradcam.images import Picture, draw, normalised, resized
    from hookbus_gradcam.maps import ClassActivationMaps, LayerError, class_activation_maps, last_convolution, tokens
    from hookbus_gradcam.methods import METHODS
    from hookbus_gradcam.monitor import GradCamMonitor

#: Where each public name lives; loaded at its first use, for torch is not needed to list plugins.
_HOMES = {
    "METHODS": "methods",
    "ClassActivationMaps": "maps",
    "GradCamMonitor": "monitor",
    "LayerError": "maps",
    "Picture": "images",
    "class_activation_maps": "maps",
    "draw": "images",
    "elementwise": "functions",
    "gradcam": "functions",
    "gradcam_plus_plus": "functions",
    "hirescam": "functions",
    "last_convolution": "maps",
    "layercam": "functions",
    "normalised": "images",
    "resized": "images",
    "tokens": "maps",
    "xgradcam": "functions",
}

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "ClassActivationMaps",
    "GradCamMonitor",
    "LayerError",
    "Picture",
    "class_activation_maps",
    "draw",
    "elementwise",
    "gradcam",
    "gradcam_plus_plus",
    "hirescam",
    "last_convolution",
    "layercam",
    "normalised",
    "resized",
    "tokens",
    "xgradcam",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hookbus_gradcam' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hookbus_gradcam.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
