"""From a text to a proposer, and what is said about a wrong one."""

import pytest
from tiny_engine import EOS, tiny_model

from wholecurve.engine.speculation import DraftModelProposer, NgramProposer, SyntheticProposer, parse_speculation
from wholecurve.engine.speculation.spec import DraftSpec, NgramSpec, SyntheticSpec
from wholecurve.errors import UserError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ngram:4", NgramSpec(4)),
        ("ngram:1:3-7", NgramSpec(1, 3, 7)),
        ("draft:smollm2-135m:4", DraftSpec("smollm2-135m", 4)),
        ("draft:C:/models/a:b.gguf:12", DraftSpec("C:/models/a:b.gguf", 12)),
        ("synthetic:3:0.75:conditional", SyntheticSpec(3, 0.75, "conditional")),
        ("synthetic:2:1:marginal:99", SyntheticSpec(2, 1.0, "marginal", 99)),
    ],
)
def test_texts(text, spec):
    assert parse_speculation(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "speculation ''; it must be ngram:DRAFTS or .*, draft:MODEL:DRAFTS, synthetic:"),
        ("eagle:3", "speculation 'eagle:3'; it must be ngram:DRAFTS"),
        ("ngram", "speculation 'ngram'; it must be ngram:DRAFTS or ngram:DRAFTS:LEAST-MOST$"),
        ("ngram:4:1-2:3", "it must be ngram:DRAFTS or"),
        ("ngram:0", "DRAFTS is '0'; it must be a whole number, 1 or more"),
        ("ngram:-1", "DRAFTS is '-1'"),
        ("ngram:four", "DRAFTS is 'four'"),
        ("ngram:²", "DRAFTS is '²'"),
        ("ngram:4:3", "LEAST-MOST is '3'; it must be two whole numbers like 2-4"),
        ("ngram:4:0-3", "LEAST is '0'"),
        ("ngram:4:3-", "MOST is ''"),
        ("ngram:4:5-3", "LEAST is 5; it must be at most MOST, 3"),
        ("draft:4", "'draft:4'; it must be draft:MODEL:DRAFTS"),
        ("draft::4", "MODEL is empty"),
        ("draft:model:x", "DRAFTS is 'x'"),
        ("synthetic:3", "it must be synthetic:DRAFTS:ACCEPTANCE:READING or"),
        (
            "synthetic:3:0.75",
            r"READING is missing; it must be conditional \(2.734 tokens .* or marginal \(3.25 tokens per step\)",
        ),
        ("synthetic:3:0.75:mean", "READING is 'mean'; it must be conditional or marginal"),
        ("synthetic:3:1.5:marginal", "ACCEPTANCE is '1.5'; it must be a number between 0 and 1"),
        ("synthetic:3:nan:marginal", "ACCEPTANCE is 'nan'"),
        ("synthetic:3:high:marginal", "ACCEPTANCE is 'high'"),
        ("synthetic:3:0.5:marginal:-1", "SEED is '-1'; it must be a whole number, 0 or more"),
    ],
)
def test_a_wrong_part_is_named(text, message):
    with pytest.raises(UserError, match=message) as error:
        parse_speculation(text)
    assert "\n" not in str(error.value)


def test_proposers_are_built_for_a_target(monkeypatch):
    target, draft = tiny_model(), tiny_model(seed=1)
    options = {"cache_tokens": 60, "block_size": 8, "max_batch_tokens": 9}
    ngram = parse_speculation("ngram:4:1-3").build(target, **options)
    assert isinstance(ngram, NgramProposer) and (ngram.max_drafts, ngram.min_match, ngram.max_match) == (4, 1, 3)
    synthetic = parse_speculation("synthetic:3:0.5:marginal:7").build(target, **options)
    assert isinstance(synthetic, SyntheticProposer) and synthetic.rates == [0.5, 1.0, 1.0]
    assert synthetic.seed == 7 and synthetic.end_token_ids == {EOS}
    loaded = []
    monkeypatch.setattr("wholecurve.engine.speculation.spec.resolve", lambda name: name)
    monkeypatch.setattr("wholecurve.engine.speculation.spec.load_model", lambda *given: loaded.append(given) or draft)
    proposer = parse_speculation("draft:some:3").build(target, **options)
    assert isinstance(proposer, DraftModelProposer) and proposer.max_drafts == 3 and proposer.max_batch_tokens == 9
    assert proposer.blocks.pool.num_blocks == 8 and loaded == [("some", "float32", "cpu")]


def test_a_draft_model_that_is_not_there_is_named():
    with pytest.raises(UserError, match="model 'no such model'"):
        parse_speculation("draft:no such model:2").build(tiny_model())
