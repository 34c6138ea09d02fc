"""Every check of the card: it passes on a clean synthetic run, and each way of breaking its rule turns it red."""

from collections import Counter
from dataclasses import replace

import card_runs
import pytest

from wholecurve.card.checks import CHECKS, FLAG, NOT_CHECKED, PASS, run_checks
from wholecurve.card.checks.noise import at_least
from wholecurve.card.facts import read_facts


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return read_facts(card_runs.engines_run(tmp_path_factory.mktemp("engines") / "run"))


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    return read_facts(card_runs.serving_run(tmp_path_factory.mktemp("servers") / "run"))


ASKS = {}


def check(facts, name):
    """The one check of this name; None where it has no question for the run."""
    if name not in ASKS:
        ASKS.update({found.name: ask for ask in CHECKS if (found := ask(facts)) is not None})
    return ASKS[name](facts) if name in ASKS else None


def with_rows(facts, change, **wanted):
    """The facts with `change` laid over the rows that have the wanted values."""

    def changed(row):
        if any(row[key] != value for key, value in wanted.items()):
            return row
        return {**row, **(change(row) if callable(change) else change)}

    return replace(facts, rows=[changed(row) for row in facts.rows])


def with_traces(facts, **fields):
    """The facts with fields of the first point's trace replaced."""
    first = next(iter(facts.traces))
    return replace(facts, traces={**facts.traces, first: replace(facts.traces[first], **fields)})


def with_plan(facts, **fields):
    return replace(facts, document={**facts.document, "plan": {**facts.plan, **fields}})


def as_settings(**fields):
    return lambda row: {"settings": {**row["settings"], **fields}}


def test_a_clean_run_of_engines_has_only_what_it_did_not_do(engines):
    found = {one.name: one.status for one in run_checks(engines)}
    assert {name for name, status in found.items() if status == FLAG} == {"Tuning"}
    assert {name for name, status in found.items() if status == NOT_CHECKED} == {"Warm-up", "Prefix cache"}


def test_a_clean_run_of_servers_has_only_what_it_did_not_do(servers):
    found = {one.name: one.status for one in run_checks(servers)}
    assert {name for name, status in found.items() if status == FLAG} == {"Tuning"}
    assert {name for name, status in found.items() if status == NOT_CHECKED} == {"Bounds", "Steady machine"}


def test_every_check_has_a_name_of_its_own_and_tells_numbers_or_a_reason(engines, servers):
    for facts in (engines, servers):
        found = run_checks(facts)
        assert len({one.name for one in found}) == len(found) <= len(CHECKS)
        assert all(one.found and one.rule for one in found)


