"""The audit of the four published texts: every verdict, and the sentences that reviewers will look for."""

import csv
import json
import shutil
from functools import cache

import pytest
from claim_builders import PUBLISHED

from wholecurve.curves.claims import audit
from wholecurve.curves.claims.checks import CHECKS, DECIDING
from wholecurve.curves.claims.verdicts import (
    CANNOT,
    CAUTION,
    CLEAR,
    CONFIRMED,
    CONSISTENT,
    CONTRADICTED,
    DISCLOSED,
    MEANINGS,
    worst,
)
from wholecurve.readers.published import read_claims

NOT_CONFIRMED = {
    CONTRADICTED: {"deepinfer-advantage-grows", "throughput-is-product", "equal-terms", "approaches-align"},
    CONSISTENT: {"vllm-fp8-speed", "gemma-requests", "deepinfer-parity"},
    CANNOT: {
        "deepinfer-baseline-declines", "vllm-64", "posts-output", "posts-every-level", "posts-bf16-fp8", "posts-close",
        "posts-opens-up", "posts-ttft", "friendli-same-speed", "friendli-same-throughput", "gemma-same-throughput",
        "gemma-same-speed", "gemma-direct", "together-multiples", "together-shrinks", "self-multiples", "table-self",
        "every-metric", "ttft-absent",
    },
}  # fmt: skip


@cache
def audited():
    return audit(read_claims(PUBLISHED))


def claim(name):
    return next(found for found in audited().claims if found.claim.id == name)


def findings(name, check):
    return [finding for finding in claim(name).findings if finding.name == check]


def finding(name, check):
    (found,) = findings(name, check)
    return found


def test_every_claim_has_the_verdict_that_was_read_and_agreed():
    expected = {name: verdict for verdict, names in NOT_CONFIRMED.items() for name in names}
    got = {found.claim.id: found.verdict for found in audited().claims}
    assert set(expected) <= set(got)
    assert got == {name: expected.get(name, CONFIRMED) for name in got}
    assert audited().counts == {CONFIRMED: 40, CONSISTENT: 3, CANNOT: 19, CONTRADICTED: 4}
    assert sum(audited().counts.values()) == len(got) == 66


@pytest.mark.parametrize(
    "name, line",
    [
        ("vllm-bf16-speed", "41.9 / 16.8 = 2.494 [2.483, 2.505]; claimed 2.49×, which is [2.485, 2.495]"),
        ("vllm-bf16-throughput", "100 × (2,095 / 1,731 − 1) = 21.0 [20.9, 21.1]; claimed 21%, which is [20.5, 21.5]"),
        ("vllm-bf16-completion", "100 × (1 − 41.7s / 67.7s) = 38.4 [38.2, 38.6]; claimed 38%, which is [37.5, 38.5]"),
        ("vllm-bf16-ttft", "100 × (1 − 0.86s / 1.59s) = 45.9 [45.4, 46.4]; claimed 46%, which is [45.5, 46.5]"),
        ("vllm-fp8-speed", "41.8 / 16.7 = 2.503 [2.492, 2.514]; claimed 2.51×, which is [2.505, 2.515]"),
        ("vllm-fp8-throughput", "100 × (2,149 / 1,764 − 1) = 21.8 [21.7, 21.9]; claimed 22%, which is [21.5, 22.5]"),
        ("vllm-fp8-completion", "100 × (1 − 41.6s / 69.9s) = 40.5 [40.3, 40.7]; claimed 40%, which is [39.5, 40.5]"),
        ("vllm-fp8-ttft", "100 × (1 − 0.90s / 1.57s) = 42.7 [42.1, 43.2]; claimed 43%, which is [42.5, 43.5]"),
        ("deepinfer-prefill-cost", "1 / 1.37 = 0.730 [0.727, 0.733]; claimed about 0.73×, which is [0.715, 0.745]"),
        (
            "deepinfer-prefill-cost-cut",
            "100 × (1 − 1 / 1.37) = 27.0 [26.7, 27.3]; claimed about 27%, which is [25.5, 28.5]",
        ),
        ("deepinfer-decode-cost", "1 / 1.12 = 0.893 [0.888, 0.897]; claimed about 0.89×, which is [0.875, 0.905]"),
        ("posts-cost-capacity", "100 × (1 − 1 / 2.2) = 54.5 [53.4, 55.6]; claimed 55%, which is [54.5, 55.5]"),
        ("posts-rate", "100 × (10,525 / 8,013 − 1) = 31.3 [31.3, 31.4]; claimed 31%, which is [30.5, 31.5]"),
        ("posts-gemma", "100 × (1 − 1 / 1.34) = 25.4 [25.0, 25.7]; claimed about 25%, which is [23.5, 26.5]"),
        ("deepinfer-total-requests", "8 × 4 = 32; claimed 32"),
        ("together-best-sglang", "max(1.8×, 1.8×) = 1.80 [1.75, 1.85]; claimed 1.8×, which is [1.75, 1.85]"),
        ("vllm-context", "256K = 262,144; claimed 262,144"),
        ("self-days", "10 − 5 = 5; claimed 5"),
    ],
)
def test_the_arithmetic_stands_as_a_line(name, line):
    assert claim(name).arithmetic == line


