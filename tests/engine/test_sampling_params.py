"""Parameters of a request: what is wrong is said in one line, with the field, its value, and what would be right."""

import math

import pytest

from wholecurve.engine.sampling import GrammarSpec, RequestSampling, SamplingParams
from wholecurve.errors import UserError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, "1", None, True)),
        *(("top_p", value) for value in (-0.01, 1.01, math.nan, "x")),
        *(("min_p", value) for value in (-0.01, 1.01, math.nan, None)),
        *(("top_k", value) for value in (-2, 1.5, None, True)),
        *(("max_new_tokens", value) for value in (0, -1, 2.0, None, True)),
        *(("min_new_tokens", value) for value in (-1, 2.0, 129)),
        *(("seed", value) for value in (-1, 2**64, 1.0, "1")),
        *(("ignore_eos", value) for value in (1, None)),
        *(("include_stop", value) for value in (1, "yes")),
        *(("stop_token_ids", value) for value in (3, [-1], [1.0], "12", [True], None)),
        *(("stop", value) for value in (3, "", ["a", ""], ["a", 1], None)),
        *(("repetition_penalty", value) for value in (0, 0.001, -1.0, 101, math.nan, math.inf)),
        *(("presence_penalty", value) for value in (-101, 101, math.nan, "1")),
        *(("frequency_penalty", value) for value in (-101, 101, math.inf, None)),
        *(("logit_bias", value) for value in (3, {-1: 1.0}, {"1": 1.0}, {1: math.nan}, {1: math.inf}, {1: "x"}, [1])),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        *(("logprobs", value) for value in (-1, 1.5, True)),
        ("grammar", {"kind": "regex"}),
    ],
)
def test_parameters_outside_their_range(field, value):
    with pytest.raises(UserError) as error:
        SamplingParams(**{field: value})
    assert str(error.value).startswith(f"{field} is {value!r}; it must") and "\n" not in str(error.value)


def test_bounds_belong_to_the_range():
    SamplingParams(top_p=0, min_p=1, top_k=-1, seed=2**64 - 1, max_new_tokens=1, min_new_tokens=1, logprobs=0)
    SamplingParams(repetition_penalty=0.01, presence_penalty=-100, frequency_penalty=100, temperature=1e300)


def test_parameters_are_values():
    """Lists become tuples, so that equal parameters are equal and can be keys."""
    one = SamplingParams(stop="x", stop_token_ids=[3], logit_bias={2: 1, 1: -math.inf})
    assert one.stop == ("x",) and one.stop_token_ids == (3,) and one.logit_bias == ((1, -math.inf), (2, 1.0))
    assert hash(one) == hash(SamplingParams(stop=["x"], stop_token_ids=(3,), logit_bias=((2, 1), (1, -math.inf))))
    assert SamplingParams(logit_bias={}).logit_bias is None
    with pytest.raises(AttributeError):
        one.seed = 3


def test_an_answer_of_a_grammar_has_no_least_length():
    with pytest.raises(UserError, match="min_new_tokens is 2; it must be 0 with a grammar"):
        SamplingParams(min_new_tokens=2, grammar=GrammarSpec.json_object())


@pytest.mark.parametrize(("field", "value"), [("stop_token_ids", (3, 9)), ("logit_bias", {3: 1.0, 9: 1.0})])
def test_tokens_beyond_the_vocabulary(field, value):
    params = SamplingParams(**{field: value})
    RequestSampling(params, [1], 10)
    with pytest.raises(UserError, match=f"{field} names token 9; it must be below the vocabulary size, 9"):
        RequestSampling(params, [1], 9)


def test_a_grammar_needs_a_tokenizer():
    with pytest.raises(UserError, match="grammar is a regex; it needs an engine with a tokenizer"):
        RequestSampling(SamplingParams(grammar=GrammarSpec.regex("a")), [1], 9)


def test_grammars_that_are_none():
    with pytest.raises(UserError, match="kind of grammar is 'bnf'; it must be one of json_schema, json_object"):
        GrammarSpec("bnf", "x")
    for choices in ([], "yes", ["a", ""], [1], None):
        with pytest.raises(UserError, match=r"choice is .*; it must be a list of one or more texts"):
            GrammarSpec.choice(choices)
    for schema in ({"const": math.nan}, {"const": {1, 2}}, {(1, 2): 3}):
        with pytest.raises(UserError, match=r"json_schema is .*; it must be JSON"):
            GrammarSpec.json_schema(schema)
    with pytest.raises(UserError, match="regex is 3; it must be text"):
        GrammarSpec.regex(3)