BREAKS = [
    # check, run, what is done to it, what the sentence then holds
    ("Plan", "engines", lambda f: with_plan(f, seed=8), "changed afterwards"),
    ("Plan", "servers", lambda f: replace(f, document={**f.document, "inputs": {"t": "0"}}), "changed afterwards"),
    ("Complete", "engines", lambda f: replace(f, rows=f.rows[1:]), "44 of 45 planned points; missing: "),
    ("Complete", "engines", lambda f: with_rows(f, {"load": 3}, workload="decode", load=4), "not in the plan: "),
    ("Complete", "engines", lambda f: with_rows(f, {"contender": "x"}, contender="transformers"), "not in the plan: x"),
    (
        "Complete",
        "servers",
        lambda f: replace(f, rows=f.rows[:-1], faults={"faults": [{"point": "p", "what": "OOM"}]}),
        "OOM",
    ),
    (
        "Complete",
        "engines",
        lambda f: replace(f, rows=[*f.rows, {**f.rows[-1], "repeat": 4, "order": 99}]),
        "45 of 45 planned points; not in the plan: ",
    ),
    (
        "Token counts",
        "servers",
        lambda f: replace(f, traces={k: replace(t, sources=Counter(chunks=30)) for k, t in f.traces.items()}),
        "chunks: 540",
    ),
    ("Points from traces", "engines", lambda f: with_traces(f, differs=("ttft_p50_ms",)), "differs in ttft_p50_ms"),
    ("Points from traces", "servers", lambda f: with_traces(f, missing=True), "no trace: "),
    ("Code", "engines", lambda f: replace(f, provenance={"git": {"commit": "a" * 40, "dirty": True}}), "uncommitted"),
    ("Source", "engines", lambda f: with_rows(f, {"source": "model (roofline)"}, repeat=2), "model (roofline)"),
    ("Fresh starts", "engines", lambda f: with_rows(f, {"worker_started": "t"}, contender="transformers"), "ran on"),
    ("Fresh starts", "servers", lambda f: with_rows(f, {"server_started": "t"}, contender="vllm"), "vllm ran on"),
    ("Fresh starts", "servers", lambda f: with_rows(f, {"server_started": None}, contender="vllm"), "did not say"),
    (
        "Same requests",
        "engines",
        lambda f: with_traces(f, asked={"r0000": (9, 9)}),
        "1 and 10 requests, 1 of them in common",
    ),
    ("Lengths", "servers", lambda f: with_plan(f, workload={**f.plan["workload"], "output_tokens": [6, 8]}), "outside"),
    ("Lengths", "engines", lambda f: with_plan(f, decode={**f.plan["decode"], "prompt_tokens": [9, 16]}), "outside"),
    ("Warm-up", "servers", lambda f: with_rows(f, {"n_warm_up": 3}, load=4), "fewer than are in flight before 9"),
    ("Warm-up", "servers", lambda f: with_rows(f, {"n_warm_up_failed": 1}, load=2), "9 of them failed"),
    ("Restarts", "servers", lambda f: with_rows(f, {"restarts": 1}, contender="vllm", repeat=2), "2 restarts"),
    (
        "Like settings",
        "engines",
        lambda f: with_rows(f, as_settings(kv_cache_dtype="u8"), contender="transformers"),
        "u8",
    ),
    ("Like settings", "servers", lambda f: with_rows(f, as_settings(threads=4), contender="vllm", repeat=1), "changed"),
    (
        "Same model",
        "engines",
        lambda f: replace(f, agreement={**f.agreement, "transformers": {**card_runs.AGREED, "max_gap": 3.0}}),
        "outside the limits: transformers",
    ),
    (
        "Same model",
        "servers",
        lambda f: replace(f, agreement={**f.agreement, "vllm": {**card_runs.AGREED, "best_share": 0.5}}),
        "outside the limits: vllm",
    ),
    (
        "Prefix cache",
        "engines",
        lambda f: with_rows(f, as_settings(prefix_cache=True), contender="transformers"),
        "reported on: transformers",
    ),
    (
        "Prefix cache",
        "servers",
        lambda f: with_rows(f, {"server_cache_hit_rate": 0.4}, contender="vllm", load=2),
        "vllm 40.0 %",
    ),
    ("Prefix cache", "servers", lambda f: with_traces(f, cached=9, prompt=90), "vllm 10.0 %"),
    (
        "Occupancy",
        "engines",
        lambda f: with_rows(f, {"occupancy": 1.2}, workload="decode", load=2, repeat=1),
        "above 1.05",
    ),
    (
        "Little's law",
        "engines",
        lambda f: with_rows(f, {"achieved_concurrency": 1.0}, workload="decode", load=4),
        "off at",
    ),
    (
        "Failures",
        "servers",
        lambda f: with_rows(
            f, {"n_failed": 2, "outcomes": {"completed": 28, "timed out": 2}}, contender="vllm", load=4, repeat=1
        ),
        "vllm 2; 2 timed out",
    ),
    ("Short outputs", "servers", lambda f: with_rows(f, {"n_short": 3}, contender="vllm", load=4, repeat=1), "3 short"),
    ("Token counts", "servers", lambda f: with_traces(f, sources=Counter(chunks=30)), "chunks: 30"),
    (
        "Percentiles",
        "engines",
        lambda f: with_rows(f, {"ttft_p99_ms": 9.0}, workload="decode", load=4, repeat=1),
        "too few for p99",
    ),
    ("Percentiles", "servers", lambda f: with_rows(f, {"n_completed": 29}, load=4), "too few for p90"),
    ("Denominator", "engines", lambda f: with_rows(f, {"device_kind": "gpu"}, contender="transformers"), "cpu and gpu"),
    ("Denominator", "servers", lambda f: with_rows(f, {"devices": 2}, contender="vllm", load=2), "changed the number"),
    (
        "Windows",
        "engines",
        lambda f: with_rows(f, {"window": "full"}, workload="decode", load=2, repeat=1),
        "mixed at decode 2",
    ),
    (
        "Shape",
        "engines",
        lambda f: with_rows(f, lambda r: {"decode_speed_tok_per_s": 9e9}, workload="decode", load=4),
        "speed rises",
    ),
    (
        "Flags of the study",
        "servers",
        lambda f: with_rows(f, {"flags": ["server-died: it ended"]}, load=4, repeat=1),
        "server-died at 3 points",
    ),
    ("Repeats", "engines", lambda f: replace(f, rows=[r for r in f.rows if r["repeat"] < 3]), "too few"),
    ("Bounds", "engines", lambda f: replace(f, above=["x is 120 % of its bound"]), "1 measurement above"),
    ("Bounds", "engines", lambda f: replace(f, above_kept=["x"]), "1 are above it by the rounds that keep their raw"),
    (
        "Steady machine",
        "engines",
        lambda f: replace(
            f, ceilings={**f.ceilings, "rounds": [card_runs.ceilings_round(), card_runs.ceilings_round("later", 5e10)]}
        ),
        "40.0–50.0 GB/s",
    ),
    (
        "Client lag",
        "servers",
        lambda f: with_rows(f, lambda r: {"client_lag_ms": 0.06 * r["tpot_p50_ms"]}, load=4),
        "above at 9",
    ),
    (
        "Idle contenders",
        "engines",
        lambda f: with_rows(f, as_settings(idle={"cpu_share": 0.9, "stopped": False}), contender="transformers"),
        "not stopped: transformers",
    ),
]


