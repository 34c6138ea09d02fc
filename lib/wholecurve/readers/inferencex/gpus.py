"""How many GPUs a row of InferenceX ran on, and its throughput over all of them.

Its per-GPU numbers have three denominators: tput_per_gpu is over all GPUs; output_tput_per_gpu of a disaggregated row
over the decode GPUs and input_tput_per_gpu over the prefill GPUs, of any other row over all GPUs; agentic rows divide
everything by all GPUs. A denominator is believed only where the row's own numbers confirm it.
"""

from dataclasses import dataclass

from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.inferencex.fields import agree, flag, has, is_agentic, needed, place, wanted
from wholecurve.readers.record import Record

# More than any installation; a larger count is damage, and a product with it would overflow.
MOST_GPUS = 1_000_000

_LACKS = {
    "output_throughput_tok_per_s": "no output_tput_per_gpu: output throughput is not known, and the throughput of all "
    "tokens does not stand in for it",
    "logical_throughput_tok_per_s": "no tput_per_gpu: logical throughput is not known",
}


@dataclass(frozen=True)
class Gpus:
    """All GPUs of a row; ``prefill`` and ``decode`` are 0 unless it is disaggregated into two pools."""

    total: int
    prefill: int = 0
    decode: int = 0


def gpus_of(record: Record, notes: Notes) -> Gpus:
    """The GPUs of a row. UserError when a count is missing, or when two counts contradict each other."""
    gpus = _two_pools(record) if flag(record, "disagg") else Gpus(_one_pool(record, notes))
    if gpus.total > MOST_GPUS:
        raise UserError(f"{record.where}: {gpus.total:g} GPUs; at most {MOST_GPUS} are believed")
    return gpus


def throughputs(record: Record, gpus: Gpus, notes: Notes) -> dict:
    """Output and logical (input and output) throughput of all GPUs together [tok/s].

    A throughput that the row lacks is absent and named. UserError, naming both numbers, when the row's per-GPU
    numbers do not add up on the denominators that it states.
    """
    output = needed(record, "output_tput_per_gpu") if has(record, "output_tput_per_gpu") else None
    total = needed(record, "tput_per_gpu") if has(record, "tput_per_gpu") else None
    split = gpus.decode and not is_agentic(record)
    if split and output is not None:
        _check_two_pools(record, gpus, output, total)
        notes.convert("output_tput_per_gpu of a disaggregated row is per decode GPU: times decode GPUs, over all GPUs")
    elif output is not None and total is not None:
        _check_one_pool(record, output, total, wanted(record, "input_tput_per_gpu", notes))
    made = {}
    if output is not None:
        made["output_throughput_tok_per_s"] = output * (gpus.decode if split else gpus.total)
    if total is not None:
        made["logical_throughput_tok_per_s"] = total * gpus.total
        notes.convert("tput_per_gpu counts input and output tokens: times all GPUs it is the logical throughput")
    made = _checked_totals(record, made)
    for column, sentence in _LACKS.items():
        if column not in made:
            notes.leave_out(sentence, record.where)
    return made


def _two_pools(record: Record) -> Gpus:
    if is_agentic(record) and not record.has("num_decode_gpu") and record.has("num_gpus"):
        return Gpus(record.count("num_gpus", 1))
    counts = {name: record.count(name, 1) for name in ("num_prefill_gpu", "num_decode_gpu")}
    prefill, decode = counts.values()
    if record.has("num_gpus") and record.count("num_gpus", 1) != prefill + decode:
        raise UserError(
            f"{record.where}: num_gpus is {record.state('num_gpus')}, but there are {prefill} prefill and {decode} "
            "decode GPUs; all GPUs must be both together"
        )
    return Gpus(prefill + decode, prefill, decode)


