"""The correctness gate: an output is compared with its definition before anything about its speed is said."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Agreement:
    """passed: every element within tolerance and NaN and inf in the same places. worst_ratio: the largest
    error as a multiple of what is allowed (inf where the patterns differ). worst_index: where that is, empty
    for no elements.
    """

    passed: bool
    worst_ratio: float
    worst_index: tuple

    def __bool__(self):
        return self.passed


def agreement(output, reference, ulps=2.0, rtol=0.0, scale=None):
    """Compare `output` with `reference` (float64, same shape): |o − r| ≤ ulps · eps(dtype of output) · scale
    + rtol · |r|.

    scale: a tensor that broadcasts to the output, None for the largest finite |r| of each row (last
    dimension); for the output of a product give Σ |a||b|. ValueError for different shapes.
    """
    if output.shape != reference.shape:
        raise ValueError(f"gate: the output is {tuple(output.shape)}, the reference {tuple(reference.shape)}")
    if output.numel() == 0:
        return Agreement(True, 0.0, ())
    output, reference, eps = output.double(), reference.double(), torch.finfo(output.dtype).eps
    finite = reference.isfinite()
    if scale is None:
        scale = reference.abs().where(finite, 0.0).amax(dim=-1, keepdim=True)
    allowed = ulps * eps * scale + rtol * reference.abs()
    error = (output - reference).abs()
    ratio = torch.where(error == 0, 0.0, error / allowed)
    same_pattern = (output == reference) | (output.isnan() & reference.isnan())
    # an element that is not finite on either side must be the same on both
    ratio = torch.where(finite & output.isfinite(), ratio, torch.where(same_pattern, 0.0, torch.inf))
    worst = int(ratio.argmax())
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(worst), ratio.shape))
    worst_ratio = float(ratio.flatten()[worst])
    return Agreement(worst_ratio <= 1, worst_ratio, index)