def test_the_arithmetic_of_a_claim_is_that_of_the_check_that_decided():
    assert claim("deepinfer-advantage-grows").arithmetic.startswith("1.07× at 4,096")
    assert claim("equal-terms").arithmetic.startswith("framing: same speed")
    assert claim("every-metric").arithmetic is None


def test_ttft_is_derived_and_not_claimed():
    assert finding("posts-ttft", "derived").arithmetic == "10.6 / 0.78 = 13.59 [13.43, 13.75]"


def test_the_trend_is_judged_against_both_baselines():
    patched, published = findings("deepinfer-advantage-grows", "trend")
    assert (patched.verdict, published.verdict) == (CONFIRMED, CONTRADICTED)
    assert "7 rise and 2 fall (Kendall tau-b 0.53)" in patched.arithmetic
    assert "0 rise and 10 fall (Kendall tau-b −1.00)" in published.arithmetic
    qualified = claim("deepinfer-overall-trend")
    assert qualified.verdict == CONFIRMED
    (credit,) = findings("deepinfer-overall-trend", "remark")
    assert credit.verdict == DISCLOSED and credit.quote.quote.startswith("isn’t perfectly linear")


def test_the_handicap_of_the_patched_baseline_is_told_at_every_step_and_credited():
    found = finding("deepinfer-headline", "baseline handicap")
    assert found.verdict == DISCLOSED and found.quote.line == 324
    for share in ("0.92 [0.90, 0.94] at 4,096", "0.92 [0.90, 0.94] at 8,192", "0.89 [0.87, 0.92] at 16,384",
                  "0.83 [0.81, 0.85] at 32,768", "0.72 [0.70, 0.74] at 65,536"):  # fmt: skip
        assert share in found.arithmetic
    assert finding("posts-deepinfer", "baseline handicap").verdict == CAUTION


def test_identity_holds_in_the_step_benchmark_and_breaks_in_serving():
    assert finding("deepinfer-tandem", "identity").verdict == CONFIRMED
    serving, steps = findings("throughput-is-product", "identity")
    assert (serving.verdict, steps.verdict) == (CONTRADICTED, CONFIRMED)
    bf16, fp8 = findings("throughput-is-product", "product identity")
    assert "0.39 (Backboard), 0.80 (vLLM" in bf16.finding and "0.40 (Backboard), 0.83 (vLLM" in fp8.finding
    assert "128 × 41.9 = 5,363" in bf16.arithmetic


def test_occupancy_is_told_with_the_composite_in_mind():
    found = finding("vllm-bf16-speed", "occupancy")
    assert found.verdict == CAUTION and "= 0.39" in found.arithmetic and "= 0.80" in found.arithmetic
    assert "may come from two configurations" in found.finding


def test_a_caution_never_changes_a_verdict():
    for found in audited().claims:
        deciding = [f.verdict for f in found.findings if f.name in DECIDING]
        assert found.verdict == worst(deciding)
        assert all(f.verdict in (CLEAR, DISCLOSED, CAUTION) for f in found.findings if f.name not in DECIDING)
    assert any(f.verdict == CAUTION for f in claim("vllm-bf16-speed").findings)


def test_what_the_texts_disclose_is_credited_in_their_own_words():
    credited = {
        f.quote.quote for found in audited().claims for f in found.findings if f.verdict == DISCLOSED and f.quote
    }
    for words in (
        "Results represent a single run per benchmark point",
        "should therefore be understood specifically as a comparison against our PCIe-patched DeepInfer run",
        "They have not been independently verified",
        "No single vLLM configuration achieves all these baseline values at once",
        "reaches the first token sooner at the 90th percentile",
        "We’d rather show you a narrower advantage than make you find it",
        "Both engines were tested alternately, point by point",
    ):
        assert words in credited


