"""``hookbus gradcam``: maps of one picture, from the shell. Imports torch only once the arguments make sense."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hookbus.cli.output import say
from hookbus.cli.parser import Parser, UsageError, plugin_words
from hookbus_gradcam.weights import in_a_line, load_weights

if TYPE_CHECKING:
    import argparse

    from torch import Tensor, nn

_DESCRIPTION = """\
Draw where a network looks in a picture: a class activation map over it, as PNG.

  hookbus gradcam --model mypackage.nets:make_net --weights net.pt --input cat.png --layer layer4
  hookbus gradcam --model torchvision.models:resnet18 --input cat.png --size 224x224 \\
      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --target 281

The model is a module, or a function or class that makes one without arguments. It may return a pair, the module and a
function from a PIL image to a tensor (C, H, W), which then takes the place of --size, --mean and --std."""

_METHODS = ("gradcam", "gradcam++", "xgradcam", "hirescam", "layercam", "elementwise")


def gradcam(arguments: Sequence[str], early: Sequence[str]) -> int:
    """Carry out the command.

    Returns:
        0 when the maps are drawn.

    Raises:
        UsageError: arguments that make no sense, with what is wrong.
    """
    parser = _parser()
    options = parser.parse_args(list(arguments))
    if plugin_words(early, options):
        parser.error("-p has no meaning here: no Trainer runs, so no plugin takes part")
    size, mean, std = _size(options.size), _numbers("--mean", options.mean), _numbers("--std", options.std)
    if not os.path.isfile(options.input):
        raise UsageError(f"there is no picture {options.input!r}")
    model, transform = _model(options.model)
    if options.weights:
        load_weights(model, options.weights)
    image = _opened(options.input)
    if transform is not None:
        given = _transformed(transform, image, options.model)
    else:
        given = _as_tensor(image, _channels(model), size, mean, std)
    return _draw(model, given, options)


def _parser() -> Parser:
    parser = Parser("gradcam", _DESCRIPTION)
    parser.add_argument("--model", required=True, metavar="pkg.mod:NAME", help="where the model is, or what makes it")
    parser.add_argument("--input", required=True, metavar="PICTURE", help="a picture file")
    parser.add_argument(
        "--layer", action="append", metavar="NAME", help="a layer; may be repeated; by default the last convolution"
    )
    parser.add_argument("--method", choices=_METHODS, default="gradcam", help="gradcam is the default")
    parser.add_argument(
        "--target", type=int, metavar="CLASS", help="the class to explain; by default the predicted one"
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="a state dict, or a checkpoint that holds one as 'state_dict'"
    )
    parser.add_argument("--output", metavar="KEY", default="", help="where in the model's output the class scores are")
    parser.add_argument("--size", metavar="HxW", help="the size to which the picture is brought")
    parser.add_argument("--mean", metavar="M,…", help="what is subtracted from each channel, after 0 to 1")
    parser.add_argument("--std", metavar="S,…", help="what each channel is divided by then")
    parser.add_argument("--out", metavar="FILE", default="gradcam.png", help="gradcam.png is the default")
    return parser


def _draw(model: nn.Module, given: Tensor, options: argparse.Namespace) -> int:
    from hookbus.taps import SelectionError
    from hookbus_gradcam.batches import class_scores
    from hookbus_gradcam.images import Picture, draw
    from hookbus_gradcam.maps import class_activation_maps, last_convolution

    batch = given.unsqueeze(0)

    def forward(model: nn.Module, inputs: Tensor) -> Any:
        try:
            return model(inputs)
        except Exception as error:
            raise UsageError(
                f"--model: {options.model} raised {in_a_line(error)} when it was called with {options.input}, a tensor of "
                f"shape {tuple(inputs.shape)}; --size brings the picture to the size that the model expects, and a "
                "transform that comes with the model to any other form"
            ) from error

    try:
        layers = options.layer or [last_convolution(model, batch, forward=forward)]
        if layers == [None]:
            raise UsageError("there is no convolution in the model; name a layer with --layer")
        found = class_activation_maps(
            model,
            batch,
            layers,
            method=options.method,
            targets=options.target,
            call=-1,
            output=lambda output: class_scores(output, options.output),
            forward=forward,
        )
    except (SelectionError, ValueError) as error:
        raise UsageError(str(error)) from error
    except RuntimeError as error:
        raise UsageError(
            f"--model: the backward pass of {options.model} raised {in_a_line(error)}; a map needs gradients from the scores "
            "to the layer"
        ) from error
    pictures = [Picture(given, maps[0], f"{name}, class {found.classes[0]}") for name, maps in found.maps.items()]
    try:
        draw(pictures, options.out, f"{options.method} of {os.path.basename(options.input)}")
    except ValueError as error:
        raise UsageError(f"--layer: {error}; choose another layer") from error
    except OSError as error:
        raise UsageError(
            f"--out: {options.out} cannot be written: {error.strerror or error}; name another file"
        ) from error
    say(f"class {found.classes[0]}, score {found.scores.item():.4g}; {', '.join(found.maps)}; written to {options.out}")
    return 0


def _model(path: str) -> tuple[nn.Module, Callable[[Any], Any] | None]:
    """The module, and the transform that came with it."""
    module_path, _, name = path.partition(":")
    if not name:
        raise UsageError(f"--model: expected pkg.mod:NAME, got {path!r}")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name and f"{module_path}.".startswith(f"{error.name}."):
            raise UsageError(f"--model: there is no module {module_path!r}") from error
        raise UsageError(f"--model: {module_path} cannot be imported: {in_a_line(error)}") from error
    except Exception as error:
        raise UsageError(f"--model: {module_path} cannot be imported: {in_a_line(error)}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"--model: {module_path} has no {name!r}") from None
        except Exception as error:  # a module may import its parts as they are asked for
            raise UsageError(f"--model: {path} cannot be had: {in_a_line(error)}") from error
    from torch import nn

    if not isinstance(found, nn.Module):
        if not callable(found):
            raise UsageError(f"--model: {path} is a {type(found).__name__}; expected a module, or what makes one")
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"--model: {path}() raised {in_a_line(error)}") from error
    model, transform = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(model, nn.Module):
        raise UsageError(f"--model: {path} makes a {type(model).__name__}; expected a torch.nn.Module")
    return model, transform


def _opened(path: str) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise UsageError(
            f"the picture {path!r} cannot be read: expected a file of a kind that Pillow knows, such as PNG or JPEG"
        ) from error
    except (
        Exception
    ) as error:  # besides OSError, what the reader of a format makes of a damaged file, or of too many pixels
        raise UsageError(f"the picture {path!r} cannot be read, it may be damaged: {in_a_line(error)}") from error


def _transformed(transform: Callable[[Any], Any], image: Any, path: str) -> Tensor:
    """What the model's own transform makes of the picture."""
    import torch

    try:
        given = transform(image)
    except Exception as error:
        raise UsageError(f"--model: the transform of {path} raised {in_a_line(error)}") from error
    if not isinstance(given, torch.Tensor):
        raise UsageError(f"--model: the transform of {path} must return a tensor, got {type(given).__name__}")
    return given


