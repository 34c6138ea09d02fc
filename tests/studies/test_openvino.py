"""OpenVINO GenAI as a contender, on the real model: it reads GGUF, and a tiny random GGUF has no tokenizer for it.

Slow part: loading the F16 checkpoint takes about 5 s each time.
"""

import pytest

genai = pytest.importorskip("openvino_genai", reason="the peers extra is not installed")

from wholecurve.curves import reduce_trace  # noqa: E402
from wholecurve.errors import UserError  # noqa: E402
from wholecurve.studies.agreement import agreement_requests, require_agreement, score_greedy, summarise  # noqa: E402
from wholecurve.studies.contenders import ContenderSettings, build_contender  # noqa: E402
from wholecurve.studies.plan import AgreementPlan, DecodePlan  # noqa: E402
from wholecurve.studies.workloads import decode_requests  # noqa: E402

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def settings(real_model_files):
    return ContenderSettings(
        hf_folder=real_model_files.hf_folder(),
        gguf=real_model_files.f16_gguf(),
        dtype="bfloat16",
        threads=1,
        max_batch_tokens=256,
        max_sequences=8,
        cache_tokens=2048,
    )


@pytest.fixture(scope="module")
def contender(settings):
    return build_contender("openvino", settings)


def test_it_chooses_the_tokens_of_our_reference(contender, settings):
    requests = agreement_requests(settings.hf_folder, 12)
    _, tokens = contender.run_closed_loop(requests, len(requests))
    sequences = [{"prompt_ids": r.prompt_ids, "tokens": tokens[r.request_id]} for r in requests]
    summary = summarise(score_greedy(str(settings.hf_folder), sequences))
    require_agreement("openvino", summary, AgreementPlan())
    assert summary["max_gap"] < 0.25


def test_every_request_brings_the_tokens_it_asked_for(contender):
    plan = DecodePlan(concurrency=[3], requests_per_slot=2, prompt_tokens=[8, 20], output_tokens=[3, 9])
    requests = decode_requests(plan, 0, 3, 1, 49152)
    traces, _ = contender.run_closed_loop(requests, 3)
    assert [t.output_tokens for t in traces] == [r.output_tokens for r in requests]
    assert [t.prompt_tokens for t in traces] == [len(r.prompt_ids) for r in requests]
    assert reduce_trace(traces, 3)["achieved_concurrency"] == pytest.approx(3, rel=0.2)


def test_settings_are_those_of_the_study(contender):
    described = contender.describe()
    assert described["dtype"] == described["kv_cache_dtype"] == "bfloat16"
    assert described["prefix_cache"] is False and described["max_batch_tokens"] == 256
    assert described["kv_cache_bytes"] == 65 * 32 * 2 * 30 * 3 * 64 * 2


def test_a_cache_in_8_bits_is_noticed(settings, monkeypatch):
    pipeline = genai.ContinuousBatchingPipeline

    def quantising(path, scheduler, device, properties):
        return pipeline(path, scheduler, device, {**properties, "KV_CACHE_PRECISION": "u8"})

    monkeypatch.setattr(genai, "ContinuousBatchingPipeline", quantising)
    with pytest.raises(UserError, match=r"key-value cache has \d+ bytes, \d+ would be bfloat16"):
        build_contender("openvino", settings)


def test_float32_where_bfloat16_is_not_native(settings):
    from dataclasses import replace

    contender = build_contender("openvino", replace(settings, dtype="float32"))
    requests = agreement_requests(settings.hf_folder, 6)
    _, tokens = contender.run_closed_loop(requests, len(requests))
    sequences = [{"prompt_ids": r.prompt_ids, "tokens": tokens[r.request_id]} for r in requests]
    summary = summarise(score_greedy(str(settings.hf_folder), sequences))
    assert summary["best_share"] == 1 and summary["max_gap"] == 0
    assert contender.describe()["kv_cache_bytes"] == 65 * 32 * 2 * 30 * 3 * 64 * 4


def test_it_needs_a_gguf_checkpoint(settings):
    from dataclasses import replace

    with pytest.raises(UserError, match="reads GGUF checkpoints only"):
        build_contender("openvino", replace(settings, gguf=None))
