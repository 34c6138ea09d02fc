"""The server in front of a real engine with a tiny model, asked through the official client."""

import asyncio
import random

import pytest
from live_server import END, LiveServer, tiny_tokenizer
from tiny_engine import tiny_model

from wholecurve.engine import Engine, SamplingParams

TOKENIZER = tiny_tokenizer()
MESSAGES = [{"role": "user", "content": "what is a tree?"}]


def new_engine(**options):
    defaults = {"cache_tokens": 1024, "block_size": 8, "max_batch_tokens": 64, "max_sequences": 8, "prefix_cache": True}
    return Engine(tiny_model(), tokenizer=TOKENIZER, check=True, **(defaults | options))


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "overlapped"])
def live(request):
    with LiveServer(new_engine(overlap=request.param), max_running=8) as server:
        yield server


@pytest.fixture(scope="module")
def client(live):
    return live.client()


def expected(prompt, max_new_tokens, **params):
    """Tokens and text that an engine of its own gives."""
    tokens = new_engine().generate([prompt], SamplingParams(max_new_tokens=max_new_tokens, **params))[0]
    return tokens, TOKENIZER.decode(tokens, skip_special_tokens=True)


def prompt_ids(number, length=12):
    generator = random.Random(number)
    return [generator.randrange(8, 61) for _ in range(length)]


def require_idle(live):
    """No request and no block is left in the engine."""

    async def settled():
        while live.service.engine_loop.num_in_flight:
            await asyncio.sleep(0)
        return await live.service.engine_loop.stats()

    stats = asyncio.run_coroutine_threadsafe(settled(), live.server.event_loop).result(20)
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    return stats


GREEDY, SAMPLED = {"temperature": 0.0}, {"temperature": 0.9, "seed": 11, "top_p": 0.9, "top_k": 30, "min_p": 0.01}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_those_of_the_engine(live, client, params, stream):
    prompt = prompt_ids(1)
    tokens, text = expected(prompt, 30, ignore_eos=True, **params)
    fields = {name: params[name] for name in ("temperature", "seed", "top_p") if name in params}
    extra = {name: params[name] for name in ("top_k", "min_p") if name in params}
    extra |= {"ignore_eos": True, "return_token_ids": True}
    answer = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=30, stream=stream, extra_body=extra, **fields
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == text
    assert [token for choice in choices for token in choice.token_ids] == tokens
    assert choices[-1].finish_reason == "length"
    require_idle(live)


def test_a_chat_goes_through_the_template_and_stops_at_its_end(live, client):
    prompt = TOKENIZER.encode("user:what is a tree?\nassistant:", add_special_tokens=False)
    for seed in range(40):
        tokens, text = expected(prompt, 60, temperature=1.0, seed=seed)
        if tokens[-1] == 7:
            break
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=60, seed=seed)
    assert answer.choices[0].message.content == text and END not in text
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].stop_reason is None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), len(tokens))
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=60, seed=seed, stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert usage.usage.completion_tokens == len(tokens)


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer(client, stream, included):
    prompt = prompt_ids(1)
    _, text = expected(prompt, 30, ignore_eos=True)
    stop = text[9:12]
    end = text.index(stop) + (len(stop) if included else 0)
    answer = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=30, temperature=0, stop=["never this", stop], stream=stream,
        extra_body={"ignore_eos": True, "include_stop_str_in_output": included},
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == text[:end]
    assert (choices[-1].finish_reason, choices[-1].stop_reason) == ("stop", stop)


def test_a_stop_token_is_named(client):
    prompt = prompt_ids(1)
    tokens, _ = expected(prompt, 30, ignore_eos=True)
    stop = tokens[5]
    answer = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=30, temperature=0, extra_body={"stop_token_ids": [stop]}
    )
    assert answer.choices[0].stop_reason == stop and answer.usage.completion_tokens == tokens.index(stop) + 1


def test_least_tokens_hold_the_end_back(client):
    answer = client.completions.create(
        model="tiny", prompt=prompt_ids(3), max_tokens=20, seed=1, extra_body={"min_tokens": 20}
    )
    assert answer.usage.completion_tokens == 20


def test_logit_bias_and_penalties_reach_the_sampler(client):
    answer = client.completions.create(
        model="tiny", prompt=prompt_ids(3), max_tokens=5, temperature=0, logit_bias={"20": 100},
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert answer.choices[0].token_ids == [20] * 5
    answer = client.completions.create(
        model="tiny", prompt=prompt_ids(3), max_tokens=5, temperature=0, logit_bias={"20": 20, "21": 19},
        frequency_penalty=2, presence_penalty=0.5, extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert set(answer.choices[0].token_ids) >= {20, 21}


def test_seeds_make_answers_repeatable_and_choices_differ(client):
    def texts(seed):
        answer = client.completions.create(
            model="tiny", prompt=prompt_ids(2), max_tokens=20, n=3, seed=seed, extra_body={"ignore_eos": True}
        )
        return [choice.text for choice in answer.choices]

    assert texts(3) == texts(3) and len(set(texts(3))) == 3
    assert texts(3)[1:] == texts(4)[:2], "seeds count up from choice to choice"


def test_logprobs_of_completions(client):
    prompt = prompt_ids(1)
    tokens, _ = expected(prompt, 6, ignore_eos=True)
    fields = {"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**fields, logprobs=3).choices[0].logprobs
    assert whole.tokens == [TOKENIZER.decode([token]) for token in tokens]
    assert whole.text_offset == list(range(6))
    for token, logprob, best in zip(whole.tokens, whole.token_logprobs, whole.top_logprobs, strict=True):
        assert len(best) == 3 and best[token] == logprob == max(best.values()) and logprob < 0
        assert list(best.values()) == sorted(best.values(), reverse=True)
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**fields, logprobs=3, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(whole, name)
    alone = client.completions.create(**fields, logprobs=0).choices[0].logprobs
    assert alone.token_logprobs == whole.token_logprobs and alone.top_logprobs is None
    assert client.completions.create(**fields).choices[0].logprobs is None


def test_logprobs_of_chats(client):
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "seed": 5, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**fields).choices[0]
    content = choice.logprobs.content
    text = choice.message.content
    assert bytes(byte for entry in content for byte in entry.bytes).decode().replace(END, "") == text
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob <= entry.top_logprobs[0].logprob and entry.bytes == list(entry.token.encode())
    chunks = list(client.chat.completions.create(**fields, stream=True))
    parts = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert [entry for part in parts for entry in part] == content


def test_json_schemas_hold(live, client):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    # a bias against blanks, of which a random model would write many
    blanks = {str(token): -100 for token in TOKENIZER.encode(" \n", add_special_tokens=False)}
    for seed in range(4):
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=60, seed=seed, response_format=form, logit_bias=blanks
        )
        assert answer.choices[0].message.content in [
            f'{{"a":{a},"b":"{b}"}}' for a in ("true", "false") for b in ("x", "y")
        ]
        assert answer.choices[0].finish_reason == "stop"
    require_idle(live)


def test_a_schema_that_is_wrong_is_the_clients_error(live, client):
    import openai

    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "colour"}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="json_schema"):
            client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form, stream=stream)
    require_idle(live)


