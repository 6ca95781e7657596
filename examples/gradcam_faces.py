"""Where does a face detector look? Grad-CAM of a pretrained network on a real picture.

    pip install hookbus hookbus-gradcam scikit-image
    pip install --no-deps facenet-pytorch==2.6.0
    python examples/gradcam_faces.py

The networks are the three of MTCNN (Zhang et al., *Joint Face Detection and Alignment using Multitask Cascaded
Convolutional Networks*, IEEE Signal Processing Letters 23, 2016). Their weights are files in the wheel of facenet-pytorch;
nothing of its code is imported, which would need an old torch and torchvision. The picture is the astronaut of scikit-image.

The first network is convolutional throughout, so it takes a picture of any size and says for each place whether there is a
face. Its map should lie on the face, which is 6 % of the picture. Early layers see edges everywhere; the last one does.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import grid_sample, interpolate

try:
    from skimage.data import astronaut

    from hookbus_gradcam import Picture, class_activation_maps, draw
except ModuleNotFoundError as error:
    sys.exit(f"{error}; this example needs: pip install hookbus-gradcam scikit-image")

#: Where the face is in the picture of 512 x 512 pixels: top, left, bottom, right.
FACE = (60, 165, 200, 285)


class FaceNet(nn.Module):
    """A chain of named layers, the last one for *face or not*. The heads for boxes and landmarks are left out."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.chain = list(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.chain:
            layer = self.get_submodule(name)
            if isinstance(layer, nn.Linear) and x.ndim == 4:
                x = x.permute(0, 3, 2, 1).flatten(1)  # the weights come from a framework with another order
            x = layer(x)
        return x


def pnet() -> FaceNet:
    """Proposes faces: (N, 3, H, W) to scores for *none* and *face* at each place."""
    return _loaded(
        "pnet",
        conv1=nn.Conv2d(3, 10, 3),
        prelu1=nn.PReLU(10),
        pool1=_pool(2),
        conv2=nn.Conv2d(10, 16, 3),
        prelu2=nn.PReLU(16),
        conv3=nn.Conv2d(16, 32, 3),
        prelu3=nn.PReLU(32),
        conv4_1=nn.Conv2d(32, 2, 1),
    )


def rnet() -> FaceNet:
    """Refines: (N, 3, 24, 24) to (N, 2)."""
    return _loaded(
        "rnet",
        conv1=nn.Conv2d(3, 28, 3),
        prelu1=nn.PReLU(28),
        pool1=_pool(3),
        conv2=nn.Conv2d(28, 48, 3),
        prelu2=nn.PReLU(48),
        pool2=_pool(3),
        conv3=nn.Conv2d(48, 64, 2),
        prelu3=nn.PReLU(64),
        dense4=nn.Linear(576, 128),
        prelu4=nn.PReLU(128),
        dense5_1=nn.Linear(128, 2),
    )


def onet() -> FaceNet:
    """Decides: (N, 3, 48, 48) to (N, 2)."""
    return _loaded(
        "onet",
        conv1=nn.Conv2d(3, 32, 3),
        prelu1=nn.PReLU(32),
        pool1=_pool(3),
        conv2=nn.Conv2d(32, 64, 3),
        prelu2=nn.PReLU(64),
        pool2=_pool(3),
        conv3=nn.Conv2d(64, 64, 3),
        prelu3=nn.PReLU(64),
        pool3=_pool(2),
        conv4=nn.Conv2d(64, 128, 2),
        prelu4=nn.PReLU(128),
        dense5=nn.Linear(1152, 256),
        prelu5=nn.PReLU(256),
        dense6_1=nn.Linear(256, 2),
    )


def _pool(size: int) -> nn.MaxPool2d:
    return nn.MaxPool2d(size, stride=2, ceil_mode=True)


