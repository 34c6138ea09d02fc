"""Generated workloads: exact lengths, unique prompts, shared beginnings, and the same requests for every contender."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from wholecurve.errors import UserError
from wholecurve.studies.serving.workloads.build import build, prepare, warm_up
from wholecurve.studies.serving.workloads.plan_parts import WorkloadPlan

VOCAB = 49152
POINT = {"seed": 3, "load": 8, "repeat": 1, "vocab_size": VOCAB}
UNION = TypeAdapter(WorkloadPlan)


def plan(kind, **fields):
    return UNION.validate_python({"kind": kind, **fields})


def lengths(**fields):
    return plan("lengths", **{"prompt_tokens": [10, 60], "output_tokens": [1, 20], **fields})


def documents(**fields):
    base = {"document_tokens": [100, 300], "questions_per_document": 3, "question_tokens": [5, 9]}
    return plan("documents", **{**base, "answer_tokens": [2, 7], **fields})


def agents(**fields):
    base = {"turns": [1, 6], "system_tokens": 40, "first_prompt_tokens": [20, 50], "reply_tokens": [5, 30]}
    return plan("agents", **{**base, "tool_result_tokens": [10, 80], "user_tokens": [4, 20], **fields})


SUBAGENTS = {"probability": 0.6, "fan_out": [1, 3], "turns": [1, 3], "first_prompt_tokens": [10, 30]}


def all_turns(sessions):
    return [turn for session in sessions for turn in session.turns]


def common(a, b):
    """How many items two lists begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def shared_by_brute_force(turns):
    """Of each prompt, the longest beginning that an earlier prompt has too."""
    prompts = [turn.prompt for turn in turns]
    return [max((common(prompt, earlier) for earlier in prompts[:i]), default=0) for i, prompt in enumerate(prompts)]


ANY = [lengths(), lengths(shared_prefix_tokens=8, prefix_groups=3), documents(), agents(), agents(subagents=SUBAGENTS)]


@pytest.mark.parametrize("workload", ANY, ids=["lengths", "prefixes", "documents", "agents", "subagents"])
class TestEveryWorkload:
    def test_the_same_point_has_the_same_sessions(self, workload):
        assert build(workload, count=5, **POINT) == build(workload, count=5, **POINT)
        # A level is a number, however it is written.
        assert build(workload, count=5, **POINT) == build(workload, count=5, **{**POINT, "load": 8.0})

    def test_more_sessions_leave_the_first_ones_as_they_are(self, workload):
        assert build(workload, count=9, **POINT)[:5] == build(workload, count=5, **POINT)

    @pytest.mark.parametrize("change", [{"seed": 4}, {"load": 16}, {"repeat": 2}, {"purpose": "tuning"}])
    def test_no_prompt_comes_back_in_another_level_repeat_or_purpose(self, workload, change):
        """vllm#54227, #52884 and PR#10753: the same prompts on a warm cache made results up to 2.3 times faster."""
        here = all_turns(build(workload, count=6, **POINT))
        there = all_turns(build(workload, count=6, **{**POINT, **change}))
        assert max(common(a.prompt, b.prompt) for a in here for b in there) <= 1

    def test_shared_tokens_are_what_an_earlier_prompt_begins_with(self, workload):
        turns = all_turns(build(workload, count=7, **POINT))
        told = [turn.shared_tokens for turn in turns]
        # A random token may be the next one of another prompt by chance, once in a vocabulary.
        assert all(0 <= found - said <= 1 for found, said in zip(shared_by_brute_force(turns), told))
        assert sum(found != said for found, said in zip(shared_by_brute_force(turns), told)) <= 1

    def test_ids_are_ordinary_tokens_of_the_model(self, workload):
        used = {token for turn in all_turns(build(workload, count=4, **POINT)) for token in turn.prompt}
        assert min(used) >= 64 and max(used) < VOCAB

    def test_names_are_unique_and_turns_wait_for_earlier_ones(self, workload):
        sessions = build(workload, count=6, **POINT)
        names = [turn.turn_id for turn in all_turns(sessions)]
        assert len(set(names)) == len(names)
        assert len({session.session_id for session in sessions}) == len(sessions)
        for session in sessions:
            session.check()

    def test_a_count_is_needed(self, workload):
        with pytest.raises(UserError, match=r"None sessions were asked for"):
            build(workload, **POINT)
        with pytest.raises(UserError, match=r"0 sessions were asked for"):
            build(workload, count=0, **POINT)

    def test_warm_up_prompts_are_found_in_no_measured_one(self, workload):
        point = {**POINT, "prompt_tokens": 12, "output_tokens": 3}
        warm = all_turns(warm_up(workload, count=4, **point))
        measured = all_turns(build(workload, count=4, **POINT))
        assert [(len(turn.prompt), turn.output_tokens) for turn in warm] == [(12, 3)] * 4
        assert max(common(a.prompt, b.prompt) for a in warm for b in measured) <= 1
        assert len({tuple(turn.prompt) for turn in warm}) == 4