def _one_pool(record: Record, notes: Notes) -> int:
    for name in ("num_gpus", "num_aggregate_gpu"):
        if record.has(name):
            return record.count(name, 1)
    engine, stated = _engine(record), _stated(record)
    if stated is None:
        if engine is None:
            raise record.refuse("tp", "the number of GPUs (num_gpus, or tp for one engine)")
        return engine
    workers = max(1, _first_count(record, "decode_num_workers", "prefill_num_workers") or 1)
    experts = _first_count(record, "decode_ep", "prefill_ep", "ep") or 1
    if engine is None or stated == engine * workers:
        return stated
    if stated == engine * experts:
        notes.convert("num_decode_gpu is tp × ep here; expert parallelism adds no GPUs: tp is taken", record.where)
        return engine
    notes.convert("num_decode_gpu is not tp × pp × pcp × workers; it is taken as it stands", record.where)
    return stated


def _stated(record: Record) -> int | None:
    """The GPU count of a row that is not disaggregated: both fields repeat it, or one is 0."""
    prefill, decode = (record.optional_count(f"num_{role}_gpu") for role in ("prefill", "decode"))
    if prefill and decode:
        if flag(record, "disagg") is None:
            raise record.refuse("disagg", "true or false (it says whether prefill and decode GPUs are the same)")
        if prefill != decode:
            raise UserError(
                f"{record.where}: num_prefill_gpu is {prefill} and num_decode_gpu {decode}, but disagg is false; "
                "a row that is not disaggregated has the same GPUs in both"
            )
    return decode or prefill or None


def _engine(record: Record) -> int | None:
    """GPUs of one engine: tp × pp × pcp; dcp and ep share them."""
    tp = _first_count(record, "tp", "decode_tp", "prefill_tp")
    if not tp:
        return None
    pp = _first_count(record, "pp", "decode_pp", "prefill_pp") or 1
    pcp = _first_count(record, "pcp_size", "decode_pcp_size", "prefill_pcp_size") or 1
    return tp * pp * pcp


def _first_count(record: Record, *names: str) -> int | None:
    """The first of these fields that is there and above 0."""
    counts = (record.optional_count(place(record, name)) for name in names)
    return next((count for count in counts if count), None)


def _check_two_pools(record: Record, gpus: Gpus, output: float, total: float | None) -> None:
    if total is None:
        raise record.refuse("tput_per_gpu", "the throughput of all GPUs (it confirms that output is per decode GPU)")
    parts = output * gpus.decode + needed(record, "input_tput_per_gpu") * gpus.prefill
    if not agree(parts, total * gpus.total):
        raise UserError(
            f"{record.where}: output_tput_per_gpu × {gpus.decode} decode GPUs + input_tput_per_gpu × {gpus.prefill} "
            f"prefill GPUs is {parts:.6g} tok/s, but tput_per_gpu × {gpus.total} is {total * gpus.total:.6g}; "
            "the denominators are not those that the row states"
        )


def _check_one_pool(record: Record, output: float, total: float, inputs: float | None) -> None:
    if output > total and not agree(output, total):
        raise UserError(
            f"{record.where}: output_tput_per_gpu is {output:g}, above tput_per_gpu {total:g}, which includes it; "
            "the two have different denominators"
        )
    if inputs is not None and not agree(output + inputs, total):
        raise UserError(
            f"{record.where}: output_tput_per_gpu {output:g} + input_tput_per_gpu {inputs:g} is not tput_per_gpu "
            f"{total:g}; one denominator (all GPUs) is needed"
        )


def _checked_totals(record: Record, made: dict) -> dict:
    """Agentic rows also hold throughput of all GPUs: it must agree with the per-GPU numbers, and fills in for them."""
    totals = {"output_throughput_tok_per_s": "output_tput_tps", "logical_throughput_tok_per_s": "total_tput_tps"}
    for column, name in totals.items():
        if has(record, name):
            whole = needed(record, name)
            if column in made and not agree(made[column], whole):
                raise UserError(
                    f"{record.where}: {place(record, name)} is {whole:g} tok/s, but the number per GPU times all GPUs "
                    f"is {made[column]:g}; the GPU count or the denominator is another one"
                )
            made[column] = whole
    return made