def ids(cases):
    return [f"{name}-{kind}-{i}" for i, (name, kind, *_) in enumerate(cases)]


@pytest.mark.parametrize(("name", "kind", "change", "says"), BREAKS, ids=ids(BREAKS))
def test_a_broken_rule_is_flagged_with_what_is_wrong(name, kind, change, says, request):
    facts = request.getfixturevalue(kind)
    assert check(facts, name).status != FLAG
    found = check(change(facts), name)
    assert found.status == FLAG, found
    assert says in found.found


SILENT = [
    ("Code", "engines", lambda f: replace(f, provenance={**f.provenance, "git": None})),
    (
        "Points from traces",
        "engines",
        lambda f: replace(f, traces={k: replace(t, missing=True) for k, t in f.traces.items()}),
    ),
    ("Fresh starts", "engines", lambda f: with_rows(f, {"worker_started": None})),
    ("Same requests", "engines", lambda f: replace(f, traces={})),
    ("Lengths", "servers", lambda f: with_plan(f, workload={"kind": "agents", "prompts": "messages"})),
    ("Warm-up", "servers", lambda f: with_rows(f, {"n_warm_up": None})),
    ("Restarts", "servers", lambda f: with_rows(f, {"restarts": None})),
    ("Like settings", "engines", lambda f: with_rows(f, {"settings": {}})),
    ("Same model", "engines", lambda f: replace(f, agreement=None)),
    (
        "Same model",
        "servers",
        lambda f: replace(f, agreement={**f.agreement, "vllm": {"checked": False, "why": "no text"}}),
    ),
    ("Occupancy", "servers", lambda f: with_rows(f, {"occupancy": None})),
    ("Little's law", "servers", lambda f: with_rows(f, {"achieved_concurrency": None})),
    ("Failures", "servers", lambda f: with_rows(f, {"n_failed": None})),
    ("Short outputs", "servers", lambda f: with_rows(f, {"n_short": None})),
    (
        "Token counts",
        "servers",
        lambda f: replace(f, traces={k: replace(t, sources=Counter()) for k, t in f.traces.items()}),
    ),
    ("Denominator", "engines", lambda f: with_rows(f, {"device_kind": None}, repeat=1)),
    ("Windows", "engines", lambda f: with_rows(f, {"window": None})),
    ("Bounds", "engines", lambda f: replace(f, ceilings=None)),
    ("Steady machine", "engines", lambda f: replace(f, ceilings=card_runs.ceilings_round())),
    ("Client lag", "servers", lambda f: with_rows(f, {"client_lag_ms": None})),
    ("Idle contenders", "engines", lambda f: with_rows(f, as_settings(idle={}))),
]


