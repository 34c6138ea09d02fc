"""Bytes and FLOPs that a step cannot do without, and the least time that measured ceilings allow them."""

from dataclasses import dataclass

from wholecurve.models.bounds import Ceilings
from wholecurve.models.config import ModelConfig


@dataclass(frozen=True)
class StepWork:
    """What one step must do. read_bytes: every weight once, and cached keys and values of every sequence once.
    flops: 2 per multiply-add of matrices and of unmasked pairs of query and key.
    """

    read_bytes: int
    flops: float

    def seconds(self, ceilings: Ceilings) -> tuple[float, str]:
        """(least seconds, "memory" or "compute"): a bound, never a measurement."""
        read_s = self.read_bytes / ceilings.read_bytes_per_s
        compute_s = self.flops / ceilings.gemm_flops_per_s
        return max((read_s, "memory"), (compute_s, "compute"))


def decode_work(
    config: ModelConfig, itemsize: int, requests: int, context: int, drafts: int, distinct: int | None = None
) -> StepWork:
    """A step of `requests` sequences over `context` cached tokens each, verifying `drafts` drafts.

    The 1 + drafts rows of a sequence see context + 1, context + 2, … keys. distinct: sequences whose cached tokens
    differ, None for all: what several share must be read once only.
    """
    rows = 1 + drafts
    cached = (requests if distinct is None else min(distinct, requests)) * context
    read = config.weight_bytes_per_step(itemsize) + cached * config.kv_bytes_per_token(itemsize)
    return StepWork(read, config.decode_flops(requests * rows, context + (rows + 1) / 2))


def prefill_work(
    config: ModelConfig, itemsize: int, chunks: list[int], cached: int, distinct: int | None = None
) -> StepWork:
    """A step of one chunk of new tokens per sequence, each on top of `cached` tokens; one row of logits per sequence.

    distinct: as in `decode_work`.
    """
    prefixes = (len(chunks) if distinct is None else min(distinct, len(chunks))) * cached
    read = config.weight_bytes_per_step(itemsize) + prefixes * config.kv_bytes_per_token(itemsize)
    pairs = sum(new * cached + new * (new + 1) / 2 for new in chunks)
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * pairs
    matrices = sum(chunks) * config.num_layer_matrix_parameters + len(chunks) * config.vocab_size * config.hidden_size
    return StepWork(read, 2.0 * (matrices + attention))


def bound_fields(work: StepWork, ceilings: Ceilings | None, median_ms: float | None) -> dict:
    """The columns of bytes, FLOPs and bound; more than all of a ceiling is an error and said."""
    fields = {"read_bytes": work.read_bytes, "flops": work.flops, "bound_ms": None, "bound_by": None, "attained": None}
    if ceilings is None:
        return fields
    seconds, limit = work.seconds(ceilings)
    fields |= {"bound_ms": 1e3 * seconds, "bound_by": f"{limit}, measured ceiling"}
    if median_ms is not None:
        fields["attained"] = fields["bound_ms"] / median_ms
        if fields["attained"] > 1:
            fields["note"] = f"error: {fields['attained']:.0%} of the measured {limit} ceiling"
    return fields