def _channels(model: nn.Module) -> int:
    """How many channels the model's first convolution takes; 3 without one."""
    from torch import nn

    return next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)


def _as_tensor(
    image: Any, channels: int, size: tuple[int, int] | None, mean: list[float] | None, std: list[float] | None
) -> Tensor:
    """The picture as (C, H, W) from 0 to 1, less the mean and divided by the standard deviation if there are any."""
    import numpy as np
    import torch

    if size is not None:
        image = image.resize((size[1], size[0]))
    tensor = torch.from_numpy(np.array(image.convert("L") if channels == 1 else image, dtype=np.float32) / 255)
    tensor = tensor.unsqueeze(0) if tensor.ndim == 2 else tensor.permute(2, 0, 1)
    for option, values in (("--mean", mean), ("--std", std)):
        if values is None:
            continue
        if len(values) not in (1, len(tensor)):
            raise UsageError(f"{option}: expected {len(tensor)} numbers, one for each channel, got {len(values)}")
        numbers = torch.tensor(values).view(-1, 1, 1)
        tensor = tensor - numbers if option == "--mean" else tensor / numbers
    return tensor


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise UsageError(f"--size: expected HxW, such as 224x224, got {text!r}")
    return int(height), int(width)


def _numbers(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option}: expected numbers separated by commas, got {text!r}") from None
    if not all(map(math.isfinite, numbers)) or (option == "--std" and min(numbers) <= 0):
        kind = "finite numbers above 0, as each channel is divided by one" if option == "--std" else "finite numbers"
        raise UsageError(f"{option}: expected {kind}, got {text!r}")
    return numbers
