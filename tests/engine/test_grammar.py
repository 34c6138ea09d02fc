"""Structured output: answers always match, drafts leave no trace, and a grammar that is wrong is said to be wrong."""

import functools
import json
import re

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import request_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from wholecurve.engine import Engine
from wholecurve.engine.sampling import Grammars, GrammarSpec, Sampler, SampleRow, SamplingParams
from wholecurve.engine.sampling.schema import prepared_schema
from wholecurve.engine.speculation import NgramProposer
from wholecurve.errors import UserError
from wholecurve.models.config import ModelConfig
from wholecurve.models.llama import build_llama
from wholecurve.models.tokenizer import load_tokenizer

END = 256
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
}
NESTED = {
    "type": "object",
    "properties": {
        "left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "n": {"type": "number"},
        "ok": {"const": True},
    },
    "required": ["left", "n"],
}
SPECS = {
    "person": GrammarSpec.json_schema(PERSON),
    "nested": GrammarSpec.json_schema(NESTED),
    "object": GrammarSpec.json_object(),
    "regex": GrammarSpec.regex(r"(\d{3}|é+)-[a-f]{1,8}"),
    "ebnf": GrammarSpec.ebnf('root ::= "a" root "b" | "c"'),
    "choice": GrammarSpec.choice(["yes", "no", 'say "hi"\n\\ 🙂', "yesterday"]),
    "tag": GrammarSpec.structural_tag(
        {
            "type": "structural_tag",
            "format": {
                "type": "tags_with_separator",
                "separator": "\n",
                "at_least_one": True,
                "tags": [
                    {
                        "type": "tag",
                        "begin": '<call>{"name": "f", "arguments": ',
                        "content": {"type": "json_schema", "json_schema": PERSON, "max_whitespace_cnt": 2},
                        "end": "}</call>",
                    }
                ],
            },
        }
    ),
}


def balanced(text):
    return re.fullmatch("a*cb*", text) and text.count("a") == text.count("b")


def is_object(value):
    assert isinstance(value, dict)


def call_is_right(text):
    for call in text.split("</call>")[:-1]:
        found = json.loads(call.strip().removeprefix("<call>"))
        assert found["name"] == "f"
        jsonschema.validate(found["arguments"], PERSON)
    return text.endswith("</call>")


CHECKS = {
    "person": lambda text: jsonschema.validate(json.loads(text), PERSON) is None,
    "nested": lambda text: jsonschema.validate(json.loads(text), NESTED) is None,
    "object": lambda text: is_object(json.loads(text)) is None,
    "regex": lambda text: re.fullmatch(r"(\d{3}|é+)-[a-f]{1,8}", text),
    "ebnf": balanced,
    "choice": lambda text: text in json.loads(SPECS["choice"].text),
    "tag": call_is_right,
}


