"""A server under load: every number against arithmetic on a line, and the bugs that benchmark tools had here."""

import dataclasses
import json
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_builders import closed_loop, failed, reply, session, session_loop

from wholecurve.curves import Curve, Slo, reduce_serving, reduce_trace
from wholecurve.curves.gates.one_curve import check_curve
from wholecurve.curves.serving_window import measured_window, sessions_of
from wholecurve.errors import UserError

LOOSE = Slo(ttft_ms=10_000)


def flag_names(row):
    return [flag.partition(":")[0] for flag in row["flags"]]


def test_a_closed_loop_has_the_numbers_of_reduce_trace():
    for traces in (closed_loop(), closed_loop(3, 20), closed_loop(1, 1), [*closed_loop(), failed(at=9.0)]):
        row, known = reduce_serving(traces, "concurrency", 3), reduce_trace(traces, 3)
        assert {name: row[name] for name in known} == known
    assert row["window"] == "steady"


def test_a_row_is_strict_json():
    for traces in (closed_loop(), [failed()], [reply(tokens=1)]):
        json.dumps(reduce_serving(traces, "concurrency", 1, slo=LOOSE), allow_nan=False)


def test_order_of_the_traces_does_not_matter():
    traces = session_loop()
    mixed = random.Random(1).sample(traces, len(traces))
    assert reduce_serving(mixed, "sessions", 2, slo=LOOSE) == reduce_serving(traces, "sessions", 2, slo=LOOSE)


# Sessions


def test_the_window_of_sessions_is_where_all_slots_hold_one():
    # Two slots of three sessions of 6.5 s, the second slot a second later.
    traces = session_loop()
    assert measured_window(traces, "sessions", 2) == ("steady", (1.5, pytest.approx(14.0)))
    row = reduce_serving(traces, "sessions", 2)
    assert row["achieved_sessions"] == pytest.approx(2)
    # A session waits 2 of its 6.5 s for nothing but itself: requests in flight are fewer than sessions.
    assert row["achieved_concurrency"] < 1.5
    assert (row["n_sessions"], row["sessions_completed"], row["n_requests"]) == (6, 6, 18)
    assert row["load_kind"] == "sessions" and row["n_not_sent"] is None
    assert "littles-law" not in flag_names(row)


def test_occupancy_of_sessions_is_over_the_requests_that_were_in_flight():
    row = reduce_serving(session_loop(), "sessions", 2)
    expected = row["output_throughput_tok_per_s"] / (row["achieved_concurrency"] * row["decode_speed_tok_per_s"])
    assert row["occupancy"] == pytest.approx(expected) and row["occupancy"] > 0.6


def test_too_few_sessions_give_the_full_run_and_say_so():
    row = reduce_serving(session_loop(slots=2, per_slot=1), "sessions", 2)
    assert row["window"] == "full" and row["window_s"] == pytest.approx(7.5) and "window" in flag_names(row)


def test_three_sessions_in_two_slots_are_too_few_for_a_steady_part():
    traces = [r for r in session_loop(slots=2, per_slot=2) if r.session != "s1n1"]
    assert measured_window(traces, "sessions", 2)[0] == "full"
    assert measured_window(session_loop(slots=2, per_slot=2), "sessions", 2)[0] == "steady"


def test_a_session_is_completed_when_all_its_planned_turns_are():
    whole, cut = session("a", 0.0), session("b", 0.0)[:2]
    cut[1] = failed("bt1", at=2.5, session="b")
    row = reduce_serving([*whole, *cut], "sessions", 2, planned={"a": 3, "b": 3})
    assert (row["sessions_completed"], row["n_sessions"], row["n_not_sent"]) == (1, 2, 1)
    assert "not-sent" in flag_names(row)
    assert reduce_serving(whole, "sessions", 1, planned={"a": 4})["sessions_completed"] == 0


def test_requests_without_a_session_are_sessions_of_one():
    spans = sessions_of([reply("x"), reply("y", session="x"), reply("z", session="x")])
    assert [len(span.requests) for span in spans.values()] == [1, 2]


def test_parallel_turns_make_one_session_and_several_requests_in_flight():
    turns = [reply(f"t{i}", at=0.0, session="a") for i in range(4)]
    row = reduce_serving(turns, "sessions", 1)
    assert row["achieved_sessions"] == pytest.approx(1) and row["achieved_concurrency"] == pytest.approx(4)


