"""Replaying a trace: equal hashes become equal tokens, lengths are kept, and what is left out is counted and named."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.build import build, prepare
from wholecurve.studies.serving.workloads.plan_parts import TracePlan
from wholecurve.studies.serving.workloads.traces.own import write_sessions

SAMPLES = Path(__file__).parents[1] / "data" / "traces"
POINT = {"seed": 3, "load": 1, "repeat": 1, "vocab_size": 49152}


def plan(name, **fields):
    return TracePlan(path=str(SAMPLES / name), **fields)


@pytest.fixture(scope="module")
def tokenizer(real_model_files):
    from wholecurve.models.tokenizer import load_tokenizer

    return load_tokenizer(real_model_files.hf_folder())


def turns_of(sessions):
    return [turn for session in sessions for turn in session.turns]


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class TestBlocks:
    def test_equal_hashes_are_equal_tokens_and_lengths_are_exact(self):
        first, second, fourth, third, fifth, last = turns_of(build(plan("mooncake.jsonl"), **POINT))
        assert [len(t.prompt) for t in (first, second, third, fourth, fifth, last)] == [1200, 1536, 1700, 300, 512, 40]
        assert first.prompt[:1024] == second.prompt[:1024] == third.prompt[:1024]
        assert second.prompt[1024:1200] != first.prompt[1024:]
        # A block that was there in part goes on as the same block.
        assert third.prompt[:1200] == first.prompt and fifth.prompt[:300] == fourth.prompt

    def test_what_an_earlier_prompt_begins_with_is_told(self):
        sessions = build(plan("mooncake.jsonl"), **POINT)
        assert [turn.shared_tokens for turn in turns_of(sessions)] == [0, 1024, 0, 1200, 300, 0]

    @pytest.mark.parametrize("change", [{"seed": 4}, {"load": 2}, {"repeat": 2}, {"purpose": "warm-up"}])
    def test_no_block_comes_back_in_another_level_repeat_or_purpose(self, change):
        here = turns_of(build(plan("mooncake.jsonl"), **POINT))
        there = turns_of(build(plan("mooncake.jsonl"), **{**POINT, **change}))
        assert [len(turn.prompt) for turn in here] == [len(turn.prompt) for turn in there]
        assert max(common(a.prompt, b.prompt) for a in here for b in there) <= 1

    def test_a_trace_in_other_blocks_needs_to_say_so(self, tmp_path):
        row = {"input_length": 150, "output_length": 2, "hash_ids": [1, 2, 3]}
        path = tmp_path / "m.jsonl"
        path.write_text(json.dumps(row))
        with pytest.raises(UserError, match=r"has 3 hashes for 150 tokens, where blocks of 512 would be 1"):
            build(TracePlan(path=str(path)), **POINT)
        assert turns_of(build(TracePlan(path=str(path), block_tokens=64), **POINT))[0].prompt_tokens == 150

    def test_tokens_behind_the_last_hash_are_new(self):
        """Recorders that hash whole blocks alone leave the rest of a prompt untold."""
        turns = {turn.turn_id: turn for turn in turns_of(build(plan("weka/one.json"), **POINT))}
        first, second = turns["one.000"].prompt, turns["one.001"].prompt
        assert len(first) == 200 and len(second) == 256
        assert first[:192] == second[:192] and first[192:] != second[192:200]
        assert turns["one.001"].shared_tokens == 192
        assert turns["one.002.000"].shared_tokens == 64

    def test_hashes_of_two_sessions_are_not_mixed_up(self):
        one, two = build(plan("weka"), **POINT)
        assert common(one.turns[0].prompt, two.turns[0].prompt) <= 1
        assert two.turns[0].shared_tokens == 0 and two.turns[1].shared_tokens == 64

    @given(data=st.data())
    @settings(max_examples=40)
    def test_any_trace_of_hashes_shares_what_it_says_and_nothing_else(self, data, tmp_path_factory):
        size = data.draw(st.integers(4, 40))
        rows = []
        for _ in range(data.draw(st.integers(1, 8))):
            blocks = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
            cut = data.draw(st.integers(0, size - 1))
            rows.append({"input_length": len(blocks) * size - cut, "output_length": 1, "hash_ids": blocks})
        path = tmp_path_factory.mktemp("trace") / "m.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        turns = turns_of(build(TracePlan(path=str(path), format="mooncake", block_tokens=size), **POINT))
        for i, (row, turn) in enumerate(zip(rows, turns, strict=True)):
            assert len(turn.prompt) == row["input_length"]
            found = max((common(turn.prompt, before.prompt) for before in turns[:i]), default=0)
            assert 0 <= found - turn.shared_tokens <= 1
            for j, block in enumerate(row["hash_ids"]):
                for other, there in zip(rows, turns):
                    for k, same in enumerate(other["hash_ids"]):
                        here, over = turn.prompt[j * size : j * size + size], there.prompt[k * size : k * size + size]
                        if block == same:
                            assert common(here, over) == min(len(here), len(over))
                        else:
                            assert common(here, over) <= 2


@pytest.mark.parametrize("name", ["azure_2023.csv", "azure_2024.csv", "burstgpt.csv"])
def test_requests_of_a_trace_of_lengths_share_nothing(name):
    """sample-apj-sup-sa#181: of replayed payloads 0.1 % were unique, so that a cache answered the rest."""
    prompts = [turn.prompt for turn in turns_of(build(plan(name, misfits="drop"), **POINT))]
    assert len(prompts) > 1
    assert max(common(a, b) for i, a in enumerate(prompts) for b in prompts[:i]) <= 1


