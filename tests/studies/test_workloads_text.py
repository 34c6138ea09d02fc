"""Prompts as text and as chat messages: words that keep their number of tokens, and tool calls in OpenAI form."""

import json

import pytest
from pydantic import TypeAdapter

from wholecurve.errors import UserError
from wholecurve.studies.serving.workloads.build import build, prepare
from wholecurve.studies.serving.workloads.plan_parts import WorkloadPlan
from wholecurve.studies.serving.workloads.prompts import MessagesWriter
from wholecurve.studies.serving.workloads.seeds import Seeds
from wholecurve.studies.serving.workloads.tools import CODING_TOOLS, argument_names, call_arguments
from wholecurve.studies.serving.workloads.vocabulary import Vocabulary
from wholecurve.studies.serving.workloads.words import COMMON_WORDS, words_of

POINT = {"seed": 3, "load": 8, "repeat": 1}
UNION = TypeAdapter(WorkloadPlan)
AGENTS = {
    "kind": "agents",
    "turns": [4, 4],
    "system_tokens": 30,
    "first_prompt_tokens": [20, 20],
    "reply_tokens": [16, 16],
    "tool_result_tokens": [25, 25],
    "user_tokens": [9, 9],
}


def lengths(form, **fields):
    return UNION.validate_python(
        {"kind": "lengths", "prompts": form, "prompt_tokens": [200, 300], "output_tokens": [4, 4], **fields}
    )


@pytest.fixture(scope="module")
def tokenizer(real_model_files):
    from wholecurve.models.tokenizer import load_tokenizer

    return load_tokenizer(real_model_files.hf_folder())


@pytest.mark.real_model
class TestWithTheModelsTokenizer:
    def test_text_has_exactly_the_planned_tokens(self, tokenizer):
        """vllm PR#44708, sglang PR#15732: of decoded random ids, 92 % had another length at the server."""
        ids = build(lengths("ids"), count=20, tokenizer=tokenizer, **POINT)
        made = prepare(lengths("text"), count=20, tokenizer=tokenizer, **POINT)
        planned = [session.turns[0].prompt_tokens for session in ids]
        counted = [len(tokenizer.encode(s.turns[0].prompt, add_special_tokens=False)) for s in made.sessions]
        assert counted == planned
        assert any("exact in the model's tokenizer" in note for note in made.notes)
        assert made.sessions[0].turns[0].prompt_tokens is None

    def test_parts_joined_are_as_long_as_both(self, tokenizer):
        workload = UNION.validate_python({**AGENTS, "prompts": "text", "tool_share": 1.0})
        session = build(workload, count=1, tokenizer=tokenizer, **POINT)[0]
        counted = [len(tokenizer.encode(turn.prompt, add_special_tokens=False)) for turn in session.turns]
        assert counted == [50, 50 + 41, 50 + 2 * 41, 50 + 3 * 41]
        assert session.turns[1].prompt.startswith(session.turns[0].prompt)

    def test_no_special_token_is_drawn(self, tokenizer):
        vocabulary = Vocabulary.of(None, tokenizer)
        assert not set(tokenizer.all_special_ids) & set(vocabulary.ids.tolist())
        assert vocabulary.size == len(tokenizer)
        # A model padded beyond its tokenizer, and one that is smaller.
        assert Vocabulary.of(len(tokenizer) + 500, tokenizer).size == len(tokenizer)
        assert Vocabulary.of(1000, tokenizer).ids.max() == 999

    def test_the_room_for_definitions_and_calls_is_more_than_they_take(self, tokenizer):
        writer = MessagesWriter(words_of(tokenizer), CODING_TOOLS)
        assert writer.allowance([]) >= len(tokenizer.encode(json.dumps(CODING_TOOLS)))
        rng = Seeds(0, "agents", 1, 1).generator()
        calls = [("123456789", tool) for tool in CODING_TOOLS]
        reply = writer.reply(rng, 40, calls)
        taken = len(tokenizer.encode(reply.content + json.dumps(reply.calls)))
        assert 40 + writer.allowance([reply]) - writer.allowance([]) >= taken

    def test_the_chat_template_takes_the_messages_and_the_room_for_it_is_enough(self, tokenizer):
        workload = UNION.validate_python({**AGENTS, "prompts": "messages", "tools": "coding"})
        limit = 1500
        for session in build(workload, count=3, tokenizer=tokenizer, limit_tokens=limit, **POINT):
            for turn in session.turns:
                text = tokenizer.apply_chat_template(turn.prompt, tokenize=False, add_generation_prompt=True)
                assert len(tokenizer.encode(text, add_special_tokens=False)) + turn.output_tokens <= limit


