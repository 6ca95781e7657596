"""Norms of gradients, for ``self.log_dict(grad_norm(self.layer, norm_type=2))``."""

from __future__ import annotations

import torch


def grad_norm(module: torch.nn.Module, norm_type: float | int | str, group_separator: str = "/") -> dict[str, float]:
    """The norm of each parameter's gradient, and of all together, as 0-dim tensors (they are logged without a sync).

    Args:
        module: whose parameters; those without a gradient are left out.
        norm_type: the ``p`` of the p-norm; ``"inf"`` for the largest absolute value.
        group_separator: what stands between the prefix and the name.

    Returns:
        ``grad_{p}_norm/{parameter}`` for each, and ``grad_{p}_norm_total``; nothing if there is no gradient.

    Raises:
        ValueError: ``norm_type`` is not above 0.
    """
    power = float(norm_type)
    if power <= 0:
        raise ValueError(f"norm_type must be above 0 or 'inf', got {norm_type!r}")
    prefix = f"grad_{power}_norm"
    norms = {
        f"{prefix}{group_separator}{name}": parameter.grad.detach().norm(power)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"{prefix}_total"] = torch.stack(list(norms.values())).norm(power)
    return norms