class TestContinuedPrompts:
    def test_a_turn_has_the_prompt_before_it_the_reply_and_its_new_tokens(self):
        a, b = build(plan("mooncake_sessions.jsonl"), **POINT)
        assert [len(turn.prompt) for turn in a.turns] == [100, 100 + 10 + 30, 140 + 8 + 20]
        for before, turn in pairwise(a.turns):
            assert turn.prompt[: len(before.prompt)] == before.prompt
            assert turn.shared_tokens == len(before.prompt)
            assert turn.after == (before.turn_id,)
        assert common(a.turns[0].prompt, b.turns[0].prompt) <= 1

    def test_the_replies_in_a_prompt_count_for_the_window(self):
        assert build(plan("mooncake_sessions.jsonl"), limit_tokens=172, **POINT)
        with pytest.raises(UserError, match=r"session a needs 172 tokens in turn a.t002, .* window holds 171"):
            build(plan("mooncake_sessions.jsonl"), limit_tokens=171, **POINT)

    def test_as_messages_they_keep_their_roles(self):
        a, _ = build(plan("mooncake_sessions.jsonl", prompts="messages"), **POINT)
        assert [message["role"] for message in a.turns[2].prompt] == ["user", "assistant", "user", "assistant", "user"]


class TestWhatIsTaken:
    def starts(self, *args, **fields):
        return [session.start_s for session in build(plan(*args, **fields), **POINT)]

    def test_sessions_come_in_the_order_of_arrival_from_0(self):
        assert self.starts("mooncake.jsonl") == [0, 0, 2.5, 3.052, 9, 12]
        assert self.starts("burstgpt.csv", misfits="drop") == [0, 40, 113, 120]

    def test_speed_up_divides_arrivals_and_waits(self):
        assert self.starts("mooncake.jsonl", speed_up=2) == [0, 0, 1.25, 1.526, 4.5, 6]
        a, _ = build(plan("mooncake_sessions.jsonl", speed_up=4), **POINT)
        assert [turn.delay_s for turn in a.turns] == [0.0, 0.5, 0.0625]

    def test_the_first_ones_and_a_window_are_taken(self):
        assert self.starts("mooncake.jsonl", first=3) == [0, 0, 2.5]
        assert self.starts("mooncake.jsonl", window_s=[2.5, 9]) == [0.0, pytest.approx(0.552)]
        with pytest.raises(UserError, match=r"window_s: no session of .* arrives in \[50, 60\) seconds"):
            self.starts("mooncake.jsonl", window_s=[50, 60])
        with pytest.raises(UserError, match=r"the session has no arrival to choose by"):
            self.starts("weka", window_s=[0, 5])

    def test_a_load_that_needs_more_sessions_than_there_are_is_refused(self):
        assert len(build(plan("mooncake.jsonl"), count=4, **POINT)) == 4
        with pytest.raises(UserError, match=r"6 sessions can be taken, and the load needs 7"):
            build(plan("mooncake.jsonl"), count=7, **POINT)
        with pytest.raises(UserError, match=r"2 sessions can be taken, and the load needs 3"):
            build(plan("mooncake.jsonl", first=2), count=3, **POINT)

    @pytest.mark.parametrize(
        "name, limit, words",
        [
            ("burstgpt.csv", None, "line 5: session s000003 has no reply to turn r000003; misfits: drop leaves"),
            ("mooncake.jsonl", 1700, r"line 3: session s000002 needs 1709 tokens.*window holds 1700"),
            ("azure_multimodal.csv", None, "line 3: session s000001 has images"),
            ("weka", 300, r"one.json: session one needs 339 tokens in turn one.004"),
        ],
    )
    def test_misfits_are_refused_by_name_or_dropped_and_counted(self, name, limit, words):
        with pytest.raises(UserError, match=words):
            build(plan(name), limit_tokens=limit, **POINT)
        made = prepare(plan(name, misfits="drop"), limit_tokens=limit, **POINT)
        (note,) = [note for note in made.notes if "dropped" in note]
        total = len(made.sessions) + 1
        assert note.startswith(f"1 of {total} sessions dropped: ")
        assert all(len(turn.prompt) + turn.output_tokens <= (limit or 10**9) for turn in turns_of(made.sessions))

    def test_dropped_sessions_do_not_count_as_taken_ones(self):
        made = prepare(plan("burstgpt.csv", misfits="drop", first=4), **POINT)
        assert len(made.sessions) == 4
        assert [note for note in made.notes if "(s000003)" in note]

    def test_a_trace_of_which_nothing_fits_is_refused(self):
        with pytest.raises(UserError, match=r"no session is left to replay; 5 were dropped"):
            build(plan("burstgpt.csv", misfits="drop"), limit_tokens=20, **POINT)


