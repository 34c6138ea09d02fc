"""Each check on small numbers: what it says when all is well, and what when it is not."""

from math import sqrt

import pytest
from claim_builders import at_loads, number, numbers

from wholecurve.curves.claims.checks import CHECKS, DECIDING, NOTING
from wholecurve.curves.claims.checks.baseline import (
    baseline_choice,
    baseline_handicap,
    composite_baseline,
    self_baseline,
)
from wholecurve.curves.claims.checks.conditions import cross_model, framing, operating_point, precision, runs
from wholecurve.curves.claims.checks.identity import identity, occupancy, product_identity
from wholecurve.curves.claims.checks.order import against_one, changes, every_point, kendall_tau_b, larger, trend
from wholecurve.curves.claims.checks.scope import (
    assumption,
    missing_metrics,
    remark,
    speculation,
    token_accounting,
)
from wholecurve.curves.claims.nouns import Claim, Published, Reference, Sentence
from wholecurve.curves.claims.verdicts import (
    CANNOT,
    CAUTION,
    CLEAR,
    CONFIRMED,
    CONSISTENT,
    CONTRADICTED,
    DISCLOSED,
)
from wholecurve.errors import UserError

STEPS = (4096, 8192, 16384, 32768, 65536)
PATCHED = at_loads(("1.16×", "1.14×", "1.14×", "1.21×", "1.37×"), STEPS)
PUBLISHED = at_loads(("1.07×", "1.05×", "1.02×", "1.00×", "0.99×"), STEPS, approximate=True)
SAYS = Sentence("text", 9, "as the text says")


def test_every_check_has_one_name_and_a_docstring():
    assert not set(DECIDING) & set(NOTING) and CHECKS == DECIDING | NOTING
    assert len(set(CHECKS.values())) == len(CHECKS)
    assert all(check.__doc__ for check in CHECKS.values())


def test_every_point():
    assert every_point(of=numbers("1.09×", "1.2×")).verdict == CONFIRMED
    assert every_point(of=numbers("1.00×", "1.2×")).verdict == CONSISTENT
    assert every_point(of=numbers("1.00×", "0.98×")).verdict == CONTRADICTED
    assert every_point(of=(number("0.99×", approximate=True),)).verdict == CONSISTENT
    assert "0.98×: below 1" in every_point(of=numbers("1.00×", "0.98×")).finding
    assert every_point(of=numbers("5%", unit="% less")).verdict == CONTRADICTED


@pytest.mark.parametrize(
    "text, approximate, stands, verdict",
    [
        ("1.00×", False, "equal", CONFIRMED),
        ("0.99×", True, "equal", CONSISTENT),
        ("0.98×", False, "equal", CONTRADICTED),
        ("0.98×", False, "below", CONFIRMED),
        ("0.99×", True, "below", CONSISTENT),
        ("1.02×", False, "below", CONTRADICTED),
        ("1.02×", False, "above", CONFIRMED),
        ("1.00×", False, "above", CONSISTENT),
        ("0.98×", False, "above", CONTRADICTED),
    ],
)
def test_against_one(text, approximate, stands, verdict):
    assert against_one(number=number(text, approximate=approximate), stands=stands).verdict == verdict


def test_changes_and_larger():
    assert changes(first=number("1.45×"), second=number("2.49×")).verdict == CONFIRMED
    assert changes(first=number("1.45×"), second=number("1.46×")).verdict == CONTRADICTED
    assert changes(first=number("45%", "% more"), second=number("1.9×")).verdict == CONFIRMED
    assert larger(larger=numbers("2.17×", "3.41×"), smaller=numbers("1.8×")).verdict == CONFIRMED
    assert larger(larger=numbers("1.81×", "3.41×"), smaller=numbers("1.8×")).verdict == CONSISTENT
    below = larger(larger=numbers("2.17×", "3.41×"), smaller=numbers("1.8×", "2.7×"))
    assert (below.verdict, below.finding) == (CONTRADICTED, "2.17× is below 2.7×")


def test_trend_over_all_and_at_every_step():
    rises = trend(series=PATCHED, direction="rises")
    assert rises.verdict == CONFIRMED
    assert "rises from end to end; 2 up and 1 down of 4 steps" in rises.finding
    assert rises.arithmetic.endswith("of 10 pairs 7 rise and 2 fall (Kendall tau-b 0.53)")
    assert trend(series=PATCHED, direction="rises", claimed="every step").verdict == CONTRADICTED
    assert trend(series=PATCHED[2:], direction="rises", claimed="every step").verdict == CONFIRMED
    assert trend(series=PATCHED[1:], direction="rises", claimed="every step").verdict == CONSISTENT
    assert trend(series=PATCHED, direction="falls").verdict == CONTRADICTED


