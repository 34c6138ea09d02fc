"""Tables of cosines and sines for rotary embeddings, plain and stretched for long contexts.

The formulas and their names are those of Hugging Face (transformers, modeling_rope_utils.py), which follow the papers
named at each function: a checkpoint's `rope_parameters` can be handed over as they are.
"""

import math

import torch

# parameters of each kind: needed ones, then those that have a default
PARAMETERS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "proportional": ((), ("factor",)),
}
ANYWHERE = ("rope_type", "rope_theta", "partial_rotary_factor")


def rope_tables(head_dim, base, max_position, dtype, device, scaling=None):
    """(cos, sin) of every position, each [max_position, head_dim / 2] in `dtype`.

    head_dim: rotated channels of a head. base: θ. scaling: None, or Hugging Face's `rope_parameters`, whose "rope_type"
    is "default", "linear", "llama3", "yarn" or "proportional"; a "rope_theta" in it must be `base`, and
    "partial_rotary_factor" speaks to "proportional" alone, since head_dim says it for the others.
    Angle of position p and pair i is p · base^(−2i / head_dim) before scaling, computed in fp32 (fp64 when dtype is
    fp64), which is what Llama checkpoints were trained with; yarn's attention factor is multiplied into both tables.
    ValueError for an odd head_dim or for scaling that is unknown, incomplete or has parameters of another kind.
    """
    if head_dim % 2:
        raise ValueError(f"rope_tables: head_dim must be even, it is {head_dim}")
    wide = torch.promote_types(dtype, torch.float32)
    frequencies, attention_factor = frequencies_of(head_dim, base, scaling or {}, wide, device)
    angles = torch.outer(torch.arange(max_position, dtype=wide, device=device), frequencies)
    return tuple((table * attention_factor).to(dtype) for table in (angles.cos(), angles.sin()))


def frequencies_of(head_dim, base, scaling, dtype, device):
    """(angle per position of each pair, [head_dim / 2]; what both tables are multiplied by)."""
    kind = scaling.get("rope_type", "default")
    require_parameters(kind, base, scaling)
    periods = base ** (torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim)  # over 2π
    frequencies = 1.0 / periods
    if kind == "linear":
        return frequencies / scaling["factor"], 1.0
    if kind == "llama3":
        return llama3_frequencies(frequencies, scaling), 1.0
    if kind == "yarn":
        return yarn_frequencies(periods, head_dim, base, scaling), yarn_attention_factor(scaling)
    if kind == "proportional":
        # the share of pairs that turn keeps the speeds of a head that turns as a whole; the others stand still
        turning = int(scaling.get("partial_rotary_factor", 1.0) * head_dim // 2)
        frequencies[turning:] = 0.0
        return frequencies / scaling.get("factor", 1.0), 1.0
    return frequencies, 1.0


def require_parameters(kind, base, scaling):
    """ValueError for a kind of scaling that there is not, and for parameters that it lacks or does not have."""
    if kind not in PARAMETERS:
        raise ValueError(f"rope_tables: rope_type {kind!r} is not one of {', '.join(PARAMETERS)}")
    needed, optional = PARAMETERS[kind]
    if missing := [name for name in needed if scaling.get(name) is None]:
        raise ValueError(f"rope_tables: rope_type {kind!r} needs {', '.join(missing)}")
    if unknown := sorted(set(scaling) - {*needed, *optional, *ANYWHERE}):
        raise ValueError(f"rope_tables: rope_type {kind!r} has no {', '.join(unknown)}")
    if scaling.get("rope_theta", base) != base:
        raise ValueError(f"rope_tables: base is {base} but rope_theta is {scaling['rope_theta']}")


def llama3_frequencies(frequencies, scaling):
    """Slow pairs are slowed by the factor, fast ones are left, those between are blended (Llama 3.1's rule)."""
    factor, low, high, context = (scaling[name] for name in PARAMETERS["llama3"][0])
    wavelengths = 2 * math.pi / frequencies
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    slowed = torch.where(wavelengths > context / low, frequencies / factor, blended)
    return torch.where(wavelengths < context / high, frequencies, slowed)


def yarn_frequencies(periods, head_dim, base, scaling):
    """Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2: "NTK by parts"."""
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair_that_turns(times):
        """The pair that turns so many times over the original context, as a fraction."""
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(base))

    first, last = (pair_that_turns(scaling.get(name) or usual) for name, usual in (("beta_fast", 32), ("beta_slow", 1)))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    last += 0.001 * (first == last)  # a ramp of no width
    pairs = torch.arange(head_dim // 2, dtype=periods.dtype, device=periods.device)
    kept = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept


def yarn_attention_factor(scaling):
    """What yarn multiplies both tables by, so that scores keep their spread; the same paper, section 3.4."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]

    def growth(weight):
        return 1.0 if scaling["factor"] <= 1 else 0.1 * weight * math.log(scaling["factor"]) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return growth(scaling["mscale"]) / growth(scaling["mscale_all_dim"])
    return growth(1)