class TestRecordedContents:
    def own(self, folder, prompt):
        path = folder / "own.jsonl"
        write_sessions(
            path, [Session("a", (Turn("a.0", prompt, 4), Turn("a.1", prompt, 2, ("a.0",), shared_tokens=2)))]
        )
        return str(path)

    def test_ids_get_one_block_of_mark_in_front(self, tmp_path):
        path = self.own(tmp_path, [5, 6, 7])
        made = prepare(TracePlan(path=path), **POINT)
        first, second = made.sessions[0].turns
        assert first.prompt[16:] == [5, 6, 7] and first.prompt == second.prompt
        assert any("have a mark of at most 16 tokens in front" in note for note in made.notes)
        other = build(TracePlan(path=path), **{**POINT, "repeat": 2})[0].turns[0]
        assert common(first.prompt, other.prompt) <= 1

    def test_text_and_messages_are_marked_at_their_beginning(self, tmp_path):
        text = build(TracePlan(path=self.own(tmp_path, "Hello"), prompts="text"), **POINT)[0].turns[0].prompt
        assert text.endswith("] Hello") and text[0] == "[" and len(text) == 14 + 6
        chat = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hello"}]
        marked = build(TracePlan(path=self.own(tmp_path, chat), prompts="messages"), **POINT)[0].turns[0].prompt
        assert marked[0]["content"].endswith("] Be kind") and marked[1:] == chat[1:]
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
        marked = build(TracePlan(path=self.own(tmp_path, parts), prompts="messages"), **POINT)[0].turns[0].prompt
        assert marked[0]["content"][1:] == parts[0]["content"]

    def test_contents_in_another_form_are_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"line 2: holds prompts as text, and the workload has prompts: ids"):
            build(TracePlan(path=self.own(tmp_path, "Hello")), **POINT)

    def test_ids_beyond_the_vocabulary_are_misfits(self, tmp_path):
        with pytest.raises(UserError, match=r"has ids beyond the model's vocabulary in a.0"):
            build(TracePlan(path=self.own(tmp_path, [5, 49152])), **POINT)

    def test_the_room_for_the_mark_counts(self, tmp_path):
        path = self.own(tmp_path, [5, 6, 7])
        assert build(TracePlan(path=path), limit_tokens=23, **POINT)
        with pytest.raises(UserError, match=r"needs 23 tokens in turn a.0, and the model's window holds 22"):
            build(TracePlan(path=path), limit_tokens=22, **POINT)

    def test_hashes_without_the_length_of_a_block_are_refused(self, tmp_path):
        path = tmp_path / "own.jsonl"
        text = (SAMPLES / "wholecurve.jsonl").read_text().replace('"block_tokens":16,', "")
        path.write_text("\n".join(line for line in text.splitlines() if "s1" not in line))
        with pytest.raises(UserError, match=r"workload.block_tokens must say how long a block is"):
            build(TracePlan(path=str(path)), **POINT)
        first, second = build(TracePlan(path=str(path), block_tokens=16), **POINT)
        assert second.turns[0].prompt[:32] == first.turns[0].prompt[:32]
        assert second.turns[0].shared_tokens == 32


@pytest.mark.real_model
class TestConversations:
    def test_recorded_messages_are_sent_with_a_mark_that_is_as_short_as_said(self, tokenizer):
        sharegpt = plan("sharegpt.json", prompts="messages", misfits="drop")
        made = prepare(sharegpt, tokenizer=tokenizer, **POINT)
        assert [len(session.turns) for session in made.sessions] == [2, 1]
        marked = made.sessions[0].turns[0].prompt[0]["content"]
        text = "How many hours does a day have?"
        assert marked.endswith(text)
        grown = len(tokenizer.encode(marked)) - len(tokenizer.encode(text))
        assert 0 < grown <= 16

    def test_lengths_alone_become_ids_of_the_same_lengths(self, tokenizer):
        made = prepare(plan("sharegpt.json", misfits="drop"), tokenizer=tokenizer, **POINT)
        one = made.sessions[0]
        assert len(one.turns[0].prompt) == len(tokenizer.encode("How many hours does a day have?"))
        assert one.turns[1].prompt[: len(one.turns[0].prompt)] == one.turns[0].prompt
        assert one.turns[0].output_tokens == len(tokenizer.encode("A day has twenty four hours."))
