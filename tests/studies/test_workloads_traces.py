"""Reading recorded traces: every format by its own rules, and each broken row by file, line and field."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.workloads.traces.own import read_sessions, write_sessions
from wholecurve.studies.serving.workloads.traces.recognise import read_trace, recognise

SAMPLES = Path(__file__).parents[1] / "data" / "traces"
FORMATS = {
    "mooncake.jsonl": "mooncake",
    "mooncake_sessions.jsonl": "mooncake",
    "azure_2023.csv": "azure",
    "azure_2024.csv": "azure",
    "azure_multimodal.csv": "azure",
    "burstgpt.csv": "burstgpt",
    "burstgpt_sessions.csv": "burstgpt",
    "sharegpt.json": "sharegpt",
    "bailian.jsonl": "bailian",
    "weka": "weka",
    "weka/one.json": "weka",
    "weka/two.json": "weka",
    "wholecurve.jsonl": "wholecurve",
}


class Letters:
    """A tokenizer of one token per letter."""

    def encode(self, text, add_special_tokens):
        return list(text)


def read(name, kind="auto", **more):
    return read_trace(SAMPLES / name, kind, **more)


def file_with(folder, name, *lines):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name, kind", FORMATS.items())
def test_every_format_is_recognised_by_its_content(name, kind, tmp_path):
    assert recognise(SAMPLES / name) == kind
    if not (SAMPLES / name).is_dir():
        hidden = tmp_path / "trace"
        shutil.copy(SAMPLES / name, hidden)
        assert recognise(hidden) == kind


def test_a_compressed_trace_reads_the_same(tmp_path):
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress((SAMPLES / "mooncake.jsonl").read_bytes()))
    there, here = read_trace(packed, "auto"), read("mooncake.jsonl")
    assert [session.turns for session in there.sessions] == [session.turns for session in here.sessions]
    packed.write_bytes(packed.read_bytes()[:60])
    with pytest.raises(UserError, match=r"trace\.jsonl\.gz: not a text file, or not a whole one"):
        read_trace(packed, "mooncake")


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,b\n1,2\n", "not a trace of a known format; known are wholecurve, mooncake"),
        ('{"a": 1}\n', "not a trace of a known format"),
    ],
)
def test_what_is_no_trace_is_refused(content, words, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=words):
        recognise(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.csv: no such trace file"):
        read_trace(tmp_path / "nothing.csv", "auto")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bytes: not a text file"):
        read_trace(tmp_path / "bytes", "auto")
    with pytest.raises(UserError, match=r"no \.json or \.jsonl files in this folder"):
        (tmp_path / "folder").mkdir()
        read_trace(tmp_path / "folder", "auto")


class TestMooncake:
    def test_rows_have_lengths_hashes_and_arrivals_in_seconds(self):
        recording = read("mooncake.jsonl")
        assert recording.block_tokens == 512
        first, *_, last = recording.sessions
        (turn,) = first.turns
        assert (turn.prompt_tokens, turn.output_tokens, turn.blocks) == (1200, 20, (0, 1, 2))
        assert [session.start_s for session in recording.sessions] == [0, 0, 3.052, 2.5, 9, 12]
        assert last.turns[0].blocks == ()

    def test_rows_of_one_session_follow_one_another_and_count_new_tokens(self):
        a, b = read("mooncake_sessions.jsonl").sessions
        assert [turn.turn_id for turn in a.turns] == ["a.t000", "a.t001", "a.t002"]
        assert [turn.continues for turn in a.turns] == [None, "a.t000", "a.t001"]
        assert [turn.delay_s for turn in a.turns] == [0.0, 2.0, 0.25]
        assert (b.session_id, b.start_s, len(b.turns)) == ("b", 0.5, 1)

    def test_recorded_messages_with_tools_are_kept(self, tmp_path):
        row = {
            "messages": [{"role": "user", "content": "Hi"}],
            "output_length": 5,
            "tools": [{"x": 1}],
            "extra": {"p": 2},
        }
        (session,) = read_trace(file_with(tmp_path, "m.jsonl", json.dumps(row)), "auto").sessions
        assert session.turns[0].prompt == row["messages"]
        assert session.turns[0].extra_body == {"p": 2, "tools": [{"x": 1}]}
        assert session.start_s is None

    @pytest.mark.parametrize(
        "row, words",
        [
            ('{"input_length": 5}', "line 1: output_length is missing"),
            ('{"input_length": 5.5, "output_length": 1}', "input_length is 5.5; a whole number"),
            ('{"input_length": -5, "output_length": 1}', r"input_length is negative \(-5\)"),
            ('{"output_length": 1}', "exactly one of input_length, messages, text_input is needed; there is: none"),
            ('{"input_length": 5, "text_input": "a", "output_length": 1}', "there is: input_length, text_input"),
            ('{"input_length": 5, "output_length": 1, "hash_ids": 7}', "hash_ids is 7; a list of whole numbers"),
            ('{"input_length": 5, "output_length": 1, "hash_ids": [true]}', "hash_ids is a list of 1"),
            ('{"input_length": 5, "output_length": 1, "timestamp": NaN}', "timestamp is NaN"),
            ('{"input_length": 5, "output_length": 1, "delay": -3}', "delay is negative"),
            ('{"messages": [], "output_length": 1}', "messages is a list of 0; a list of chat messages"),
            (
                '{"messages": [{"a": 1}], "message_mode": "delta", "output_length": 1}',
                "message_mode is not replayed here",
            ),
            ("{", "line 1: not valid JSON"),
            ("[1]", "line 1: holds a JSON list"),
        ],
    )
    def test_a_broken_row_is_named(self, row, words, tmp_path):
        with pytest.raises(UserError, match=words):
            read_trace(file_with(tmp_path, "m.jsonl", row), "mooncake")

    def test_hashes_of_a_session_of_several_rows_are_not_guessed_at(self, tmp_path):
        rows = ['{"session_id": "a", "input_length": 5, "output_length": 1, "hash_ids": [1]}'] * 2
        with pytest.raises(UserError, match=r"line 1: hash_ids beside a session_id of several rows"):
            read_trace(file_with(tmp_path, "m.jsonl", *rows), "mooncake")


class TestAzure:
    def test_arrivals_count_from_the_first_row_to_the_microsecond(self):
        recording = read("azure_2023.csv")
        assert [session.start_s for session in recording.sessions] == [0.0, 4.314579, 20.0]
        turns = [session.turns[0] for session in recording.sessions]
        assert [(t.prompt_tokens, t.output_tokens) for t in turns] == [(374, 44), (396, 109), (879, 55)]

    def test_dates_with_a_time_zone_are_read(self):
        assert [session.start_s for session in read("azure_2024.csv").sessions] == [0.0, 1.0]

    def test_requests_with_images_are_misfits(self):
        plain, with_images = (session.turns[0] for session in read("azure_multimodal.csv").sessions)
        assert plain.misfit is None
        assert "images" in with_images.misfit

    @pytest.mark.parametrize(
        "row, words",
        [
            ("yesterday,5,1", "line 3: TIMESTAMP is 'yesterday'; a date as 2023-11-16"),
            ("2024-05-12 00:00:00+00:00,5,1", "line 3: TIMESTAMP is the text .*time zone in every row, or in none"),
            ("2023-11-16 18:15:46,5", "line 3: not as many cells"),
            ("2023-11-16 18:15:46,5,1,7", "line 3: not as many cells"),
            ("2023-11-16 18:15:46,,1", "line 3: ContextTokens is the text ''"),
            ("2023-11-16 18:15:46,5,many", "line 3: GeneratedTokens is the text 'many'"),
        ],
    )
    def test_a_broken_row_is_named(self, row, words, tmp_path):
        path = file_with(tmp_path, "a.csv", *(SAMPLES / "azure_2023.csv").read_text().splitlines()[:2], row)
        with pytest.raises(UserError, match=words):
            read_trace(path, "azure")

    def test_a_missing_column_is_named(self, tmp_path):
        path = file_with(tmp_path, "a.csv", "TIMESTAMP,ContextTokens", "2023-11-16 18:15:46,5")
        with pytest.raises(UserError, match=r"line 1: no column 'GeneratedTokens'"):
            read_trace(path, "azure")

    def test_a_file_without_rows_is_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"no requests in this azure trace"):
            read_trace(file_with(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens"), "auto")


class TestBurstgpt:
    def test_rows_have_lengths_and_arrivals(self):
        recording = read("burstgpt.csv")
        assert [session.start_s for session in recording.sessions] == [5, 45, 118, 120, 125]
        assert [session.turns[0].output_tokens for session in recording.sessions] == [18, 23, 27, 0, 12]
        assert recording.sessions[0].turns[0].prompt_tokens == 47
        assert recording.notes == []

    def test_that_sessions_are_not_used_is_said(self):
        recording = read("burstgpt_sessions.csv")
        assert len(recording.sessions) == 2
        assert "Session ID is not used" in recording.notes[0]


class TestBailian:
    def test_chats_follow_their_parents_after_the_recorded_gap(self):
        recording = read("bailian.jsonl")
        assert recording.block_tokens == 16
        first, second, orphan = recording.sessions
        assert [turn.turn_id for turn in first.turns] == ["c7", "c9"]
        assert first.turns[1].after == ("c7",) and first.turns[1].delay_s == 7.5
        assert (first.start_s, second.start_s, orphan.start_s) == (10.5, 11.0, 19.0)
        assert orphan.turns[0].after == ()
        assert "does not tell when replies ended" in recording.notes[0]

    @pytest.mark.parametrize(
        "rows, words",
        [
            ([(1, -1, 5.0), (1, -1, 6.0)], "line 2: chat_id 1 is there twice; the first is"),
            ([(1, 2, 5.0), (2, 1, 5.0)], "is its own ancestor"),
            ([(1, 2, 5.0), (2, -1, 6.0)], "chat_id 1 comes before its parent 2"),
        ],
    )
    def test_chats_that_contradict_one_another_are_refused(self, rows, words, tmp_path):
        lines = [
            json.dumps(
                {
                    "chat_id": chat,
                    "parent_chat_id": parent,
                    "timestamp": at,
                    "turn": 1,
                    "input_length": 4,
                    "output_length": 1,
                }
            )
            for chat, parent, at in rows
        ]
        with pytest.raises(UserError, match=words):
            read_trace(file_with(tmp_path, "b.jsonl", *lines), "auto")


class TestWeka:
    def test_calls_wait_for_the_call_before_them_and_subagents_run_at_once(self):
        recording = read("weka/one.json")
        assert recording.block_tokens == 64
        (session,) = recording.sessions
        turns = {turn.turn_id: turn for turn in session.turns}
        subagents = ["one.002.000", "one.002.001", "one.003.000"]
        assert list(turns) == ["one.000", "one.001", *subagents, "one.004", "one.005"]
        assert turns["one.000"].after == () and turns["one.000"].delay_s == 0.0
        assert turns["one.001"].after == ("one.000",) and turns["one.001"].delay_s == 1.5
        assert turns["one.002.000"].after == turns["one.003.000"].after == ("one.001",)
        assert turns["one.002.001"].after == ("one.002.000",)
        # 21.0 - 16.0 between the starts, of which the call itself took 2.0.
        assert turns["one.002.001"].delay_s == 3.0
        assert turns["one.004"].after == ("one.002.001", "one.003.000")
        # And the call after that one waits for it alone.
        assert turns["one.005"].after == ("one.004",) and turns["one.005"].delay_s == 2.0
        assert turns["one.004"].blocks == (1, 2, 3, 4, 5, 6)
        assert session.start_s is None and recording.notes == []

    def test_hashes_belong_to_their_session(self):
        recording = read("weka")
        assert {turn.scope for session in recording.sessions for turn in session.turns} == {"one", "two"}

    def test_hashes_of_all_sessions_are_one_space_where_the_trace_says_so(self, tmp_path):
        text = (SAMPLES / "weka" / "two.json").read_text().replace('"local"', '"global"')
        (session,) = read_trace(file_with(tmp_path, "g.json", text), "auto").sessions
        assert {turn.scope for turn in session.turns} == {""}

    def test_a_wait_that_contains_the_recorded_server_is_said_to(self):
        recording = read("weka/two.json")
        assert recording.sessions[0].turns[1].delay_s == 5.0
        assert "1 waits are gaps between the starts of calls" in recording.notes[0]

    def test_json_lines_hold_one_session_each(self, tmp_path):
        lines = [json.dumps(json.loads((SAMPLES / "weka" / name).read_text())) for name in ("one.json", "two.json")]
        recording = read_trace(file_with(tmp_path, "w.jsonl", *lines), "auto")
        assert [session.session_id for session in recording.sessions] == ["one", "two"]

    @pytest.mark.parametrize(
        "change, words",
        [
            ({"requests": []}, "requests is a list of 0"),
            ({"requests": [{"type": "subagent", "requests": []}]}, "request 0: a sub-agent before the first call"),
            ({"requests": [{"type": "x", "in": 1, "out": 1}]}, 'type is the text .*"n", "s" or "subagent"'),
            ({"requests": [{"type": "n", "in": 1}]}, "request 0: out is missing"),
            ({"requests": [7]}, "request 0: not an object"),
            ({"id": ""}, "id is the text ''"),
            ({"block_size": 0}, "block_size is 0"),
        ],
    )
    def test_a_broken_session_is_named(self, change, words, tmp_path):
        document = json.loads((SAMPLES / "weka" / "two.json").read_text()) | change
        with pytest.raises(UserError, match=words):
            read_trace(file_with(tmp_path, "w.json", json.dumps(document)), "weka")

    def test_blocks_of_two_sizes_are_refused(self, tmp_path):
        document = json.loads((SAMPLES / "weka" / "two.json").read_text())
        lines = [json.dumps({**document, "block_size": size}) for size in (64, 32)]
        with pytest.raises(UserError, match=r"blocks of different sizes: 64, 32 tokens"):
            read_trace(file_with(tmp_path, "w.jsonl", *lines), "auto")


class TestSharegpt:
    def test_every_answered_question_is_a_turn_with_all_before_it(self):
        recording = read("sharegpt.json", tokenizer=Letters(), keep_contents=True)
        one, two, three = recording.sessions
        assert [len(turn.prompt) for turn in one.turns] == [1, 3]
        assert [message["role"] for message in one.turns[1].prompt] == ["user", "assistant", "user"]
        assert [turn.output_tokens for turn in one.turns] == [28, 28]
        assert one.turns[1].shared_tokens == len(one.turns[0].prompt[0]["content"])
        assert two.turns[0].prompt[0]["role"] == "system"
        assert three.turns[0].misfit == "has no question that is answered"

    def test_lengths_alone_add_up_to_the_same_prompts(self):
        kept = read("sharegpt.json", tokenizer=Letters(), keep_contents=True).sessions[0]
        bare = read("sharegpt.json", tokenizer=Letters()).sessions[0]
        assert [turn.continues for turn in bare.turns] == [None, "s000000.t000"]
        grown = bare.turns[0].prompt_tokens + bare.turns[0].output_tokens + bare.turns[1].prompt_tokens
        assert grown == kept.turns[1].prompt_tokens
        # A system message before the first question is part of the prompt.
        assert read("sharegpt.json", tokenizer=Letters()).sessions[1].turns[0].prompt_tokens == 19 + 23

    def test_a_tokenizer_is_needed(self):
        with pytest.raises(UserError, match=r"a tokenizer is needed to count their tokens"):
            read("sharegpt.json")

    @pytest.mark.parametrize(
        "document, words",
        [
            ({}, "holds a JSON dict; a list of conversations"),
            ([1], "conversation 0: not an object"),
            ([{"conversations": 1}], "conversation 0: conversations is 1; a list of messages"),
            ([{"conversations": [{"from": "cat", "value": "x"}]}], "message 0: from is the text 'cat'; one of human"),
            ([{"conversations": [{"from": "human"}]}], "message 0: value is missing"),
        ],
    )
    def test_a_broken_conversation_is_named(self, document, words, tmp_path):
        with pytest.raises(UserError, match=words):
            read_trace(file_with(tmp_path, "s.json", json.dumps(document)), "sharegpt", Letters())


class TestOwnFormat:
    SESSIONS = (
        Session("a", (Turn("a.0", [1, 2, 3], 4), Turn("a.1", [1, 2, 3, 9], 2, ("a.0",), 0.25, {"k": [1]}, 3)), 1.5),
        Session("b", (Turn("b.0", "Grüße\u2028\n", 1),)),
        Session("c", (Turn("c.0", [{"role": "user", "content": "x"}], 7),), 0.0),
    )

    def test_what_is_written_is_read(self, tmp_path):
        write_sessions(tmp_path / "s.jsonl", self.SESSIONS)
        assert tuple(read_sessions(tmp_path / "s.jsonl")) == self.SESSIONS
        assert recognise(tmp_path / "s.jsonl") == "wholecurve"

    def test_the_sample_is_read_as_the_docstring_says(self):
        recording = read("wholecurve.jsonl")
        one, two, _ = recording.sessions
        assert recording.block_tokens == 16 and recording.notes == ["written for the tests"]
        assert one.turns[1].extra_body == {"priority": 1} and one.turns[1].delay_s == 1.5
        assert two.turns[0].blocks == ("a", "b", "c") and two.turns[1].continues == "s2.t0"
        with pytest.raises(UserError, match=r"line 3, turn s2.t0: has no prompt; only a trace workload makes one"):
            read_sessions(SAMPLES / "wholecurve.jsonl")

    @pytest.mark.parametrize(
        "line, words",
        [
            ("{", "line 2: not valid JSON"),
            ('{"session_id": "a"}', "line 2: turns is missing"),
            ('{"session_id": "a", "turns": []}', "line 2: session a has no turns"),
            ('{"session_id": "a", "turns": [1]}', "line 2, turn 0: not an object"),
            ('{"session_id": "a", "turns": [], "color": 1}', "line 2: unknown field 'color'; known are session_id"),
            ('{"session_id": "a", "start_s": -1, "turns": []}', "start_s is negative"),
            ("{TURN}", "exactly one of prompt and prompt_tokens"),
            ('{TURN, "prompt": []}', "prompt is a list of 0"),
            ('{TURN, "prompt": [1, -2]}', "prompt is a list of 2; a list of token ids"),
            ('{TURN, "prompt": [1, true]}', "prompt is a list of 2; a list of token ids"),
            ('{TURN, "prompt": [1], "after": ["y"]}', "line 2: session a: turn t waits for y, which is not before it"),
            ('{TURN, "prompt": [1], "after": "y"}', "after is the text 'y'; a list of names"),
            ('{TURN, "prompt": [1], "delay_s": -1}', "delay_s is negative"),
            ('{TURN, "prompt": [1], "shared_tokens": 0.5}', "shared_tokens is 0.5"),
            ('{TURN, "prompt": [1], "extra_body": []}', "extra_body is a list of 0; an object"),
            ('{TURN, "prompt": [1], "speed": 3}', "line 2, turn 0: unknown field 'speed'"),
        ],
    )
    def test_a_broken_line_is_named(self, line, words, tmp_path):
        if "TURN" in line:
            turn = line.replace("TURN", '"turn_id": "t", "output_tokens": 1')
            line = f'{{"session_id": "a", "turns": [{turn}]}}'
        path = file_with(tmp_path, "s.jsonl", '{"format": "wholecurve sessions", "version": 1}', line)
        with pytest.raises(UserError, match=words):
            read_sessions(path)

    @pytest.mark.parametrize(
        "header, words",
        [
            ("{}", "line 1: must be"),
            ('{"format": "wholecurve sessions", "version": 2}', "version is 2; this reads version 1"),
            ('{"format": "wholecurve sessions", "version": 1, "x": 1}', "unknown field 'x'"),
        ],
    )
    def test_a_broken_header_is_named(self, header, words, tmp_path):
        with pytest.raises(UserError, match=words):
            read_sessions(file_with(tmp_path, "s.jsonl", header))

    def test_a_name_used_twice_is_refused(self, tmp_path):
        write_sessions(tmp_path / "s.jsonl", [self.SESSIONS[0], self.SESSIONS[0]])
        with pytest.raises(UserError, match=r"line 3: the name 'a' was used before, in .*line 2"):
            read_sessions(tmp_path / "s.jsonl")