def test_equal_terms_are_contradicted_by_the_texts_own_caveat():
    found = finding("equal-terms", "cross-model")
    assert found.verdict == CONTRADICTED
    assert found.quote.quote == "The models, workloads, and baselines differ"
    assert found.finding == "the terms differ in baseline, metric, model, hardware"
    assert finding("equal-terms", "larger").verdict == CONFIRMED


def test_precision_runs_against_the_publisher():
    found = finding("posts-rate", "precision")
    assert found.verdict == DISCLOSED and "runs against Backboard" in found.finding


def test_token_accounting_cites_its_sources():
    found = finding("posts-rate", "token accounting")
    assert "10,525 × 8 GPUs / 16 sessions = 5,263" in found.arithmetic
    assert found.finding.count("SemiAnalysisAI/InferenceX") == 3


def test_every_kind_of_check_is_used():
    used = {f.name for found in audited().claims for f in found.findings}
    assert used == set(CHECKS)


def test_each_finding_has_words_and_a_quote_or_a_reason_to_have_none():
    without = {f.name for found in audited().claims for f in found.findings if f.quote is None}
    assert without <= {"not published", "missing metrics", "remark"}
    assert all(f.finding and f.verdict in MEANINGS for found in audited().claims for f in found.findings)


def test_the_document_is_json_and_whole():
    document = audited().to_document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == {"claims", "counts", "meanings"}
    first = document["claims"][0]
    assert set(first) == {"id", "text", "source", "verdict", "arithmetic", "checks"}
    assert first["source"] == {"document": "backboard-deepinfer", "line": 9, "last_line": 9}
    assert set(first["checks"][0]) == {"name", "verdict", "finding", "arithmetic", "quote"}
    assert first["checks"][0]["quote"] == {
        "document": "backboard-deepinfer",
        "line": 9,
        "text": "up to 1.12× the decode throughput",
    }
    assert document["counts"] == audited().counts


@pytest.mark.parametrize(
    "changed, name, before, after",
    [
        ({"vllm-bf16-speed-backboard": ("41.9", "42.0")}, "vllm-bf16-speed", CONFIRMED, CONSISTENT),
        ({"vllm-bf16-speed-vllm": ("16.8", "16.9")}, "vllm-bf16-speed", CONFIRMED, CONSISTENT),
        ({"vllm-fp8-speed-backboard": ("41.8", "41.9")}, "vllm-fp8-speed", CONSISTENT, CONFIRMED),
        ({"vllm-bf16-throughput": ("21%", "22%")}, "vllm-bf16-throughput", CONFIRMED, CONTRADICTED),
        ({"vllm-bf16-throughput-backboard": ("2,095", "2,096")}, "vllm-bf16-throughput", CONFIRMED, CONFIRMED),
        ({"posts-capacity": ("120%", "121%")}, "posts-cost-capacity", CONFIRMED, CONSISTENT),
        ({"deepinfer-decode-speed-8": ("1.12×", "1.13×")}, "deepinfer-decode-speed", CONFIRMED, CONSISTENT),
        ({"deepinfer-prefill-65536": ("1.37×", "1.14×")}, "deepinfer-overall-trend", CONFIRMED, CONTRADICTED),
        ({"deepinfer-prefill-published-65536": ("0.99×", "0.96×")}, "deepinfer-parity", CONSISTENT, CONFIRMED),
        ({"together-glm53": ("1.8×", "1.9×")}, "together-best-sglang", CONFIRMED, CONSISTENT),
        ({"self-day-earlier": ("5", "6")}, "self-days", CONFIRMED, CONTRADICTED),
    ],
)
def test_a_changed_digit_in_the_data_changes_the_verdict_where_it_must(tmp_path, changed, name, before, after):
    folder = tmp_path / "published"
    shutil.copytree(PUBLISHED, folder)
    with (folder / "numbers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["id"] in changed:
            old, new = changed[row["id"]]
            assert row["printed"] == old
            row |= {"printed": new, "value": "", "quote": row["quote"].replace(old, new)}
    with (folder / "numbers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert claim(name).verdict == before
    assert {found.claim.id: found.verdict for found in audit(read_claims(folder)).claims}[name] == after