def test_sixteen_agents_on_one_machine_are_one_machine():
    row = reduce_serving(session_loop(slots=16, per_slot=2), "sessions", 16)
    assert row["devices"] == 1 and row["load"] == 16


# Arrivals by the clock


def open_loop(n=40, rate=4.0, service=0.5):
    """Requests due every 1/rate seconds at a server that does one at a time in ``service`` seconds."""
    free, traces = 0.0, []
    for i in range(n):
        due = i / rate
        free = max(free, due) + service
        traces.append(reply(f"r{i}", due, first=free - due, tokens=1))
    return traces


def test_latency_of_an_open_loop_runs_from_the_schedule():
    # 500 ms of service, due every 100 ms, one at a time: the median user waits for half the queue.
    traces = [
        reply(f"r{i}", 0.1 * i, sent=0.5 * i, arrivals_s=[0.5 * i + 0.5], arrival_tokens=[1], wanted_tokens=1,
              finished_s=0.5 * i + 0.5)
        for i in range(8)
    ]  # fmt: skip
    row = reduce_serving(traces, "request_rate", 10.0)
    assert row["e2e_p50_ms"] == row["ttft_p50_ms"] == pytest.approx(1000 * (0.5 + 0.4 * 3.5))


def test_the_drain_is_left_out_of_the_window_and_kept_beside_it():
    row = reduce_serving(open_loop(n=41, rate=4.0, service=0.2), "request_rate", 4.0)
    assert row["window"] == "arrivals" and row["window_s"] == pytest.approx(10.0)
    assert row["output_throughput_tok_per_s"] == pytest.approx(4.0)  # 40 of 41 tokens came in 10 s
    assert row["full_window_s"] == pytest.approx(10.2)
    assert row["output_throughput_full_tok_per_s"] == pytest.approx(41 / 10.2)


def test_a_server_that_falls_behind_shows_a_backlog_and_one_that_keeps_up_does_not():
    assert "backlog" in flag_names(reduce_serving(open_loop(rate=4.0, service=0.5), "request_rate", 4.0))
    row = reduce_serving(open_loop(rate=4.0, service=0.2), "request_rate", 4.0)
    assert "backlog" not in flag_names(row) and row["latency_growth"] == pytest.approx(1)
    assert reduce_serving(open_loop(n=29), "request_rate", 4.0)["latency_growth"] is None


def test_rates_below_one_are_loads_and_no_limit_is_none():
    assert reduce_serving(open_loop(rate=0.5), "request_rate", 0.5)["load"] == 0.5
    for kind, load in (("request_rate", float("inf")), ("request_rate", 0), ("concurrency", 0), ("concurrency", 1.5),
                       ("concurrency", float("nan")), ("sessions", -1)):  # fmt: skip
        with pytest.raises(UserError, match=f"{kind} is"):
            reduce_serving([reply()], kind, load)
    with pytest.raises(UserError, match="load_kind is 'users'"):
        reduce_serving([reply()], "users", 1)


# Failures


def test_failed_requests_enter_no_latency_and_no_throughput_and_stay_in_the_window():
    good = closed_loop(1, 4)
    bad = [failed(f"f{i}", at=6.0 + i, after=1.0) for i in range(2)]
    row, alone = reduce_serving([*good, *bad], "concurrency", 10), reduce_serving(good, "concurrency", 10)
    for name in ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms", "output_tokens", "itl_p50_ms", "mean_output_tokens"):
        assert row[name] == alone[name]
    assert row["full_window_s"] == pytest.approx(8.0)
    assert row["output_throughput_tok_per_s"] == pytest.approx(44 / 8.0)
    assert row["outcomes"] == {"completed": 4, "refused": 2} and row["n_failed"] == 2
    assert "failures: 2 of 6 requests did not complete (2 refused)" in row["flags"][0]


def test_a_point_where_everything_failed_has_no_numbers_and_no_zeros():
    row = reduce_serving([failed(f"f{i}", at=i) for i in range(40)], "concurrency", 1, slo=LOOSE)
    missing = [name for name in row if name.endswith(("_ms", "tok_per_s")) and name not in ("client_lag_ms",)]
    assert all(row[name] is None for name in missing if name != "goodput_tok_per_s"), missing
    assert row["slo_share"] == 0 and row["goodput_per_s"] == 0 and row["slo_met"] is False
    assert row["token_sources"] == {} and row["tokens_per_chunk"] is None and row["cache_hit_rate"] is None