def test_trend_against_the_published_baseline_runs_the_other_way():
    found = trend(series=PUBLISHED, direction="rises")
    assert found.verdict == CONTRADICTED
    assert found.arithmetic.endswith("0 rise and 10 fall (Kendall tau-b −1.00)")
    assert trend(series=PUBLISHED, direction="falls").verdict == CONFIRMED
    assert trend(series=PUBLISHED, direction="falls", claimed="every step").verdict == CONSISTENT


def test_a_trend_whose_ends_may_be_equal_is_not_confirmed():
    hump = at_loads(("1.10×", "1.30×", "1.20×", "1.40×", "1.11×"), STEPS)
    assert trend(series=hump, direction="rises").verdict == CONSISTENT
    flat = at_loads(("1.1×", "1.1×", "1.1×"), STEPS)
    assert trend(series=flat, direction="rises").verdict == CONTRADICTED


def test_a_trend_with_more_pairs_against_it_is_contradicted_though_its_ends_rise():
    dip = at_loads(("1.30×", "1.25×", "1.20×", "1.10×", "1.35×"), STEPS)
    assert trend(series=dip, direction="rises").verdict == CONTRADICTED


def test_trend_sorts_by_load_and_needs_loads():
    assert (
        trend(series=PATCHED[::-1], direction="rises").arithmetic == trend(series=PATCHED, direction="rises").arithmetic
    )
    with pytest.raises(UserError, match="three numbers or more"):
        trend(series=PATCHED[:2], direction="rises")
    with pytest.raises(UserError, match="one load"):
        trend(series=numbers("1×", "2×", "3×"), direction="rises")
    with pytest.raises(UserError, match="rises or falls"):
        trend(series=PATCHED, direction="grows")
    with pytest.raises(UserError, match="overall or every step"):
        trend(series=PATCHED, direction="rises", claimed="mostly")