@pytest.mark.parametrize(("name", "kind", "change"), SILENT, ids=ids(SILENT))
def test_what_the_record_does_not_say_is_not_checked_and_never_a_pass(name, kind, change, request):
    facts = request.getfixturevalue(kind)
    assert check(facts, name).status == PASS
    assert check(change(facts), name).status == NOT_CHECKED


def reordered(facts, key):
    """The same rows, measured in the order of `key`; traces follow their points."""
    rows = sorted(facts.rows, key=key)
    order = {row["order"]: i for i, row in enumerate(rows)}
    traces = {name: replace(trace, order=order[trace.order]) for name, trace in facts.traces.items()}
    return replace(facts, rows=[{**row, "order": i} for i, row in enumerate(rows)], traces=traces)


def test_order_needs_points_of_a_level_together(engines):
    place = {name: i for i, name in enumerate(engines.contenders)}
    one_by_one = reordered(engines, lambda r: (r["repeat"], place[r["contender"]], r["order"]))
    assert "not measured in one go" in check(one_by_one, "Order").found
    late = next(row["order"] for row in engines.rows if row["repeat"] == 1)
    measured_again = reordered(engines, lambda r: (r["repeat"], r["order"] == late, r["order"]))
    found = check(measured_again, "Order")
    assert found.status == FLAG and "not measured in one go" in found.found


def test_order_needs_turning_round(engines):
    place = {name: i for i, name in enumerate(engines.contenders)}
    level = {}
    for row in engines.rows:
        level.setdefault((row["repeat"], row["workload"], row["load"]), row["order"])
    never_back = reordered(engines, lambda r: (level[r["repeat"], r["workload"], r["load"]], place[r["contender"]]))
    found = check(never_back, "Order")
    assert found.status == FLAG and "0 of them turn round" in found.found and "3 orders of levels" in found.found


def test_order_needs_shuffled_levels_where_chance_does_not_explain_one_order(engines):
    place = {name: i for i, name in enumerate(engines.contenders)}
    levels = sorted({(row["workload"], row["load"]) for row in engines.rows})

    def in_steps(row):
        at = levels.index((row["workload"], row["load"]))
        turn = place[row["contender"]] * (1 if (at + len(levels) * row["repeat"]) % 2 else -1)
        return row["repeat"], at, turn

    found = check(reordered(engines, in_steps), "Order")
    assert found.status == FLAG and "12 of them turn round" in found.found and "1 order of levels" in found.found
    levels = levels[-2:]
    two = replace(engines, rows=[row for row in engines.rows if row["workload"] == "prefill"], traces={})
    assert check(reordered(two, in_steps), "Order").status == PASS


def compared_as(facts, **fields):
    """The facts with fields of every comparison replaced."""
    changed = {w: [replace(one, **{k: f(one) for k, f in fields.items()}) for one in found]
               for w, found in facts.comparisons.items()}  # fmt: skip
    return replace(facts, comparisons=changed)


