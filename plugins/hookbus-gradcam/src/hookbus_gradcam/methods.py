"""The formulas: from a layer's activations and the gradients of the score at them to one map per sample.

All of them take activations ``A`` and gradients ``G`` of one shape (N, K, …): N samples, K channels, any number of spatial
dimensions. They give maps of shape (N, …), before the final ReLU, which cuts off what speaks against the class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor

#: What keeps quotients finite where a channel is silent.
GRADCAM_PLUS_PLUS_EPSILON: Final = 1e-6
XGRADCAM_EPSILON: Final = 1e-7


def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM: channels weighted by the mean of their gradients over space.

    Selvaraju et al., *Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization*, ICCV 2017,
    equations 1 and 2.
    """
    weights = _over_space(gradients.mean, activations)
    return (weights * activations).sum(dim=1)


def gradcam_plus_plus(activations: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM++: channels weighted by a weighted sum of their positive gradients, which does better with several objects.

    Chattopadhay et al., *Grad-CAM++: Generalized Gradient-based Visual Explanations for Deep Convolutional Networks*,
    WACV 2018, equation 19; as there, the score stands for the logarithm of what is explained, so that its second
    and third derivative are powers of the first one.
    """
    squared = gradients.square()
    total = _over_space(activations.sum, activations)
    alpha = squared / (2 * squared + total * squared * gradients + GRADCAM_PLUS_PLUS_EPSILON)
    alpha = alpha.where(gradients != 0, 0)
    weights = _over_space((gradients.clamp(min=0) * alpha).sum, activations)
    return (weights * activations).sum(dim=1)


def xgradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """XGrad-CAM: channels weighted by the mean of their gradients, each place counting as much as it is active.

    Fu et al., *Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs*, BMVC 2020.
    """
    total = _over_space(activations.sum, activations)
    weights = _over_space((gradients * activations).sum, activations) / (total + XGRADCAM_EPSILON)
    return (weights * activations).sum(dim=1)


def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """HiResCAM: gradient times activation, place by place, which shows nothing that the score does not depend on.

    Draelos & Carin, *Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks*,
    arXiv:2011.08891, 2020.
    """
    return (gradients * activations).sum(dim=1)


def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """LayerCAM: positive gradient times activation, place by place, which serves early layers as well.

    Jiang et al., *LayerCAM: Exploring Hierarchical Class Activation Maps for Localization*, IEEE Transactions on Image
    Processing 30, 2021.
    """
    return (gradients.clamp(min=0) * activations).sum(dim=1)


def elementwise(activations: Tensor, gradients: Tensor) -> Tensor:
    """Elementwise Grad-CAM: the positive ones among the products of gradient and activation.

    As LayerCAM where activations are positive, after a ReLU. The name is that of pytorch-grad-cam's ``GradCAMElementWise``.
    """
    return (gradients * activations).clamp(min=0).sum(dim=1)


#: The methods by the names that functions, settings and the command line take.
METHODS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "gradcam": gradcam,
    "gradcam++": gradcam_plus_plus,
    "xgradcam": xgradcam,
    "hirescam": hirescam,
    "layercam": layercam,
    "elementwise": elementwise,
}


def method_called(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The method of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def _over_space(reduce: Callable[..., Tensor], like: Tensor) -> Tensor:
    """A reduction over all dimensions but the first two, which keeps them with size 1."""
    return reduce(dim=tuple(range(2, like.ndim)), keepdim=True)