class TestMessages:
    def session(self, **fields):
        return build(UNION.validate_python({**AGENTS, "prompts": "messages", **fields}), count=1, **POINT)[0]

    def test_tools_are_called_and_answered_in_openai_form(self):
        session = self.session(tools="coding", tool_share=1.0)
        assert [len(turn.prompt) for turn in session.turns] == [2, 4, 6, 8]
        names = {tool["function"]["name"]: tool["function"]["parameters"] for tool in CODING_TOOLS}
        system, user, *rest = session.turns[-1].prompt
        assert (system["role"], user["role"]) == ("system", "user")
        seen = set()
        for reply, result in zip(rest[::2], rest[1::2]):
            (call,) = reply["tool_calls"]
            assert reply["role"] == "assistant" and call["type"] == "function"
            assert list(json.loads(call["function"]["arguments"])) == names[call["function"]["name"]]["required"]
            assert result["role"] == "tool" and result["tool_call_id"] == call["id"]
            assert call["id"].isalnum() and len(call["id"]) == 9
            assert len(result["content"].split()) == 25
            words = len(reply["content"].split())
            in_arguments = [v for v in json.loads(call["function"]["arguments"]).values() if isinstance(v, str)]
            assert words + sum(len(text.split()) for text in in_arguments) == 16
            seen.add(call["id"])
        assert len(seen) == 3

    def test_definitions_go_with_every_request_and_are_not_to_be_parsed(self):
        session = self.session(tools="coding")
        assert all(turn.extra_body == {"tools": CODING_TOOLS, "tool_choice": "none"} for turn in session.turns)
        own = [{"type": "function", "function": {"name": "ping"}}]
        session = self.session(tools=own, tool_choice="auto", tool_share=1.0)
        assert session.turns[0].extra_body == {"tools": own, "tool_choice": "auto"}
        call = session.turns[1].prompt[2]["tool_calls"][0]
        assert call["function"] == {"name": "ping", "arguments": "{}"}

    def test_subagents_are_several_calls_of_one_reply(self):
        subagents = {"probability": 1.0, "fan_out": [3, 3], "turns": [1, 1], "first_prompt_tokens": [5, 5]}
        session = self.session(tools="coding", subagents=subagents, turns=[2, 2])
        last = session.turns[-1]
        reply, *results = last.prompt[2:]
        assert [call["id"] for call in reply["tool_calls"]] == [result["tool_call_id"] for result in results]
        assert len(results) == len(last.after) == 3

    def test_that_definitions_come_on_top_of_the_lengths_is_said(self):
        for tools, told in (("coding", True), (None, False)):
            workload = UNION.validate_python({**AGENTS, "prompts": "messages", "tools": tools})
            notes = prepare(workload, count=1, **POINT).notes
            assert any("definitions of tools come on top" in note for note in notes) == told

    def test_without_definitions_results_are_words_of_the_user(self):
        session = self.session(tool_share=1.0)
        assert [message["role"] for message in session.turns[-1].prompt][2:] == ["assistant", "user"] * 3
        assert session.turns[0].extra_body == {}
        assert "tool_calls" not in session.turns[-1].prompt[2]

    def test_a_shared_prefix_is_the_system_message(self):
        first, second = build(lengths("messages", shared_prefix_tokens=20), count=2, **POINT)
        assert [message["role"] for message in first.turns[0].prompt] == ["system", "user"]
        assert first.turns[0].prompt[0] == second.turns[0].prompt[0]
        assert first.turns[0].prompt[1] != second.turns[0].prompt[1]

    @pytest.mark.parametrize(
        "fields, fits, is_too_small",
        [({"prompts": "ids"}, 66, 65), ({"prompts": "text"}, 79, 78), ({}, 111, 110), ({"tools": "coding"}, 900, 300)],
    )
    def test_room_is_left_for_the_template_and_for_definitions(self, fields, fits, is_too_small):
        """The first request is 66 tokens; what it needs grows with what the server adds to two messages."""
        workload = UNION.validate_python({**AGENTS, "prompts": "messages", "turns": [1, 1], **fields})
        point = {"count": 1, "vocab_size": 1000, **POINT}
        assert build(workload, limit_tokens=fits, **point)
        with pytest.raises(UserError, match=r"its first request needs \d+ tokens"):
            build(workload, limit_tokens=is_too_small, **point)

    def test_room_is_left_for_two_messages(self):
        with pytest.raises(UserError, match=r"window holds 304"):
            build(lengths("messages"), count=1, limit_tokens=304, **POINT)