def test_matched_multipliers_at_the_edge_of_what_was_measured_are_flagged(engines):
    assert check(engines, "Open ends").status == PASS
    frames = ("same_speed", "same_throughput")
    at_the_edge = compared_as(
        engines, **{n: lambda one, n=n: getattr(one, n).assign(outside_share=0.4) for n in frames}
    )
    found = check(at_the_edge, "Open ends")
    assert found.status == FLAG and "at worst 40 % of the resamples" in found.found


def test_curves_that_are_not_alike_are_flagged(engines):
    assert check(engines, "Like curves").status == PASS
    unlike = compared_as(engines, warnings=lambda one: ["loads-differ: only A has 2", "occupancy: asked elsewhere"])
    found = check(unlike, "Like curves")
    assert found.status == FLAG and "only A has 2" in found.found and "asked elsewhere" not in found.found
    refused = replace(engines, comparisons={**engines.comparisons, "decode": "different denominators"})
    assert "decode: different denominators" in check(refused, "Like curves").found


def test_a_server_at_a_time_is_flagged_as_what_it_is(servers):
    place = {name: i for i, name in enumerate(servers.contenders)}

    def whole_curves(row):
        turn = place[row["contender"]] * (1 if row["repeat"] % 2 else -1)
        return row["repeat"], turn, row["load"]

    found = check(with_plan(reordered(servers, whole_curves), servers="one at a time"), "Order")
    assert found.status == FLAG and "whole curves take turns" in found.found and "(there, back, there)" in found.found


def test_requests_that_a_fixed_time_cuts_short_are_compared_where_both_have_them(servers):
    first = next(iter(servers.traces))
    some = dict(list(servers.traces[first].asked.items())[:5])
    cut = with_traces(servers, asked=some)
    assert check(cut, "Same requests").status == FLAG
    timed = with_plan(cut, requests={"seconds": 5.0, "at_most": 40})
    assert check(timed, "Same requests").status == PASS
    other = with_traces(timed, asked={**some, "r0000": (1, 1)})
    assert "prompt tokens" in check(other, "Same requests").found


def test_text_is_counted_by_each_server_so_prompts_may_be_a_little_apart(servers):
    first = next(iter(servers.traces))
    asked = servers.traces[first].asked
    longer = with_traces(servers, asked={name: (prompt + 1, output) for name, (prompt, output) in asked.items()})
    assert check(longer, "Same requests").status == FLAG
    as_text = {**servers.plan["workload"], "prompts": "text", "prompt_tokens": [80, 160]}
    hundreds = {
        point: replace(one, asked={name: (100 + (point == first), output) for name, (_, output) in one.asked.items()})
        for point, one in servers.traces.items()
    }
    counted = check(with_plan(replace(servers, traces=hundreds), workload=as_text), "Same requests")
    assert counted.status == PASS and "counts the text's tokens for itself" in counted.found
    doubled = check(
        with_plan(with_traces(servers, asked={n: (2 * p, o) for n, (p, o) in asked.items()}), workload=as_text),
        "Same requests",
    )
    assert doubled.status == FLAG


def tuned(facts, **tried):
    found = {
        name: {"candidates": [{"settings": {"n": i}, "score_tok_per_s": 1.0 + i, "refused": None} for i in range(n)],
               "winner": n - 1, "finalists": [n - 1]}
        for name, n in tried.items()
    }  # fmt: skip
    return replace(facts, tuning={"criterion": "c", "contenders": found})


def test_tuning_is_fair_only_when_no_other_contender_had_fewer_tries(engines):
    assert check(tuned(engines, wholecurve=3, transformers=4), "Tuning").status == PASS
    fewer = check(tuned(engines, wholecurve=4, transformers=3), "Tuning")
    assert fewer.status == FLAG and "fewer than wholecurve: transformers" in fewer.found
    alone = check(tuned(engines, wholecurve=4), "Tuning")
    assert alone.status == FLAG and "not tuned: transformers" in alone.found


