"""Random inputs for a case of a kernel: the same numbers for one seed, shapes alone on the meta device."""

import torch


class Inputs:
    """A source of random tensors on one device.

    device: "cpu", "cuda" or "meta"; on "meta" nothing is drawn and tensors have a shape and a dtype alone, which is
    what compiling for production sizes needs. seed: one seed gives the same tensors on the same kind of device.
    """

    def __init__(self, device="cpu", seed=0):
        self.device = torch.device(device)
        self.is_meta = self.device.type == "meta"
        self.generator = None if self.is_meta else torch.Generator(self.device).manual_seed(seed)

    def normal(self, *shape, dtype="bfloat16", scale=1.0):
        """Normal numbers times `scale`, rounded once to `dtype`."""
        if self.is_meta:
            return torch.empty(shape, dtype=as_dtype(dtype), device=self.device)
        drawn = torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (drawn * scale).to(as_dtype(dtype))

    def uniform(self, *shape, dtype="float32", low=0.0, high=1.0):
        """Uniform numbers in [low, high), rounded once to `dtype`."""
        if self.is_meta:
            return torch.empty(shape, dtype=as_dtype(dtype), device=self.device)
        drawn = torch.rand(shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (low + (high - low) * drawn).to(as_dtype(dtype))

    def integers(self, low, high, *shape, dtype="int64"):
        """Whole numbers in [low, high)."""
        if self.is_meta:
            return torch.empty(shape, dtype=as_dtype(dtype), device=self.device)
        drawn = torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return drawn.to(as_dtype(dtype))

    def permutation(self, length, dtype="int64"):
        """0 … length − 1 in random order."""
        if self.is_meta:
            return torch.empty(length, dtype=as_dtype(dtype), device=self.device)
        return torch.randperm(length, generator=self.generator, device=self.device).to(as_dtype(dtype))

    def full(self, *shape, value, dtype):
        """`value` everywhere, for instance poison in cache pages that nothing was stored in."""
        if self.is_meta:
            return torch.empty(shape, dtype=as_dtype(dtype), device=self.device)
        return torch.full(shape, value, dtype=as_dtype(dtype), device=self.device)

    def fixed(self, values, dtype):
        """A tensor of these values (a nested list)."""
        return torch.tensor(values, dtype=as_dtype(dtype), device=self.device)


def as_dtype(name):
    """The torch dtype of a name such as "bfloat16"; a dtype comes back as it is."""
    return getattr(torch, name) if isinstance(name, str) else name


def dtype_name(dtype):
    """The name of a torch dtype: "bfloat16"."""
    return str(dtype).removeprefix("torch.")