def test_neither_special_nor_added_tokens_are_drawn():
    class Tokenizer:
        all_special_ids = (3, 5)

        def __len__(self):
            return 10

        def get_added_vocab(self):
            return {"<image>": 5, "<tool>": 8}

    assert Vocabulary.of(None, Tokenizer()).ids.tolist() == [0, 1, 2, 4, 6, 7, 9]


class TestCommonWords:
    def test_without_a_tokenizer_lengths_are_said_to_be_approximate(self):
        made = prepare(lengths("text"), count=2, **POINT)
        assert any("approximate: prompts are common English words" in note for note in made.notes)
        assert 200 <= len(made.sessions[0].turns[0].prompt.split()) <= 300

    def test_texts_are_not_alike(self):
        texts = [session.turns[0].prompt for session in build(lengths("text"), count=50, **POINT)]
        assert len({text[:60] for text in texts}) == 50

    def test_the_list_is_of_different_short_words(self):
        assert len(COMMON_WORDS) == len(set(COMMON_WORDS)) >= 400
        assert all(word.isalpha() and word.islower() for word in COMMON_WORDS)

    def test_a_tokenizer_with_few_words_falls_back_and_says_so(self):
        class Letters:
            all_special_ids = ()

            def __len__(self):
                return 26

            def convert_ids_to_tokens(self, ids):
                return ["Ġ" + chr(97 + i) * 2 for i in ids]

            def __call__(self, texts, add_special_tokens):
                return {"input_ids": [[ord(text[1]) - 97] for text in texts]}

        words = words_of(Letters())
        assert not words.exact and len(words.words) == len(COMMON_WORDS)

    def test_words_that_are_not_one_token_are_not_written_with(self):
        class Halving:
            """Of 600 words in the vocabulary, its own rules reach every second one only."""

            all_special_ids = ()

            def __len__(self):
                return 600

            def convert_ids_to_tokens(self, ids):
                return ["Ġ" + chr(97 + i // 25) + chr(97 + i % 25) for i in ids]

            def __call__(self, texts, add_special_tokens):
                numbers = [(ord(text[1]) - 97) * 25 + ord(text[2]) - 97 for text in texts]
                return {"input_ids": [[n] if n % 2 else [n, n] for n in numbers]}

            def encode(self, text, add_special_tokens):
                return [ids for one in text.split() for ids in self([" " + one], add_special_tokens)["input_ids"][0]]

        words = words_of(Halving())
        assert words.exact and len(words.words) == 300

    def test_words_that_merge_with_their_neighbours_are_not_called_exact(self):
        class Merging:
            """Each word alone is one token, and any two beside each other are one."""

            all_special_ids = ()

            def __len__(self):
                return 400

            def convert_ids_to_tokens(self, ids):
                return ["Ġ" + chr(97 + i // 20) + chr(97 + i % 20) for i in ids]

            def __call__(self, texts, add_special_tokens):
                return {"input_ids": [[(ord(text[1]) - 97) * 20 + ord(text[2]) - 97] for text in texts]}

            def encode(self, text, add_special_tokens):
                return [0] * (len(text.split()) // 2)

        words = words_of(Merging())
        assert not words.exact and len(words.words) == 400


def test_arguments_fit_the_kinds_of_the_parameters():
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}, "c": {"type": "boolean"}},
                "required": ["a", "b", "c", "d"],
            },
        },
    }
    assert argument_names(tool) == ["d"]
    assert call_arguments(tool, {"d": "text"}) == {"a": 1, "b": "x", "c": True, "d": "text"}