def call_of(live, client, choice, stream, seed):
    tool = {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object", "properties": {"at": {"enum": ["a", "b"]}}, "required": ["at"],
                "additionalProperties": False,
            },
        },
    }  # fmt: skip
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=[tool], tool_choice=choice, max_tokens=200, seed=seed, stream=stream,
        parallel_tool_calls=False,
    )  # fmt: skip
    if not stream:
        return answer.choices[0].message.tool_calls, answer.choices[0].finish_reason, answer.choices[0].message.content
    calls, reason, text = [], None, ""
    for chunk in answer:
        delta = chunk.choices[0].delta
        calls += delta.tool_calls or []
        text += delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return calls, reason, text or None


@pytest.mark.parametrize("stream", [False, True])
def test_required_tools_are_called_even_by_a_random_model(stream):
    # the fallback for templates without tools puts more characters into the prompt than the others need
    engine = Engine(tiny_model(max_position=1024), tokenizer=TOKENIZER, cache_tokens=2048, check=True)
    with LiveServer(engine, context_tokens=1024) as server:
        client = server.client()
        named = {"type": "function", "function": {"name": "look"}}
        for choice, reason in (("required", "tool_calls"), (named, "stop")):
            for seed in range(3):
                calls, finish_reason, text = call_of(server, client, choice, stream, seed)
                assert len(calls) == 1 and calls[0].function.name == "look" and calls[0].id
                assert calls[0].function.arguments in ('{"at": "a"}', '{"at": "b"}')
                assert (finish_reason, text) == (reason, None)


def test_a_prefix_that_was_computed_before_is_reported_as_cached():
    with LiveServer(new_engine()) as server:
        prompt = prompt_ids(7, 40)
        first, second = (
            server.client().completions.create(model="tiny", prompt=prompt, max_tokens=2) for _ in range(2)
        )
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        assert 0 < second.usage.prompt_tokens_details.cached_tokens < 40
        assert second.usage.prompt_tokens == 40


def test_many_streams_at_once_get_exactly_their_own_tokens(live):
    """32 clients on 8 places, greedy and sampled, through stops and chunks: each the same as alone."""
    wanted = {}
    for number in range(32):
        params = {"temperature": 0.0} if number % 2 else {"temperature": 1.0, "seed": number}
        wanted[number] = params, *expected(prompt_ids(number, 5 + number), 24, ignore_eos=True, **params)

    async def one(client, number):
        params, tokens, text = wanted[number]
        stream = await client.completions.create(
            model="tiny", prompt=prompt_ids(number, 5 + number), max_tokens=24, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True, "return_token_ids": True}, **params,
        )  # fmt: skip
        got, read, usage = [], "", None
        async for chunk in stream:
            for choice in chunk.choices:
                got += choice.token_ids
                read += choice.text
            usage = chunk.usage or usage
        assert (got, read) == (tokens, text), number
        assert (usage.prompt_tokens, usage.completion_tokens) == (5 + number, 24)

    async def everyone():
        async with live.async_client() as client:
            await asyncio.gather(*(one(client, number) for number in range(32)))

    asyncio.run(everyone())
    require_idle(live)


def test_streams_that_are_left_free_their_blocks(live):
    async def leave(client, number):
        stream = await client.completions.create(
            model="tiny", prompt=prompt_ids(number), max_tokens=100, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()

    async def everyone():
        async with live.async_client() as client:
            await asyncio.gather(*(leave(client, number) for number in range(12)))

    asyncio.run(everyone())
    require_idle(live)
    answer = live.client().completions.create(model="tiny", prompt=prompt_ids(1), max_tokens=5, temperature=0)
    assert answer.choices[0].text == expected(prompt_ids(1), 5)[1]


def test_speculation_changes_nothing_but_the_size_of_chunks():
    from wholecurve.engine.speculation.ngram import NgramProposer

    prompt = prompt_ids(1, 6) * 4
    tokens, text = expected(prompt, 40, ignore_eos=True)
    with LiveServer(new_engine(speculation=NgramProposer(3))) as server:
        stream = server.client().completions.create(
            model="tiny", prompt=prompt, max_tokens=40, temperature=0, stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        choices = [chunk.choices[0] for chunk in stream]
        assert "".join(choice.text for choice in choices) == text
        assert [token for choice in choices for token in choice.token_ids] == tokens
