"""Step studies as tables for people."""

from wholecurve.studies.steps.comparison import compare_steps
from wholecurve.studies.steps.record import MEANING, StepRecord


def print_study(console, record: StepRecord) -> None:
    """The cells of a study, what they ran on, and what their numbers mean."""
    from rich.markup import escape
    from rich.table import Table

    rows, plan = record.rows(), record.plan
    decode = plan["kind"] == "decode"
    columns = {**(_DECODE if decode else _PREFILL), **_SHARED}
    table = Table(title=escape(title(plan, rows)), title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name == "bound by" else "right")
    for row in rows:
        table.add_row(*(cell(row, *column) for column in columns.values()))
    console.print(table)
    for note in [*(record.read("scaling") or {}).values(), MEANING[plan["kind"]]]:
        console.print(escape(note), highlight=False)
    for row in rows:
        if row["note"]:
            load = f"c = {row['requests']}" if decode else f"{row['new_tokens']:,} new tokens"
            console.print(f"[yellow]{escape(load)}: {escape(row['note'])}[/]", highlight=False)


def title(plan: dict, rows: list[dict]) -> str:
    """Two lines: the contender, and under what conditions."""
    first = rows[0]
    parts = [f"{plan['cached_tokens']:,} cached tokens per request"]
    if plan["kind"] == "decode":
        parts.append(plan["tokens_of_a_step"])
    threads = f", {first['threads']} thread{'s' * (first['threads'] > 1)}" if first["threads"] else ""
    where = f"{first['source']} on {first['device']}{threads}"
    conditions = "; ".join([*parts, first["cache_fill"], where])
    return f"{first['contender']}: {plan['kind']} steps of {first['model']}\n{conditions}"


def cell(row: dict, name: str, form: str, factor: float = 1.0) -> str:
    """One cell as text, a dash where there is nothing."""
    value = row[name]
    return "–" if value is None else format(value * factor if factor != 1 else value, form)


# title: column, format, factor
_DECODE = {
    "c": ("requests", ",d"),
    "tok/s/user": ("decode_speed_tok_per_s", ",.2f"),
    "tok/s": ("output_throughput_tok_per_s", ",.1f"),
    "E": ("tokens_per_step", ".3f"),
    "E measured": ("tokens_per_step_measured", ".3f"),
}
_PREFILL = {
    "new tokens": ("new_tokens", ",d"),
    "sequences": ("requests", ",d"),
    "cached each": ("cached_tokens", ",d"),
    "new tok/s": ("input_throughput_tok_per_s", ",.1f"),
}
_SHARED = {
    "step ms": ("step_median_ms", ",.3f"),
    "p10": ("step_p10_ms", ",.3f"),
    "p90": ("step_p90_ms", ",.3f"),
    "n": ("n_samples", "d"),
    "bound ms": ("bound_ms", ",.3f"),
    "of bound": ("attained", ".0%"),
    "bound by": ("bound_by", "s"),
}


def comparison_document(a: StepRecord, b: StepRecord) -> dict:
    """The direct multipliers as JSON values."""
    document = compare_steps(a, b).to_document()
    shared = {name: document[name] for name in ("a", "b", "direct", "warnings")}
    return {"kind": a.plan["kind"], **shared, "note": MEANING[a.plan["kind"]]}


def print_step_comparison(console, a: StepRecord, b: StepRecord) -> None:
    """The direct multipliers, and why both of a decode step are equal."""
    from rich.markup import escape

    from wholecurve.curves.tables import direct_table
    from wholecurve.terminal import print_with_reasons

    compared = compare_steps(a, b)
    print_with_reasons(console, direct_table(compared), f"{compared.a.name} over {compared.b.name}: direct")
    console.print(MEANING[a.plan["kind"]], highlight=False)
    for warning in compared.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
