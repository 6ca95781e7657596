"""The six methods as functions: ``gradcam(model, images, "layer4")``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, overload

from torch import Tensor, nn

from hookbus_gradcam.maps import Layer, LayerError, class_activation_maps
from hookbus_gradcam.methods import METHODS
from hookbus_gradcam.targets import Targets


class Method:
    """One method as a function of model, inputs and layers.

    Args:
        name: one of :data:`hookbus_gradcam.methods.METHODS`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = name
        self.__doc__ = METHODS[name].__doc__

    @overload
    def __call__(
        self, model: nn.Module, inputs: Any, layers: Layer, targets: Targets = None, **options: Any
    ) -> Tensor: ...

    @overload
    def __call__(
        self, model: nn.Module, inputs: Any, layers: Sequence[Layer], targets: Targets = None, **options: Any
    ) -> dict[str, Tensor]: ...

    def __call__(
        self, model: nn.Module, inputs: Any, layers: Layer | Sequence[Layer], targets: Targets = None, **options: Any
    ) -> Tensor | dict[str, Tensor]:
        """The maps of shape (N, …): of a single layer, or a dict of them for a list of layers.

        Args:
            model, inputs, layers, targets, **options: see :func:`hookbus_gradcam.class_activation_maps`.

        Raises:
            LayerError: a single pattern stands for several layers; and what is raised there.
        """
        found = class_activation_maps(model, inputs, layers, method=self.name, targets=targets, **options).maps
        if not isinstance(layers, (str, re.Pattern, nn.Module)):
            return found
        if len(found) > 1:
            raise LayerError(
                f"{layers!r} stands for several layers, {', '.join(found)}; put it in a list for maps of all"
            )
        return next(iter(found.values()))

    def __repr__(self) -> str:
        return f"<method {self.name}>"


gradcam = Method("gradcam")
gradcam_plus_plus = Method("gradcam++")
xgradcam = Method("xgradcam")
hirescam = Method("hirescam")
layercam = Method("layercam")
elementwise = Method("elementwise")