def _loaded(file: str, **layers: nn.Module) -> FaceNet:
    net = FaceNet(**layers)
    found = importlib.util.find_spec("facenet_pytorch")  # finds the folder without importing what is in it
    if found is None or not found.submodule_search_locations:
        sys.exit("the weights are missing; this example needs: pip install --no-deps facenet-pytorch==2.6.0")
    weights = torch.load(Path(found.submodule_search_locations[0]) / "data" / f"{file}.pt", weights_only=True)
    net.load_state_dict({name: tensor for name, tensor in weights.items() if name in net.state_dict()})
    return net.eval()


def scaled(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """A picture (3, H, W) of bytes in another size, with values as the networks want them: about -1 to 1."""
    small = interpolate(picture.float().unsqueeze(0), size, mode="area")
    return (small - 127.5) * 0.0078125


def face_score(scores: Tensor) -> Tensor:
    """How much of a face there is in a whole picture: from (2, h, w) to a number.

    A smooth maximum over all places, so that the place with the clearest face counts most.
    """
    return (scores[1] - scores[0]).flatten().logsumexp(dim=0)


def placed(cam: Tensor, net: FaceNet, layer: str, small: int, size: int) -> Tensor:
    """A map (h, w) of a layer as (size, size) over the picture, each value where its receptive field has its centre.

    The convolutions have no padding, so a map that was merely stretched to the picture's size would be shifted.
    """
    centre, jump = 0.0, 1  # of the first value, and from one to the next, in pixels of the small picture
    for name in net.chain[: net.chain.index(layer) + 1]:
        module = net.get_submodule(name)
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
            kernel, stride = (v[0] if isinstance(v, tuple) else v for v in (module.kernel_size, module.stride))
            centre += (kernel - 1) / 2 * jump
            jump *= stride
    pixels = (torch.arange(size) + 0.5) / size * small - 0.5
    places = [(2 * (pixels - centre) / jump + 1) / length - 1 for length in cam.shape]
    grid = torch.stack(torch.meshgrid(*places, indexing="ij")[::-1], dim=-1)
    return grid_sample(cam[None, None], grid[None], align_corners=False)[0, 0]


def share_in(cam: Tensor, box: tuple[int, int, int, int]) -> float:
    """The share of a map's mass that lies in a box."""
    top, left, bottom, right = box
    return float(cam[top:bottom, left:right].sum() / cam.sum())


def main(argv: Sequence[str] | None = None) -> float:
    """Draw the map; returns the share of it that lies on the face."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="runs/gradcam_faces", help="where the picture goes")
    options = parser.parse_args(argv)

    picture = torch.from_numpy(astronaut()).permute(2, 0, 1)
    top, left, bottom, right = FACE

    # First the two networks that look at one place: is this a face, and is that one?
    for name, net, size in (("RNet", rnet(), 24), ("ONet", onet(), 48)):
        with torch.no_grad():
            face, background = (
                net(scaled(crop, (size, size))).softmax(dim=1)[0, 1].item()
                for crop in (picture[:, top:bottom, left:right], picture[:, 30:170, 10:130])
            )
        print(f"{name}: face {face:.4f}, background {background:.4f}")

    # Then the one that looks at the whole picture, and where it sees the face.
    net, small, size = pnet(), 51, picture.shape[-1]
    found = class_activation_maps(
        net, scaled(picture, (small, small)), ["conv1", "prelu2", "prelu3"], targets=face_score
    )
    area = (bottom - top) * (right - left) / size**2
    shown, shares = [], {}
    for layer, maps in found.maps.items():
        cam = placed(maps[0], net, layer, small, size)
        shares[layer] = share_in(cam, FACE)
        shown.append(Picture(picture / 255, cam, f"{layer}: {shares[layer]:.0%}"))
        print(f"PNet, Grad-CAM at {layer}: {shares[layer]:.0%} of the map in the face box, {area:.0%} of the picture")

    path = Path(options.out) / "astronaut.png"
    draw(shown, path, "Grad-CAM of a face detector")
    print(f"picture: {path}")
    return shares["prelu3"]


if __name__ == "__main__":
    main()