def test_empty_replies_are_no_successes_with_a_ttft_of_zero():
    empties = [failed(f"e{i}", outcome="empty", error=None) for i in range(50)]
    row = reduce_serving([*empties, reply()], "concurrency", 1)
    assert row["ttft_p50_ms"] == pytest.approx(500) and row["n_completed"] == 1 and row["outcomes"]["empty"] == 50


def test_tokens_of_requests_cut_off_at_the_end_were_delivered():
    # A run that is stopped: without the tokens of what was in flight, throughput would be lower than it was.
    traces = closed_loop(4, 5)
    cut = [
        dataclasses.replace(r, outcome="cancelled", error="window over") if r.scheduled_s > 5.9 else r for r in traces
    ]
    assert sum(r.outcome == "cancelled" for r in cut) == 4
    row, whole = reduce_serving(cut, "concurrency", 4), reduce_serving(traces, "concurrency", 4)
    assert row["output_throughput_tok_per_s"] == pytest.approx(whole["output_throughput_tok_per_s"])
    assert row["output_throughput_full_tok_per_s"] == pytest.approx(whole["output_throughput_full_tok_per_s"])
    assert row["n_completed"] == 16 and row["output_tokens"] == 16 * 11


def test_tokens_of_requests_that_the_server_broke_off_do_not_count():
    broken = reply("b", at=0.0, outcome="disconnected", error="connection reset")
    row = reduce_serving([reply("a"), broken], "concurrency", 2)
    assert row["output_throughput_tok_per_s"] == pytest.approx(11 / 1.5)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (reply(outcome="done"), "outcome is 'done'"),
        (reply(outcome="completed", error="boom"), "outcome 'completed' with 11 tokens"),
        (reply(outcome="truncated"), "outcome 'truncated' with 11 tokens and error None"),
        (reply(tokens=0, outcome="completed"), "with 0 tokens"),
        (reply(at=1.0, sent=0.5), "times run backwards"),
    ],
)
def test_contradictory_traces_are_refused(request_, says):
    with pytest.raises(UserError, match=says):
        reduce_serving([request_], "concurrency", 1)
    with pytest.raises(UserError, match="no requests"):
        reduce_serving([], "concurrency", 1)


# Goodput


def test_goodput_counts_requests_that_kept_the_slo_and_failures_stay_in_the_share():
    fast = [reply(f"a{i}", at=2.0 * i) for i in range(3)]
    slow = [reply("b", at=6.0, gap=0.2)]
    row = reduce_serving([*fast, *slow, failed(at=8.5)], "concurrency", 10, slo=Slo(tpot_ms=150, share=0.6))
    length = row["window_s"]
    assert row["slo_share"] == pytest.approx(3 / 5) and row["slo_met"] is True
    assert row["goodput_per_s"] == pytest.approx(3 / length)
    assert row["goodput_tok_per_s"] == pytest.approx(33 / length)
    assert row["output_throughput_tok_per_s"] == pytest.approx(44 / length)
    strict = reduce_serving([*fast, *slow], "concurrency", 10, slo=Slo(tpot_ms=150))
    assert strict["slo_share"] == 0.75 and strict["slo_met"] is False
    without = reduce_serving(fast, "concurrency", 10)
    assert (
        without["slo_share"] is without["goodput_per_s"] is without["goodput_tok_per_s"] is without["slo_met"] is None
    )


def test_goodput_under_a_loose_slo_is_throughput():
    row = reduce_serving(closed_loop(), "concurrency", 4, slo=LOOSE)
    assert row["goodput_tok_per_s"] == pytest.approx(row["output_throughput_tok_per_s"])
    assert row["goodput_per_s"] == pytest.approx(row["request_throughput_per_s"])


def test_what_was_cancelled_without_being_late_is_in_no_share():
    cut = failed("c", outcome="cancelled", error="window over", after=0.2)
    row = reduce_serving([reply(), cut], "concurrency", 2, slo=Slo(ttft_ms=600))
    assert row["slo_share"] == 1.0 and row["n_slo_unknown"] == 1


# Tokens