@functools.cache
def byte_tokenizer():
    """Tokens are bytes, of which 97 … 122 come in pairs too, then an end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [first + second for first in "abyeno{" for second in 'csno}":']
    vocabulary = {token: i for i, token in enumerate([*alphabet, "<end>", *pairs])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in pairs]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@functools.cache
def byte_grammars(vocab=None):
    tokenizer = byte_tokenizer()
    return Grammars(tokenizer, vocab or len(tokenizer), (END,))


def scores(tokenizer, seed, boost=8.0):
    """Logits of a model that knows nothing: a table for the last token, with a liking for what comes to an end."""
    table = torch.randn(64, len(tokenizer), generator=torch.Generator().manual_seed(seed)) * 3
    table[:, tokenizer.eos_token_id] += boost
    table[:, tokenizer.convert_tokens_to_ids(['"', "}", "]"])] += boost / 2
    return lambda tokens: table[(tokens[-1] * 7 + len(tokens)) % 64 if tokens else 0]


def run(grammars, vocab, spec, model, most=300, end=END, propose=None, sampler=None, **params):
    """Tokens of a request up to the end of its grammar; with `propose` in steps of rows with drafts."""
    request = request_of(vocab, ends=(end,), grammars=grammars, grammar=spec, **params)
    sampler, tokens = sampler or Sampler(vocab, "cpu"), []
    while not request.is_complete and len(tokens) < most:
        drafts = propose(tokens) if propose else []
        rows = [SampleRow(request, len(tokens) + i, drafts[:i]) for i in range(len(drafts) + 1)]
        logits = torch.stack([model([*tokens, *row.drafts]) for row in rows])
        drawn = sampler.sample(logits, rows).tokens.tolist()
        accepted = next((i for i, draft in enumerate(drafts) if draft != drawn[i]), len(drafts))
        taken = drawn[: accepted + 1]
        taken = taken[: taken.index(end) + 1] if end in taken else taken
        request.commit(taken)
        tokens += taken
    return tokens, request.is_complete


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_answers_match(name, temperature):
    tokenizer, ended = byte_tokenizer(), 0
    for seed in range(12):
        model = scores(tokenizer, seed)
        tokens, is_complete = run(
            byte_grammars(),
            len(tokenizer),
            SPECS[name],
            model,
            temperature=temperature,
            seed=seed,
            ignore_eos=bool(seed % 2),
        )
        if is_complete:
            ended += 1
            assert tokens[-1] == END and END not in tokens[:-1]
            text = tokenizer.decode(tokens[:-1])
            assert CHECKS[name](text), text
    assert ended >= 6, "too few of them ended"


@pytest.mark.real_model
@pytest.mark.parametrize("name", SPECS)
def test_answers_match_with_the_tokenizer_of_smollm2(name, real_grammars):
    tokenizer, grammars = real_grammars
    ended, end = 0, tokenizer.eos_token_id
    for seed in range(6):
        model = scores(tokenizer, seed, boost=12.0)
        tokens, is_complete = run(
            grammars, len(tokenizer), SPECS[name], model, end=end, temperature=float(seed % 2), seed=seed
        )
        if is_complete:
            ended += 1
            assert CHECKS[name](tokenizer.decode(tokens[:-1])), tokenizer.decode(tokens)
    assert ended >= 3, "too few of them ended"


def wide_model(vocab, end):
    """A random Llama of one small layer with the vocabulary of a real tokenizer."""
    generator = torch.Generator().manual_seed(0)
    config = ModelConfig(vocab, 16, 24, 1, 2, 1, 8, 1e-5, 500.0, 512, False, None, (end,))
    shapes = {
        "self_attn.q_proj": (16, 16),
        "self_attn.k_proj": (8, 16),
        "self_attn.v_proj": (8, 16),
        "self_attn.o_proj": (16, 16),
        "mlp.gate_proj": (24, 16),
        "mlp.up_proj": (24, 16),
        "mlp.down_proj": (16, 24),
    }
    weights = {
        f"model.layers.0.{name}.weight": torch.randn(*shape, generator=generator) for name, shape in shapes.items()
    }
    weights |= {
        f"{name}.weight": torch.randn(vocab, 16, generator=generator) for name in ("model.embed_tokens", "lm_head")
    }
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    return build_llama(config, weights | {f"model.{name}.weight": torch.ones(16) for name in norms}, torch.float32)


@pytest.mark.real_model
def test_answers_of_an_engine_match_with_and_without_speculation(real_grammars):
    """A tiny random model with the real tokenizer, all grammars in one batch and a free request beside them."""
    tokenizer, _ = real_grammars
    model = wide_model(len(tokenizer), tokenizer.eos_token_id)
    bias = dict.fromkeys(tokenizer.convert_tokens_to_ids(['"', "}", "]", '"}', "<|im_end|>"]), 14.0)
    answers = []
    for speculation in (None, NgramProposer(3, min_match=1)):
        engine = Engine(model, tokenizer=tokenizer, speculation=speculation, check=True)
        for name, spec in SPECS.items():
            for seed in range(3):
                params = dict(grammar=spec, temperature=float(seed), seed=seed, logit_bias=bias, max_new_tokens=120)
                engine.add(f"{name} {seed}", [1, 2, 3, seed], SamplingParams(**params))
        engine.add("free", [1, 2, 3], SamplingParams(temperature=1.0, seed=1, max_new_tokens=40))
        texts, reasons = {}, {}
        while engine.has_unfinished:
            for output in engine.step():
                texts[output.request_id] = texts.get(output.request_id, "") + output.text
                reasons[output.request_id] = output.finish_reason
        answers.append((texts, reasons))
        ended = [name for name in texts if name != "free" and reasons[name] == "stop"]
        assert len(ended) >= 14, "too few of them ended"
        for name in ended:
            assert CHECKS[name.split()[0]](texts[name]), texts[name]
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def real_grammars(real_model_files):
    tokenizer = load_tokenizer(real_model_files.hf_folder())
    return tokenizer, Grammars(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(SPECS)),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 1.0]),
    quality=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_drafts_change_nothing(name, seed, temperature, quality):
    """Right drafts, wrong ones that the grammar allows, and such that it does not: the tokens are those without any."""
    vocab = len(byte_tokenizer())
    model = scores(byte_tokenizer(), seed, boost=6.0)
    params = dict(temperature=temperature, seed=seed, frequency_penalty=0.5)
    plain = run(byte_grammars(), vocab, SPECS[name], model, most=60, **params)
    generator = torch.Generator().manual_seed(seed)

    def propose(tokens):
        known = plain[0][len(tokens) :]
        wild = torch.randint(vocab, (4,), generator=generator).tolist()
        keep = (torch.rand(4, generator=generator) < quality).tolist()
        return [known[i] if good and i < len(known) else wild[i] for i, good in enumerate(keep)]

    tokens, is_complete = run(byte_grammars(), vocab, SPECS[name], model, most=60, propose=propose, **params)
    assert tokens[:60] == plain[0]
    assert is_complete == plain[1] or len(tokens) > 60


def test_rows_with_and_without_a_grammar_in_one_step():
    """Each is what it is alone; rows without one may choose anything."""
    vocab = len(byte_tokenizer())
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(0)) * 3
    makers = [
        lambda: request_of(vocab),
        lambda: request_of(vocab, grammars=byte_grammars(), grammar=SPECS["choice"]),
        lambda: request_of(vocab, logit_bias={5: 50.0}),
        lambda: request_of(
            vocab, grammars=byte_grammars(), grammar=SPECS["regex"], temperature=1.0, seed=3, logprobs=1
        ),
        lambda: request_of(vocab, temperature=2.0, seed=1),
    ]
    requests = [maker() for maker in makers]
    step = Sampler(vocab, "cpu").sample(logits, [SampleRow(request, 0) for request in requests])
    alone = [
        Sampler(vocab, "cpu").sample(logits[i : i + 1], [SampleRow(maker(), 0)]).tokens.item()
        for i, maker in enumerate(makers)
    ]
    assert step.tokens.tolist() == alone and alone[2] == 5
    assert step.logprobs[3].alternatives[0][0] == logits[3].argmax(), (
        "logprobs are those of the model, not of the grammar"
    )
    assert byte_tokenizer().decode(alone[1])[0] in "yns" and alone[0] == logits[0].argmax()


def test_rows_after_drafts_may_stand_in_any_order():
    vocab, tokenizer = len(byte_tokenizer()), byte_tokenizer()
    request = request_of(vocab, ends=(END,), grammars=byte_grammars(), grammar=GrammarSpec.choice(["xyz", "xzy"]))
    x, y, z = (tokenizer.encode(letter)[0] for letter in "xyz")
    drafts = [[x, z], [], [x, y], [x], [x, z, y], [z], [x, y, z]]
    step = Sampler(vocab, "cpu").sample(torch.zeros(7, vocab), [SampleRow(request, len(d), d) for d in drafts])
    assert step.tokens.tolist() == [y, x, z, min(y, z), END, 0, END], "after z, which is not allowed, any token is"


def test_ends_are_allowed_where_the_answer_is_complete_and_only_there():
    """Of "yes" and "yesterday": never at first, after "yes" as well as the t, after "yesterday" alone."""
    vocab, tokenizer = len(byte_tokenizer()), byte_tokenizer()
    request = request_of(vocab, ends=(END,), grammars=byte_grammars(), grammar=SPECS["choice"])
    allowed = []
    for text in ("", "yes", "terday"):
        request.commit([token for letter in text for token in tokenizer.encode(letter)])
        bits = torch.zeros(1, (vocab + 31) // 32, dtype=torch.int32)
        request.matcher.fill(bits, 0)
        allowed.append({token for token in range(vocab) if bits[0, token // 32] >> (token % 32) & 1})
    assert END not in allowed[0] and END in allowed[1] and len(allowed[1]) > 1 and allowed[2] == {END}
    assert not request.is_complete
    request.commit([END])
    assert request.is_complete


def test_a_token_that_the_grammar_forbids_cannot_be_committed():
    request = request_of(len(byte_tokenizer()), grammars=byte_grammars(), grammar=SPECS["ebnf"])
    with pytest.raises(RuntimeError, match=f"token {END} was sampled, and the grammar does not allow it"):
        request.commit([END])


def test_logits_beyond_the_tokenizer_are_forbidden():
    """A model whose vocabulary is padded: 400 columns, of which the tokenizer knows fewer."""
    grammars = Grammars(byte_tokenizer(), 400, (END,))
    logits = torch.zeros(1, 400)
    logits[0, 300:] = 99.0
    for name, spec in SPECS.items():
        request = request_of(400, ends=(END,), grammars=grammars, grammar=spec)
        assert Sampler(400, "cpu").sample(logits, [SampleRow(request, 0)]).tokens.item() < len(byte_tokenizer()), name


def test_a_bias_cannot_break_a_grammar_and_nothing_left_is_minus_one():
    vocab, (yes, no) = len(byte_tokenizer()), (byte_tokenizer().encode(text)[0] for text in "yn")
    logits = torch.zeros(1, vocab)
    spec = GrammarSpec.choice(["y", "n"])
    for bias, expected in (
        ({END: 99.0, no: 1.0}, no),
        ({no: -float("inf")}, yes),
        ({no: -float("inf"), yes: -float("inf")}, -1),
    ):
        request = request_of(vocab, ends=(END,), grammars=byte_grammars(), grammar=spec, logit_bias=bias)
        assert Sampler(vocab, "cpu").sample(logits, [SampleRow(request, 0)]).tokens.item() == expected


def test_a_grammar_that_comes_again_is_not_compiled_again(monkeypatch):
    grammars = Grammars(byte_tokenizer(), len(byte_tokenizer()), (END,))
    grammars.matcher(SPECS["person"])
    size = grammars._compiler.get_cache_size_bytes()
    first, second = grammars.matcher(SPECS["person"]), grammars.matcher(SPECS["person"])
    assert grammars._compiler.get_cache_size_bytes() == size > 0
    first.commit(byte_tokenizer().encode("{"))
    second.commit(byte_tokenizer().encode("{"))  # they share what is compiled, and not where they stand


def test_without_an_end_of_the_model_the_tokenizers_is_taken():
    tokenizer = byte_tokenizer()
    spec = GrammarSpec.choice(["y"])
    request = request_of(len(tokenizer), ends=(), grammars=Grammars(tokenizer, len(tokenizer), ()), grammar=spec)
    request.commit([*tokenizer.encode("y"), END])
    assert request.is_complete
    endless = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(UserError, match="neither model nor tokenizer has an end token"):
        Grammars(endless, len(tokenizer), ()).matcher(spec)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "{", "it is not JSON"),
        ("json_schema", "[1]", "Schema should be an object or bool"),
        ("json_schema", "false", "cannot accept any value"),
        ("json_schema", '{"type": "text"}', 'Unsupported type "text"'),
        ("json_schema", '{"$ref": "#/x"}', "Cannot find field 'x'"),
        ("json_schema", '{"type": "string", "pattern": "("}', "parenthesis is not closed"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}', "minimum greater than maximum"),
        ("json_schema", '{"items":' * 70 + "true" + "}" * 70, "is nested too deeply; at most 64"),
        ("json_schema", '{"const": "}}}}", "items":' * 70 + "true" + "}" * 70, "is nested too deeply; at most 64"),
        ("json_schema", " " * 2**18 + "{}", "has 262146 characters; it must have at most 262144"),
        ("regex", "(", "parenthesis is not closed"),
        ("regex", "(?=a)b", "Lookahead is not supported"),
        ("regex", "(" * 65 + ")" * 65, "is nested too deeply"),
        ("ebnf", "root ::= x", 'Rule "x" is not defined'),
        ("ebnf", 'start ::= "a"', 'root rule with name "root" is not found'),
        ("ebnf", "root ::= root", "no text matches it"),
        ("choice", "x", "it is not JSON"),
        ("structural_tag", "{}", "Structural tag must have a format field"),
    ],
)
def test_wrong_grammars(kind, text, message):
    with pytest.raises(UserError) as error:
        byte_grammars().matcher(GrammarSpec(kind, text))
    assert str(error.value).startswith(kind) and message in str(error.value)
    assert "\n" not in str(error.value) and ".cc:" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {"type": "null"}}, "not is not supported (at #)"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems is not supported (at #)"),
        ({"properties": {"a": {"if": True}}}, "if is not supported (at #/properties/a)"),
        ({"type": "number", "multipleOf": 2}, "multipleOf of a number"),
        ({"type": ["null", "number"], "multipleOf": 2}, "multipleOf of a number"),
        ({"type": "string", "pattern": "a", "minLength": 3}, "pattern beside minLength"),
        *(
            ({"type": "string", "pattern": f"^{pattern}$"}, "which a string with a pattern cannot")
            for pattern in (
                *(
                    'a"b',
                    r"\"",
                    r"\\",
                    r"\n",
                    r"\x22",
                    r"\u0009",
                    r"\u{5c}",
                    r"\cA",
                    "\t",
                    r"\0",
                    r"[\]x\n]",
                    r"([^x])[\n]",
                ),
                *("[ -\ud7ff]", "[é!-#]", '[a"]', r"[\\]", r"[^a]\n", '[a-]"', r"[\d-]\t"),
            )
        ),
        ({"type": "object", "patternProperties": {'"': {}}}, "which a string with a pattern cannot"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf of several"),
        ({"$defs": {"x": {}}, "$ref": "#/$defs/x", "minimum": 3}, "$ref beside minimum"),
        ({"$ref": "#", "type": "integer"}, "type beside $ref"),
        ({"enum": [1, 2], "minimum": 2}, "enum beside minimum"),
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "anyOf beside properties"),
        ({"anyOf": [{}], "oneOf": [{}]}, "anyOf beside oneOf"),
        ({"type": "object", "anyOf": [{"type": "object"}, {}]}, "type beside anyOf"),
        ({"type": "string", "enum": ["a", 1]}, "value 1 is not of type string"),
        ({"type": "integer", "const": True}, "value True is not of type integer"),
        ({"const": 1, "enum": [2]}, "const is not among the values of enum"),
        ({"minimum": 3}, "minimum needs a type"),
        ({"required": ["a"]}, "required needs a type"),
        ({"type": "object", "required": ["a"]}, "required names 'a'"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength and maxLength must be whole numbers"),
        ({"type": "string", "maxLength": -1}, "minLength and maxLength must be whole numbers"),
        ({"type": "string", "minLength": "1"}, "minLength and maxLength must be whole numbers"),
        (
            {"items": [{"anyOf": 3}, {}], "prefixItems": [{"maxLength": 3}]},
            "maxLength needs a type beside it (at #/prefixItems/0)",
        ),
    ],
)
def test_schemas_that_a_grammar_would_not_keep(schema, message):
    with pytest.raises(UserError) as error:
        prepared_schema(schema)
    assert str(error.value).startswith("json_schema cannot be used: ") and message in str(error.value)
    tag = GrammarSpec.structural_tag({"format": {"type": "json_schema", "json_schema": schema}})
    with pytest.raises(UserError, match=re.escape("(at #/format/json_schema")):
        byte_grammars().matcher(tag)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            PERSON,
            ['{"name":"é","age":120}', '{ "name": "a", "age": 1, "tags": ["a"] }'],
            ['{"name":"a","age":121}', '{"age":1}'],
        ),
        ({"properties": {"a": {}}}, ["{}", '{"a":[1]}'], ['{"b":1}']),
        ({"type": "string", "maxLength": 2}, ['"é1"', '""'], ['"abc"', '"\x01"', '"\t"', "1"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"abcd"', '"a\x1f"']),
        ({"type": "string", "pattern": "^[ -~]+$"}, ['"ab !"'], ['"é"', '"a"b"', '"\x01"']),
        ({"type": "string", "pattern": "^[a-zé]+$"}, ['"é"'], ['"A"', '"é"b"', '"\x01"']),
        ({"type": "string", "pattern": r'^[^"\\x]+\.$'}, ['"a."'], ['"x."', '""."', '"a"']),
        ({"type": "string", "pattern": "^[^x]*$"}, ['"ab"'], ['"x"', '"\n"', '"a"b"']),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, ['{"b":null}'], ['{"b":1}']),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, ['{"a":1}'], ['{"b":1}']),
        ({"type": "object", "unevaluatedProperties": False}, ["{}"], ['{"b":1}']),
        ({"type": "object"}, ["{}", '{"b":{"c":[]}}'], ["[]"]),
        ({"type": "array"}, ["[]", '[1,"a"]'], ["{}"]),
        ({"type": "array", "minItems": 2}, ["[1,2]"], ["[1]"]),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, ["[1]"], ['["a"]', "[1,2]"]),
        ({"type": "string", "format": "date"}, ['"2024-02-01"'], ['"x"']),
        ({"type": "string", "format": "date", "minLength": 3}, ['"xyz"'], ['"x"']),
        ({"type": "integer", "multipleOf": 3}, ["9", "0"], ["8"]),
        ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2", '"a"']),
        ({"type": "object", "maxProperties": 1}, ['{"a":1}'], ['{"a":1,"b":2}']),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, ['{"a":1}'], ['{"a":"x"}']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ['{"a":1}'], ['{"a":"x"}']),
        ({"enum": [1, "a", None], "title": "t"}, ["1", '"a"', "null"], ["2"]),
        (
            {"type": "object", "anyOf": [{"type": "object", "properties": {"a": {"const": 1}}}]},
            ['{"a":1}'],
            ['{"a":2}', "[]"],
        ),
        (True, ["1", "{}", '"a"'], ["a"]),
        ({"uniqueItems": False, "items": {"type": "null"}}, ["[null,null]"], ["[1]"]),
    ],
)
def test_what_schemas_let_through(schema, right, wrong):
    """And a validator of JSON schemas agrees on what is wrong, but where an object has been closed."""
    is_closed = isinstance(schema, dict) and "properties" in schema and "additionalProperties" not in schema
    for text in [*right, *wrong]:
        matcher = byte_grammars().matcher(GrammarSpec.json_schema(schema))
        try:
            matcher.commit([*byte_tokenizer().encode(text), END])
            is_accepted = True
        except RuntimeError:
            is_accepted = False
        assert is_accepted == (text in right), text
        try:
            jsonschema.validate(json.loads(text), schema)
            is_valid = True
        except ValueError:
            is_valid = False
        except jsonschema.ValidationError:
            is_valid = False
        assert is_valid >= is_accepted and (is_valid == is_accepted or is_closed or "format" in schema), text
