"""From batches of a validation to pictures: the chosen samples, their maps, and what stands above them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_gradcam.batches import class_scores, label_tensor, model_input
from hookbus_gradcam.images import Picture
from hookbus_gradcam.maps import ClassActivationMaps, class_activation_maps


@dataclass
class Sample:
    """One chosen sample.

    Attributes:
        loader: the number of its loader.
        index: its place among the samples of that loader.
        input: what the model is given for it, without the first dimension.
        label: its class, if the batch told.
    """

    loader: int
    index: int
    input: Tensor
    label: int | None = None


def taken(
    batch: Any, chosen: Iterable[int], *, loader: int = 0, first: int = 0, where: str = ""
) -> tuple[int, list[Sample]]:
    """The chosen samples of a batch, as copies.

    Args:
        batch: of a loader.
        chosen: places among the samples of that loader.
        loader: its number.
        first: the place of the batch's first sample.
        where: of the model's input in the batch; see :func:`hookbus_gradcam.batches.model_input`.

    Returns:
        How many samples the batch has, and those that are chosen.

    Raises:
        ValueError: the model's input is not to be found.
    """
    given = model_input(batch, where)
    count = given.shape[0]
    labels = label_tensor(batch, count)
    found = []
    for index in sorted(set(chosen)):
        at = index - first
        if 0 <= at < count:
            label = None if labels is None else int(labels[at])
            found.append(Sample(loader, index, given[at].detach().clone(), label))
    return count, found


def pictures(
    model: nn.Module,
    samples: Sequence[Sample],
    layers: Sequence[str],
    *,
    method: str = "gradcam",
    target: str | int = "predicted",
    call: int = -1,
    reshape: Callable[[Tensor], Tensor] | Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    output: str = "",
) -> dict[str, list[Picture]]:
    """The pictures of some samples, by layer.

    Samples of one shape are passed together.

    Args:
        model, layers, method, call, reshape: see :func:`hookbus_gradcam.class_activation_maps`.
        samples: of which to draw.
        target: the ``predicted`` class, that of the ``label``, or the class with this number.
        output: where in the model's output the class scores are; see :func:`hookbus_gradcam.batches.class_scores`.

    Raises:
        ValueError: ``label`` is asked for, and there are none; and what is raised there.
    """
    groups: dict[Any, list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.input.shape, sample.input.dtype), []).append(sample)
    several = len({sample.loader for sample in samples}) > 1
    found: dict[str, list[Picture]] = {}
    for group in groups.values():
        maps = class_activation_maps(
            model,
            torch.stack([sample.input for sample in group]),
            layers,
            method=method,
            targets=_targets(group, target),
            call=call,
            reshape=reshape,
            output=lambda given: class_scores(given, output),
        )
        captions = _captions(group, maps, class_scores(maps.output, output), several=several)
        for layer, cams in maps.maps.items():
            for sample, cam, caption in zip(group, cams, captions, strict=True):
                image = sample.input if sample.input.ndim == cam.ndim + 1 else None
                found.setdefault(layer, []).append(Picture(image, cam, caption))
    return found


def _targets(samples: Sequence[Sample], target: str | int) -> int | list[int] | None:
    if target == "predicted":
        return None
    if target != "label":
        return int(target)
    labels = [sample.label for sample in samples if sample.label is not None]
    if len(labels) < len(samples):
        raise ValueError("target is 'label', but the batch has no labels, integers of shape (N,), beside the input")
    return labels


def _captions(samples: Sequence[Sample], maps: ClassActivationMaps, scores: Any, *, several: bool) -> list[str]:
    """Sample and class; what was predicted and the label where they are others."""
    classes = isinstance(scores, Tensor) and scores.ndim == 2 and scores.shape[1] > 1
    predicted = scores.argmax(dim=1).tolist() if classes else maps.classes
    captions = []
    for sample, explained, guess in zip(samples, maps.classes, predicted, strict=True):
        words = [f"loader {sample.loader}, sample {sample.index}" if several else f"sample {sample.index}"]
        words.append(f"class {explained}")
        if guess != explained:
            words.append(f"predicted {guess}")
        if sample.label not in (None, explained):
            words.append(f"label {sample.label}")
        captions.append(", ".join(words))
    return captions