def test_chunks_of_several_tokens_are_counted_in_tokens():
    # Four tokens a chunk, as with speculation: gaps between chunks are not times per token.
    row = reduce_serving([reply(f"r{i}", at=2.0 * i, tokens=12, chunk=4) for i in range(4)], "concurrency", 1)
    assert row["tokens_per_chunk"] == 4 and row["output_tokens"] == 48
    assert row["itl_p50_ms"] == pytest.approx(100) and row["tpot_p50_ms"] == pytest.approx(200 / 11)


def test_chunks_without_content_open_no_gap_and_are_not_the_first_token():
    role = reply(arrivals_s=[0.1, 0.5, 0.6, 0.8], arrival_tokens=[0, 1, 0, 1], finished_s=0.8, wanted_tokens=2)
    row = reduce_serving([role], "concurrency", 1)
    assert row["ttft_p50_ms"] == pytest.approx(500) and row["itl_p50_ms"] == pytest.approx(300)


def test_replies_that_come_in_one_piece_have_no_speed_rather_than_an_infinite_one():
    row = reduce_serving([reply(f"r{i}", at=i, tokens=10, chunk=10) for i in range(5)], "concurrency", 1)
    assert row["tpot_p50_ms"] is row["itl_p50_ms"] is row["decode_speed_tok_per_s"] is row["occupancy"] is None
    assert row["output_throughput_tok_per_s"] > 0


def test_replies_shorter_or_longer_than_asked_for_are_flagged():
    # Without "ignore end of sequence" some replies stop early: a lighter workload than the one that was planned.
    traces = [reply(f"r{i}", at=2.0 * i, wanted_tokens=11 if i else 500) for i in range(5)]
    row = reduce_serving(traces, "concurrency", 1)
    assert row["n_short"] == 1 and row["n_long"] == 0 and "short-outputs" in flag_names(row)
    row = reduce_serving([reply(wanted_tokens=5)], "concurrency", 1)
    assert row["n_long"] == 1 and "long-outputs" in flag_names(row)
    assert reduce_serving([reply(wanted_tokens=None)], "concurrency", 1)["n_short"] == 0


def test_where_counts_come_from_is_kept_and_mixing_is_flagged():
    mixed = [reply("a"), reply("b", token_source="tokenizer"), failed(token_source=None)]
    row = reduce_serving(mixed, "concurrency", 1)
    assert row["token_sources"] == {"usage": 1, "tokenizer": 1} and "token-sources" in flag_names(row)
    assert "token-sources" in flag_names(reduce_serving([reply(token_source="chunks")], "concurrency", 1))
    assert "token-sources" not in flag_names(reduce_serving([reply()], "concurrency", 1))


def test_thoughts_are_counted_where_they_are_told():
    row = reduce_serving([reply("a", reasoning_tokens=4), reply("b", reasoning_tokens=None)], "concurrency", 1)
    assert row["reasoning_tokens"] == 4
    assert reduce_serving([reply()], "concurrency", 1)["reasoning_tokens"] is None


def test_input_throughput_counts_new_tokens_and_the_logical_one_all():
    traces = [reply(f"r{i}", at=1.5 * i, prompt=100, cached=25) for i in range(4)]
    row = reduce_serving(traces, "concurrency", 10)
    assert row["input_throughput_tok_per_s"] == pytest.approx(300 / 6.0)
    assert row["logical_input_throughput_tok_per_s"] == pytest.approx(400 / 6.0)
    assert row["cached_input_tokens"] == 100 and row["cache_hit_rate"] == 0.25 and row["mean_input_tokens"] == 100


def test_a_cache_that_is_not_told_is_unknown_and_not_empty():
    row = reduce_serving([reply("a", cached=None), reply("b", cached=4)], "concurrency", 1)
    for name in ("input_throughput_tok_per_s", "cached_input_tokens", "cache_hit_rate"):
        assert row[name] is None
    assert row["logical_input_throughput_tok_per_s"] > 0 and "cache-told" in flag_names(row)
    silent = reduce_serving([reply(cached=None)], "concurrency", 1)
    assert silent["cache_hit_rate"] is None and "cache-told" not in flag_names(silent)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 4))