def test_warm_up_prompts_of_the_same_lengths_are_others():
    workload = lengths(prompt_tokens=[12, 12], output_tokens=[3, 3])
    warm = all_turns(warm_up(workload, count=4, prompt_tokens=12, output_tokens=3, **POINT))
    measured = all_turns(build(workload, count=4, **POINT))
    assert max(common(a.prompt, b.prompt) for a in warm for b in measured) <= 1


class TestLengths:
    @given(st.data())
    @settings(max_examples=40)
    def test_every_length_lies_in_its_range_and_prefixes_are_shared_in_turn(self, data):
        low = data.draw(st.integers(2, 40))
        high = data.draw(st.integers(low, 60))
        prefix = data.draw(st.integers(0, low - 1))
        groups = data.draw(st.integers(1, 4)) if prefix else 1
        workload = lengths(prompt_tokens=[low, high], shared_prefix_tokens=prefix, prefix_groups=groups)
        turns = all_turns(build(workload, count=9, **POINT))
        assert all(low <= len(turn.prompt) <= high for turn in turns)
        assert all(1 <= turn.output_tokens <= 20 for turn in turns)
        for i, turn in enumerate(turns):
            assert turn.shared_tokens == (prefix if i >= groups else 0)
            if i >= groups:
                assert turn.prompt[:prefix] == turns[i - groups].prompt[:prefix]
            elif prefix > 3 and i:
                assert turn.prompt[:prefix] != turns[i - 1].prompt[:prefix]

    def test_both_ends_of_a_range_come_up_and_equal_ends_fix_it(self):
        turns = all_turns(build(lengths(prompt_tokens=[3, 5], output_tokens=[7, 7]), count=60, **POINT))
        assert {len(turn.prompt) for turn in turns} == {3, 4, 5}
        assert {turn.output_tokens for turn in turns} == {7}

    def test_a_heavy_tail_has_its_median_and_stays_within_its_ends(self):
        tail = {"median": 100, "sigma": 1.0, "low": 10, "high": 400}
        turns = all_turns(build(lengths(prompt_tokens=tail), count=400, **POINT))
        drawn = sorted(len(turn.prompt) for turn in turns)
        assert drawn[0] >= 10 and drawn[-1] == 400
        assert 80 <= drawn[200] <= 125

    def test_a_request_that_might_not_fit_is_refused_before_anything_is_made(self):
        workload = lengths(prompt_tokens=[10, 60], output_tokens=[1, 20])
        assert build(workload, count=1, limit_tokens=80, **POINT)
        with pytest.raises(UserError, match=r"up to 80 tokens.*window holds 79"):
            build(workload, count=1, limit_tokens=79, **POINT)

    def test_ids_need_a_vocabulary(self):
        with pytest.raises(UserError, match=r"size of the model's vocabulary or its tokenizer"):
            build(lengths(), count=1, seed=0, load=1, repeat=1)
        with pytest.raises(UserError, match=r"too few ordinary ones"):
            build(lengths(), count=1, seed=0, load=1, repeat=1, vocab_size=2)

    def test_the_requests_do_not_hang_on_the_process_that_makes_them(self):
        code = (
            "import json; from wholecurve.studies.serving.workloads.build import build;"
            "from wholecurve.studies.serving.workloads.plan_parts import LengthsPlan;"
            "s = build(LengthsPlan(prompt_tokens=[10, 60], output_tokens=[1, 20]), seed=3, load=8, repeat=1, count=3,"
            f" vocab_size={VOCAB}); print(json.dumps([t.prompt for x in s for t in x.turns]))"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(found.stdout) == [turn.prompt for turn in all_turns(build(lengths(), count=3, **POINT))]


class TestDocuments:
    def test_every_question_begins_with_its_document(self):
        for session in build(documents(), count=5, **POINT):
            assert len(session.turns) == 3
            first = session.turns[0]
            assert first.after == () and first.shared_tokens == 0
            for before, turn in pairwise(session.turns):
                assert turn.after == (before.turn_id,)
                size = turn.shared_tokens
                assert 100 <= size <= 300 and 5 <= len(turn.prompt) - size <= 9
                assert turn.prompt[:size] == first.prompt[:size]
                assert turn.prompt[size:] != before.prompt[size:]

    def test_listed_sizes_are_taken_in_turn(self):
        workload = documents(document_tokens=None, document_sizes=[50, 70], question_tokens=[4, 4])
        turns = [session.turns[0] for session in build(workload, count=4, **POINT)]
        assert [len(turn.prompt) for turn in turns] == [54, 74, 54, 74]

    def test_a_document_beyond_the_window_is_refused(self):
        with pytest.raises(UserError, match=r"up to 316 tokens"):
            build(documents(), count=1, limit_tokens=315, **POINT)
        assert build(documents(), count=1, limit_tokens=316, **POINT)


class TestAgents:
    def test_each_prompt_is_the_one_before_it_the_reply_and_what_came_next(self):
        sessions = build(agents(turns=[3, 6], tool_share=0.5), count=12, **POINT)
        for session in sessions:
            for before, turn in pairwise(session.turns):
                size = len(before.prompt)
                assert turn.prompt[:size] == before.prompt
                assert turn.shared_tokens == size
                assert turn.after == (before.turn_id,)
                grown = len(turn.prompt) - size - before.output_tokens
                assert 4 <= grown <= 80
        assert {len(session.turns) for session in sessions} == {3, 4, 5, 6}

    @pytest.mark.parametrize("share, came", [(0.0, 9), (1.0, 25)])
    def test_a_prompt_grows_by_exactly_the_reply_and_what_came(self, share, came):
        fixed = {"reply_tokens": [16, 16], "user_tokens": [9, 9], "tool_result_tokens": [25, 25]}
        for session in build(agents(turns=[4, 4], tool_share=share, **fixed), count=3, **POINT):
            assert {len(b.prompt) - len(a.prompt) for a, b in pairwise(session.turns)} == {16 + came}

    def test_all_sessions_begin_with_the_shared_system_prompt(self):
        first, *others = build(agents(), count=4, **POINT)
        assert first.turns[0].shared_tokens == 0
        for session in others:
            assert session.turns[0].shared_tokens == 40
            assert session.turns[0].prompt[:40] == first.turns[0].prompt[:40]
            assert session.turns[0].prompt[40:] != first.turns[0].prompt[40:]

    @pytest.mark.parametrize("share, low, high, wait", [(1.0, 10, 80, 2.0), (0.0, 4, 20, 9.0)])
    def test_tools_answer_after_tool_s_and_users_after_think_s(self, share, low, high, wait):
        workload = agents(turns=[4, 4], tool_share=share, tool_s=[2.0, 2.0], think_s=[9.0, 9.0])
        for session in build(workload, count=5, **POINT):
            assert [turn.delay_s for turn in session.turns] == [0.0, wait, wait, wait]
            for before, turn in pairwise(session.turns):
                assert low <= len(turn.prompt) - len(before.prompt) - before.output_tokens <= high

    def test_waits_with_a_heavy_tail_stay_within_their_ends(self):
        workload = agents(turns=[5, 5], tool_share=1.0, tool_s={"median": 1.0, "sigma": 2.0, "low": 0.5, "high": 4.0})
        waits = [t.delay_s for s in build(workload, count=40, **POINT) for t in s.turns if t.after]
        assert min(waits) == 0.5 and max(waits) == 4.0 and len(set(waits)) > 20

    def test_subagents_run_beside_one_another_and_the_caller_waits_for_all(self):
        workload = agents(
            turns=[4, 4], tool_s=[1.0, 1.0], subagents={**SUBAGENTS, "probability": 1.0, "fan_out": [2, 3]}
        )
        for session in build(workload, count=6, **POINT):
            own = [turn for turn in session.turns if ".a" not in turn.turn_id]
            assert len(own) == 4
            for before, turn in pairwise(own):
                started = [t for t in session.turns if t.after == (before.turn_id,)]
                assert 2 <= len(started) <= 3 and all(t.delay_s == 1.0 for t in started)
                assert len(turn.after) == len(started) and turn.delay_s == 0.0
                for end, start in zip(turn.after, started):
                    assert end.startswith(start.turn_id.rsplit(".t", 1)[0])
                results = len(turn.prompt) - len(before.prompt) - before.output_tokens
                assert 10 * len(started) <= results <= 80 * len(started)
            # The last turn calls nobody, and sub-agents have none of their own.
            assert not [t for t in session.turns if t.after == (own[-1].turn_id,)]
            assert all(turn.turn_id.count(".a") <= 1 for turn in session.turns)

    @given(st.integers(160, 600))
    @settings(max_examples=25)
    def test_no_request_is_longer_than_the_window_and_what_ended_early_is_told(self, limit):
        workload = agents(turns=[8, 8], subagents=SUBAGENTS)
        made = prepare(workload, count=4, limit_tokens=limit, **POINT)
        free = prepare(workload, count=4, **POINT)
        assert all(len(t.prompt) + t.output_tokens <= limit for t in all_turns(made.sessions))
        cut = len(all_turns(free.sessions)) - len(all_turns(made.sessions))
        told = [note for note in made.notes if "chains of turns ended before" in note]
        assert bool(told) == (cut > 0)
        assert not [note for note in free.notes if "ended before" in note]

    def test_a_smaller_window_only_cuts_sessions_short(self):
        workload = agents(turns=[8, 8])
        for short, whole in zip(
            build(workload, count=4, limit_tokens=300, **POINT), build(workload, count=4, **POINT), strict=True
        ):
            assert short.turns == whole.turns[: len(short.turns)]

    def test_a_subagent_whose_context_is_full_moves_nothing_of_its_caller(self):
        long_subagents = {"probability": 1.0, "fan_out": [1, 2], "turns": [12, 12], "first_prompt_tokens": [250, 250]}
        workload = agents(turns=[4, 4], first_prompt_tokens=[1, 2], subagents=long_subagents)
        for short, whole in zip(
            build(workload, count=3, limit_tokens=700, **POINT), build(workload, count=3, **POINT), strict=True
        ):
            there = {turn.turn_id: turn.prompt for turn in whole.turns}
            assert len(short.turns) < len(there)
            assert [turn.turn_id for turn in short.turns if ".a" not in turn.turn_id][-1].endswith(".t03")
            assert all(turn.prompt == there[turn.turn_id] for turn in short.turns)

    def test_a_first_turn_that_does_not_fit_is_refused(self):
        with pytest.raises(UserError, match=r"session s00000: its first request needs \d+ tokens.*window holds 50"):
            build(agents(), count=1, limit_tokens=50, **POINT)

    def test_the_record_says_that_replies_are_synthetic(self):
        notes = prepare(agents(), count=1, **POINT).notes
        assert any("replies in later prompts are synthesised from the seed" in note for note in notes)
        assert any("exact: prompts are token ids" in note for note in notes)