def test_kendall_tau_b_against_values_worked_by_hand():
    assert kendall_tau_b([1, 2, 3, 4]) == 1
    assert kendall_tau_b([4, 3, 2, 1]) == -1
    assert kendall_tau_b([1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall_tau_b([2, 2, 2]) == 0
    assert kendall_tau_b([116, 114, 114, 121, 137]) == pytest.approx(5 / sqrt(9 * 10))


def test_identity_is_one_result_or_two():
    loads = (8, 16)
    same = identity(throughputs=at_loads(("1.12×", "1.11×"), loads), speeds=at_loads(("1.12×", "1.11×"), loads))
    assert same.verdict == CONFIRMED and "one result shown twice" in same.finding
    apart = identity(
        throughputs=(number("21%", "% more", operating_point="concurrency=128"),),
        speeds=(number("2.49×", operating_point="concurrency=128"),),
    )
    assert apart.verdict == CONTRADICTED
    assert "throughput is 1.21× [1.205, 1.215] and speed 2.49× [2.485, 2.495]" in apart.finding
    with pytest.raises(UserError, match="not at the same loads"):
        identity(throughputs=at_loads(("1×",), (8,)), speeds=at_loads(("1×",), (16,)))


def sides(*pairs):
    return {
        "concurrency": number("128", "requests", framing="setting"),
        "speeds": tuple(number(speed, "tok/s/user", who=who) for who, speed, _ in pairs),
        "throughputs": tuple(number(total, "tok/s", who=who) for who, _, total in pairs),
    }


def test_product_identity():
    broken = product_identity(**sides(("A", "41.9", "2,095"), ("B", "16.8", "2,150")))
    assert broken.verdict == CONTRADICTED
    assert broken.finding == "the printed throughput is this share of concurrency times speed: 0.39 (A)"
    assert "A: 128 × 41.9 = 5,363 [5,356, 5,370], printed 2,095" in broken.arithmetic
    assert product_identity(**sides(("B", "16.8", "2,150"))).verdict == CONFIRMED
    uneven = sides(("A", "41.9", "2,095")) | {"speeds": ()}
    with pytest.raises(UserError, match="0 speeds but 1 throughputs"):
        product_identity(**uneven)
    with pytest.raises(UserError, match="one of each per side"):
        occupancy(**uneven)


def test_occupancy():
    low = occupancy(**sides(("A", "41.9", "2,095"), ("B", "16.8", "1,731")))
    assert low.verdict == CAUTION
    assert "A: 2,095 / (128 × 41.9) = 0.39" in low.arithmetic
    assert "B: 1,731 / (128 × 16.8) = 0.80" in low.arithmetic
    assert "two configurations" not in low.finding
    composite = occupancy(**sides(("A", "41.9", "2,095")), says=SAYS)
    assert "may come from two configurations" in composite.finding and composite.quote == SAYS
    assert occupancy(**sides(("A", "10.0", "1,200"))).verdict == CLEAR
    assert occupancy(**sides(("A", "10.0", "1,200"), ("B", "10.0", "1,100"))).verdict == CAUTION


def test_baseline_handicap():
    found = baseline_handicap(run=PATCHED, as_published=PUBLISHED)
    assert found.verdict == CAUTION and found.quote == PUBLISHED[-1].sentence
    assert "at step tokens 65,536 the baseline reached 0.72 [0.70, 0.74]" in found.finding
    assert "1.37× is 0.99× over the published baseline times 1.38×" in found.finding
    for share in ("0.92 [0.90, 0.94] at 4,096", "0.89 [0.87, 0.92] at 16,384", "0.83 [0.81, 0.85] at 32,768"):
        assert share in found.arithmetic
    assert baseline_handicap(run=PATCHED, as_published=PUBLISHED, says=SAYS).verdict == DISCLOSED
    with pytest.raises(UserError, match="same loads, each once"):
        baseline_handicap(run=PATCHED, as_published=PUBLISHED[1:])
    with pytest.raises(UserError, match="each once"):
        baseline_handicap(run=(*PATCHED, PATCHED[0]), as_published=PUBLISHED)


def test_other_baselines():
    composite = composite_baseline(numbers=numbers("16.8", "1,731", unit="tok/s"), says=SAYS)
    assert (composite.verdict, composite.arithmetic) == (DISCLOSED, "16.8, 1,731")
    choice = baseline_choice(
        number=number("2.18×", against="SGLang", model="G"),
        other=number("34%", "% more", against="vLLM", model="G 12B"),
    )
    assert choice.verdict == CAUTION and choice.arithmetic.endswith("1.63 [1.61, 1.64]× apart")
    own = number("12.9×", framing="self")
    assert self_baseline(numbers=(own,)).verdict == CAUTION
    assert self_baseline(numbers=(own,), says=SAYS).verdict == DISCLOSED
    with pytest.raises(UserError, match="'self' is needed"):
        self_baseline(numbers=(number("12.9×", framing="direct"),))


@pytest.mark.parametrize(
    "fields, lower, says, verdict, words",
    [
        ({"framing": "direct"}, None, None, CLEAR, "nothing interpolated"),
        ({"framing": "direct", "bound": "up to"}, None, None, CAUTION, "lower end and middle are not printed"),
        ({"framing": "direct", "bound": "up to"}, number("1.1×"), None, DISCLOSED, "the lower is 1.1×"),
        ({"framing": "direct", "bound": "up to"}, None, SAYS, CAUTION, "upper end"),
        ({"framing": "same speed"}, None, None, CAUTION, "throughput at equal speed"),
        ({"framing": "same throughput"}, None, SAYS, DISCLOSED, "speed per user at equal throughput"),
        ({"framing": "same speed", "bound": "range high"}, number("1.1×"), None, CAUTION, "upper end"),
        ({"framing": "ratio"}, None, SAYS, CAUTION, "held equal is not said"),
        ({"framing": "cost"}, None, None, CLEAR, "not measured"),
        ({"framing": "self"}, None, None, CLEAR, "against itself"),
    ],
)
def test_framing(fields, lower, says, verdict, words):
    found = framing(number=number("2.2×", **fields), lower=lower, says=says)
    assert found.verdict == verdict and words in found.finding


def test_framing_needs_a_comparison():
    with pytest.raises(UserError, match="compares nothing"):
        framing(number=number("128", "requests", framing="setting"))


def test_operating_point():
    assert operating_point(numbers=PATCHED[:2]).finding == "stated: step tokens 4,096, 8,192"
    both = (number("1.8×", operating_point="speed=389 tok/s/user"), number("1×", operating_point="concurrency 4 and 8"))
    assert operating_point(numbers=both).finding == "stated: speed 389 tok/s/user; concurrency 4 and 8"
    found = operating_point(numbers=(PATCHED[0], number("1.75×")))
    assert (found.verdict, found.finding) == (CAUTION, "where on the curve is not said for 1.75×")


@pytest.mark.parametrize(
    "n, says, verdict, words",
    [
        ("", SAYS, CAUTION, "not said"),
        ("1", None, CAUTION, "no interval"),
        ("1", SAYS, DISCLOSED, "no interval"),
        ("2 / 1 or 2", SAYS, DISCLOSED, "the sides differ"),
        ("3 / 2", None, CAUTION, "no interval"),
        ("3", None, CLEAR, "three runs or more"),
        ("5 / 3", None, CLEAR, "three runs or more"),
        ("5 / unstated", None, CAUTION, "the sides differ"),
    ],
)
def test_runs(n, says, verdict, words):
    found = runs(numbers=(number("2×", n=n),), says=says)
    assert found.verdict == verdict and words in found.finding


@pytest.mark.parametrize(
    "value, says, verdict, words",
    [
        ("BF16", None, CLEAR, "the same on both sides"),
        ("BF16 / FP8", SAYS, DISCLOSED, "runs against A"),
        ("BF16 / FP8", None, CAUTION, "runs against A"),
        ("FP8 / BF16", SAYS, CAUTION, "lower precision of A is part of the multiplier"),
        ("", None, CAUTION, "unstated against unstated"),
        ("BF16 / mixed", None, CAUTION, "BF16 against mixed"),
    ],
)
def test_precision(value, says, verdict, words):
    found = precision(number=number("1.31×", who="A", precision=value), says=says)
    assert found.verdict == verdict and words in found.finding


def test_cross_model():
    ours = number("2.17×", model="Gemma 4", hardware="1× RTX", against="SGLang", framing="same speed")
    theirs = number("1.8×", model="DSV4.1", hardware="B200", against="SGLang", framing="same speed")
    found = cross_model(numbers=(theirs, ours), fields=("framing", "against", "model", "hardware"))
    assert found.verdict == CONTRADICTED and found.finding == "the terms differ in model, hardware"
    assert found.arithmetic.startswith("framing: same speed; baseline: SGLang; model: DSV4.1 | Gemma 4")
    assert cross_model(numbers=(theirs, ours), fields=("framing", "against")).verdict == CONFIRMED
    open_ = cross_model(numbers=(theirs, number("2×", against="SGLang")), fields=("against", "model"))
    assert (open_.verdict, open_.finding) == (CANNOT, "not said for all: model")
    assert cross_model(numbers=numbers("1×", "2×"), fields=("model",)).verdict == CANNOT
    with pytest.raises(UserError, match="'colour'; known are framing"):
        cross_model(numbers=(theirs, ours), fields=("colour",))


def test_missing_metrics():
    def document(*metrics):
        found = {m: number("1×", id=m, who="A", metric=m) for m in metrics}
        return Published({}, found | {"other": number("1×", who="B", metric="p99 TTFT")}, ())

    claim = Claim("c", "text", 1, 1, "", ())
    decode = missing_metrics(claim, document("output throughput", "median decode speed"), who="A")
    assert decode.verdict == CAUTION
    assert decode.finding == "not printed in this text: tail of speed per user, TTFT, completion time"
    assert missing_metrics(claim, document("output throughput"), who="A", says=SAYS).verdict == DISCLOSED
    whole = document("output throughput", "p90 decode speed", "p99 TTFT", "p90 completion time")
    assert missing_metrics(claim, whole, who="A").verdict == CLEAR
    with pytest.raises(UserError, match="has who 'C'"):
        missing_metrics(claim, whole, who="C")
    with pytest.raises(UserError, match="no number of document 'elsewhere'"):
        missing_metrics(Claim("c", "elsewhere", 1, 1, "", ()), whole, who="A")


def test_token_accounting():
    found = token_accounting(
        numbers=(number("10,525", "tok/s/GPU", who="A"),),
        gpus=number("eight", "GPUs", framing="setting"),
        sessions=number("16", "sessions", framing="setting"),
        references=(Reference("a source", "counts input"),),
    )
    assert found.verdict == CAUTION
    assert found.arithmetic == "A: 10,525 × 8 GPUs / 16 sessions = 5,263 [5,262, 5,263] tok/s per session"
    assert found.finding.endswith("Sources: counts input (a source)")


def test_assumption_gives_gain_and_cut_together():
    found = assumption(number=number("2.2×"), says=SAYS)
    assert found.verdict == DISCLOSED
    assert found.arithmetic == "2.2×: 120.0 % more from the same hardware, 54.5 % less cost for the same work"
    assert assumption(number=number("34%", "% more")).verdict == CAUTION
    assert "25.4 % less cost" in assumption(number=number("34%", "% more")).arithmetic


def test_speculation_prints_both_readings():
    found = speculation(drafts=number("Three", "tokens"), acceptance=number("75%", "%"))
    assert "= 2.734 tokens per step" in found.arithmetic and "1 + 3a = 3.25" in found.arithmetic


def test_remark():
    assert remark(finding="a word").verdict == CAUTION
    credit = remark(finding="a word", credit=True, says=SAYS, numbers=numbers("1×", "2×"))
    assert (credit.verdict, credit.quote, credit.arithmetic) == (DISCLOSED, SAYS, "1×, 2×")