def test_no_token_is_lost_or_counted_twice(lengths, slots):
    traces = [reply(f"r{i}", at=0.3 * i, tokens=n) for i, n in enumerate(lengths)]
    row = reduce_serving(traces, "concurrency", slots)
    assert row["output_tokens"] == sum(lengths)
    assert row["output_throughput_full_tok_per_s"] * row["full_window_s"] == pytest.approx(sum(lengths))
    assert row["output_throughput_tok_per_s"] * row["window_s"] <= sum(lengths) + 1e-6


# Percentiles and the client


@pytest.mark.parametrize(
    ("n", "p90", "p99"), [(29, False, False), (30, True, False), (299, True, False), (300, True, True)]
)
def test_percentiles_need_enough_requests_however_many_gaps_they_have(n, p90, p99):
    row = reduce_serving([reply(f"r{i}", at=2.0 * i) for i in range(n)], "concurrency", 1)
    for name in ("ttft", "tpot", "e2e", "itl"):
        assert (row[f"{name}_p90_ms"] is not None, row[f"{name}_p99_ms"] is not None) == (p90, p99), name
    assert (row["decode_speed_p90_tok_per_s"] is not None) == (row["e2e_speed_p90_tok_per_s"] is not None) == p90
    assert ("percentiles" in flag_names(row)) == (not p90)


def test_both_p90_speeds_are_of_the_slow_side():
    traces = [reply(f"r{i}", at=3.0 * i, gap=0.1 if i < 25 else 0.2) for i in range(30)]
    row = reduce_serving(traces, "concurrency", 1)
    assert row["decode_speed_p90_tok_per_s"] == pytest.approx(1 / 0.2)  # the fast decile would say 10
    assert row["e2e_speed_p90_tok_per_s"] == pytest.approx(11 / 2.5)


def test_what_the_client_says_of_itself_is_kept_and_flagged():
    quiet = {"send_late_p50_ms": 0.1, "loop_delay_p50_ms": 0.2, "loop_delay_p99_ms": 3.0, "cpu_s": 1.0, "wall_s": 9.0}
    row = reduce_serving([reply()], "concurrency", 1, lag=quiet)
    assert row["client_lag_ms"] == 0.2 and row["client_loop_delay_p99_ms"] == 3.0 and row["client_cpu_s"] == 1.0
    assert not {"client-lag", "client-tail"} & set(flag_names(row))
    busy = reduce_serving([reply()], "concurrency", 1, lag=quiet | {"loop_delay_p50_ms": 5.1, "loop_delay_p99_ms": 101})
    assert {"client-lag", "client-tail"} <= set(flag_names(busy))  # 5 % of a TPOT of 100 ms, and a whole one
    late = reduce_serving([reply(sent=0.006)], "concurrency", 1)
    assert late["client_lag_ms"] == pytest.approx(6) and "client-lag" in flag_names(late)
    # A wait for a free place under a limit is intended: the generator counts it out of its lateness, not of latency.
    queued = reduce_serving([reply(sent=0.2, first=0.5)], "request_rate", 5.0, lag=quiet)
    assert queued["client_lag_ms"] == 0.2 and queued["ttft_p50_ms"] == pytest.approx(500)


def test_littles_law_of_a_curve_over_sessions_counts_sessions():
    rows = [reduce_serving(session_loop(slots=2, per_slot=8), "sessions", load) for load in (2, 4)]
    frame = pd.DataFrame(rows).assign(contender="a", workload="agents", repeat=1)
    found = [str(f) for f in check_curve("A", Curve.from_points(frame, workload="agents"))]
    assert [text for text in found if "littles-law" in text and "2 sessions in flight at load 4" in text]


def test_a_load_that_was_not_kept_and_an_impossible_occupancy_are_flagged():
    row = reduce_serving(closed_loop(slots=2, per_slot=20), "concurrency", 4)
    assert "littles-law" in flag_names(row)
    sessions = reduce_serving(session_loop(slots=2, per_slot=8), "sessions", 4)
    assert "littles-law: 2 sessions" in " ".join(sessions["flags"])
    # All tokens in two bursts a long time apart: the throughput of a burst against the speed of the whole reply.
    assert "occupancy" in flag_names(reduce_serving(closed_loop(slots=4, per_slot=8), "concurrency", 1))


def test_a_clean_point_has_no_flag():
    traces = closed_loop(4, 80)
    assert reduce_serving(traces, "concurrency", 4, slo=LOOSE, lag={"loop_delay_p50_ms": 0.1})["flags"] == []