def test_hit_rates_that_are_on_are_compared(servers):
    warm = with_plan(with_rows(servers, {"server_cache_hit_rate": 0.6}), prefix_cache="warm")
    assert check(warm, "Prefix cache").status == PASS
    apart = with_rows(warm, {"server_cache_hit_rate": 0.8}, contender="vllm")
    assert "different work" in check(apart, "Prefix cache").found
    silent = replace(apart, traces={}, rows=[{**row, "server_cache_hit_rate": None} for row in apart.rows])
    assert check(silent, "Prefix cache").status == NOT_CHECKED


def test_arrivals_by_the_clock_ask_about_backlog_and_not_about_slots(servers):
    clocked = with_rows(servers, {"load_kind": "request_rate", "latency_growth": 1.1})
    assert check(clocked, "Backlog").status == PASS and check(servers, "Backlog") is None
    assert check(clocked, "Occupancy") is None and check(clocked, "Little's law") is None
    behind = with_rows(clocked, {"latency_growth": 3.0}, contender="vllm", load=4)
    assert "falls behind: vllm" in check(behind, "Backlog").found
    assert check(with_rows(clocked, {"latency_growth": None}), "Backlog").status == NOT_CHECKED


def test_sessions_are_held_to_their_own_count(servers):
    sessions = with_rows(servers, lambda r: {"load_kind": "sessions", "achieved_sessions": r["load"]})
    assert check(sessions, "Little's law").status == PASS and check(sessions, "Occupancy") is None
    assert check(with_rows(sessions, {"achieved_sessions": 1.0}, load=4), "Little's law").status == FLAG


def test_what_somebody_else_runs_is_not_taken_for_started_or_tuned_here(servers):
    far = [{**one, "server": "running", "url": "http://far/v1"} for one in servers.plan["contenders"]]
    operated = with_plan(servers, contenders=far)
    assert check(operated, "Fresh starts").status == NOT_CHECKED and check(operated, "Tuning").status == NOT_CHECKED
    one_of_them = with_plan(servers, contenders=[*servers.plan["contenders"][:1], *far[1:]])
    assert check(one_of_them, "Fresh starts").status == NOT_CHECKED and check(one_of_them, "Tuning").status == FLAG
    assert check(with_rows(operated, {"device_kind": "unknown"}), "Denominator").status == NOT_CHECKED


def test_outputs_are_held_to_the_plan_also_where_prompts_are_text(servers):
    as_text = {**servers.plan["workload"], "prompts": "text", "prompt_tokens": [1, 2]}
    assert check(with_plan(servers, workload=as_text), "Lengths").status == PASS
    shorter = with_plan(servers, workload={**as_text, "output_tokens": [6, 8]})
    assert check(shorter, "Lengths").status == FLAG


def test_a_run_without_a_control_says_that_nothing_bounds_its_noise(tmp_path):
    run = card_runs.engines_run(tmp_path / "run", contenders=card_runs.ENGINES["contenders"][:2])
    assert "nothing bounds" in check(read_facts(run), "A/A control").found


def test_a_control_that_differs_from_itself_is_flagged(tmp_path, monkeypatch):
    monkeypatch.setitem(card_runs.SPEED, "wholecurve again", 0.8)
    found = check(read_facts(card_runs.engines_run(tmp_path / "run")), "A/A control")
    assert found.status == FLAG and "5 of 5 intervals miss 1, by chance once in" in found.found


@pytest.mark.parametrize(("hits", "draws", "wanted"), [(0, 5, 1.0), (1, 1, 0.05), (1, 2, 1 - 0.95**2), (2, 2, 0.0025)])
def test_chance_of_so_many_misses(hits, draws, wanted):
    assert at_least(hits, draws, 0.05) == pytest.approx(wanted)
