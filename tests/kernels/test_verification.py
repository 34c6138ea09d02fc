"""Speculative verification: every line of the case file in every form, and the distribution that comes out."""

import math

import pytest
import torch
from kernel_checks import require_form
from kernel_suite import KernelSuite

from wholecurve.kernels.sampling import sampling
from wholecurve.kernels.sampling.philox import verification_uniforms
from wholecurve.kernels.verification import acceptance, reference, verification
from wholecurve.kernels.verification.spec import BENCH, TESTS, cost
from wholecurve.kernels.verification.subject import SUBJECT
from wholecurve.profiling.checks import check_case

FORMS = ("reference", "cpu", "interpret")
P, Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])


class TestVerification(KernelSuite):
    kernel = "verification"
    dtypes = None  # the cases name theirs, of the logits and of the draft's chances
    mutants = {
        "accepts counted after a rejection": (
            "accepted = tl.min(tl.where(stays & drafted, BLOCK_POSITIONS, positions), axis=0)",
            "accepted = tl.sum((stays & drafted).to(tl.int32), axis=0)",
        ),
        "no bonus token": ("position, token)", "position, token, mask=position < K)"),
        "ratio the wrong way round": ("draws * proposal < chances.to", "draws * chances.to(tl.float64) < proposal.to"),
        "chance of the draft forgotten": ("draws * proposal < chances", "draws < chances"),
        "impossible drafts accepted": ("draws * proposal < chances", "draws * proposal <= chances"),
        "accepted without a denominator": (
            "chances = weights_of(values, top, scale) / tl.where(total > 0, total, 1.0)\n            if",
            "chances = weights_of(values, top, scale)\n            if",
        ),
        "residual of the target alone": ("tl.maximum(chances - proposal.to(tl.float32), 0.0)", "chances"),
        "residual of the other sign": ("chances - proposal.to(tl.float32)", "proposal.to(tl.float32) - chances"),
        "rejected token drawn again": ("tl.where(ids == rejected, 0.0, chances)", "chances + 0.0"),
        "residual of the first row": (
            "    offset = request * probs_stride_b + position * probs_stride_k\n    left",
            "    offset = request * probs_stride_b\n    left",
        ),
        "one number for all positions": (
            "tl.load(steps + request) + positions",
            "tl.load(steps + request) + 0 * positions",
        ),
        "drawn with the number that rejected": ("_, _, high, low = random", "high, low, _, _ = random"),
        "seed of another request": (
            "random_words(tl.load(seeds + request), tl.load(steps + request) + position, S",
            "random_words(tl.load(seeds), tl.load(steps + request) + position, S",
        ),
        "temperature of another request": (
            "heat = tl.load(temperature + request)\n    rows",
            "heat = tl.load(temperature)\n    rows",
        ),
        "padding drafted": ("tl.where(drafts < 0, positions", "tl.where(positions >= K, positions"),
        "drafts that a filter leaves out": (
            "            if HAS_FILTER:\n                threshold",
            "            if False:\n                threshold",
        ),
        "rates of another request": ("acceptance_rates + request * rates_stride", "acceptance_rates"),
        "32-bit offsets": (
            "request = tl.program_id(0).to(tl.int64)\n    positions",
            "request = tl.program_id(0)\n    positions",
        ),
    }
    mutant_cases = [case for case in TESTS if case["num_requests"]]


def verify(draft_tokens, target_logits, form, temperature=1.0, seeds=None, steps=None, **options):
    """`verification` with numbers for parameters that all requests share."""
    require_form(form)
    drafts = torch.as_tensor(draft_tokens, dtype=torch.int64)
    count = len(drafts)

    def per_request(value, dtype):
        return value if torch.is_tensor(value) else torch.full((count,), value, dtype=dtype)

    for name, dtype in (("top_k", torch.int32), ("top_p", torch.float32), ("min_p", torch.float32)):
        if options.get(name) is not None:
            options[name] = per_request(options[name], dtype)
    seeds = torch.arange(count) if seeds is None else per_request(seeds, torch.int64)
    steps = torch.zeros(count, dtype=torch.int64) if steps is None else per_request(steps, torch.int64)
    temperature = per_request(temperature, torch.float32)
    return verification(drafts, target_logits, temperature, seeds, steps, form=form, **options)


def peaks(tokens, vocab=12):
    """Logits [B, K + 1, vocab] whose best tokens are these."""
    logits = torch.randn(*torch.tensor(tokens).shape, vocab, generator=torch.Generator().manual_seed(0))
    return logits.scatter(2, torch.tensor(tokens)[..., None], 9.0)


def rows(chances, requests, positions):
    """The logarithms of the same chances [V] in every row."""
    return chances.log().expand(requests, positions, -1).contiguous()


@pytest.mark.parametrize("form", FORMS)
def test_greedy(form):
    drafts = [[5, 6, 7], [5, 6, 7], [1, 2, 3], [1, 2, 3]]
    logits = peaks([[5, 6, 9, 1], [0, 6, 7, 4], [1, 2, 3, 4], [1, 0, 3, 4]])
    tokens, accepted = verify(drafts, logits, form, 0.0)
    assert tokens.tolist() == [[5, 6, 9, -1], [0, -1, -1, -1], [1, 2, 3, 4], [1, 0, -1, -1]]
    assert accepted.tolist() == [2, 0, 3, 1] and accepted.dtype == torch.int32
    tied = torch.zeros(1, 2, 5)  # the best of equal ones is the lowest id
    assert verify([[0]], tied, form, 0.0)[0].tolist() == [[0, 0]]
    assert verify([[1]], tied, form, 0.0)[0].tolist() == [[0, -1]]


@pytest.mark.parametrize("form", FORMS)
def test_greedy_verification_gives_what_greedy_steps_give(form):
    """A target whose logits depend on the token before: drafts that are right for a while change nothing."""
    table = torch.randn(9, 9, generator=torch.Generator().manual_seed(3))
    plain, token = [], 0
    for _ in range(4):
        token = int(table[token].argmax())
        plain.append(token)
    for right in range(4):
        drafts = [token if place < right else (token + 1) % 9 for place, token in enumerate(plain[:3])]
        logits = table[torch.tensor([0, *drafts])][None]
        tokens, accepted = verify([drafts], logits, form, 0.0)
        assert tokens[0, : right + 1].tolist() == plain[: right + 1] and accepted.tolist() == [right]


@pytest.mark.parametrize("form", FORMS)
def test_the_residual_of_the_example(form):
    """p = [.5, .3, .2] and q = [.2, .5, .3] leave [1, 0, 0]."""
    count = 12 if form == "interpret" else 300
    drafts = torch.arange(count)[:, None] % 3
    tokens, accepted = verify(drafts, rows(P, count, 2), form, draft_probs=Q.expand(count, 1, 3).contiguous())
    rejected = accepted == 0
    assert rejected.any() and (tokens[rejected, 0] == 0).all()
    u, _ = verification_uniforms(torch.arange(count), torch.zeros(count, dtype=torch.int64))
    assert torch.equal(accepted == 1, u < (P / Q)[drafts[:, 0]])
    assert accepted[drafts[:, 0] == 0].all()  # p ≥ q


def chi_squared(tokens, chances):
    """χ² of tokens against chances."""
    wanted = chances.double() * len(tokens)
    counts = torch.bincount(tokens, minlength=len(chances))
    assert (counts[wanted == 0] == 0).all()
    return float(((counts - wanted).square() / wanted)[wanted > 0].sum())


def draw_drafts(q, requests, steps):
    """Drafts [requests, steps] drawn with chances q by `sampling`, at the seeds and steps that verification takes."""
    one = torch.ones(requests)
    seeds = torch.arange(requests)
    drawn = [sampling(q.log().expand(requests, -1), one, seeds, torch.full_like(seeds, step)) for step in range(steps)]
    return torch.stack(drawn, dim=1)


def test_tokens_are_distributed_as_the_targets():
    count = 20000
    drafts = draw_drafts(Q, count, 2)
    tokens, accepted = verify(drafts, rows(P, count, 3), "cpu", draft_probs=Q.expand(count, 2, 3).contiguous())
    assert abs(float((accepted > 0).float().mean()) - 0.7) < 0.013  # Σ min(p, q), four standard errors
    for position in range(3):
        given = tokens[accepted >= position, position]
        assert chi_squared(given, P) < 18.5  # of 2 degrees, one in 10⁴
    pairs = (tokens[:, 0] * 3 + tokens[:, 1])[accepted >= 1]
    assert chi_squared(pairs, torch.outer(after_acceptance(), P).flatten()) < 37  # of 8 degrees


def after_acceptance():
    """How first tokens are distributed where the draft was accepted: as min(p, q)."""
    return torch.minimum(P, Q) / torch.minimum(P, Q).sum()


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.75}, {"min_p": 0.35}], ids=str)
def test_filters_apply_to_the_target_everywhere(limits):
    """[.4, .3, .2, .1] without its last or its last two: neither accepted nor drawn, as residual or as bonus."""
    count, p = 20000, torch.tensor([0.4, 0.3, 0.2, 0.1])
    kept = torch.where(p > 0.15, p, 0.0) if "min_p" not in limits else torch.where(p > 0.14, p, 0.0)
    kept /= kept.sum()
    q = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drafts = draw_drafts(q, count, 1)
    tokens, accepted = verify(
        drafts, rows(p, count, 2), "cpu", draft_probs=q.expand(count, 1, 4).contiguous(), **limits
    )
    assert chi_squared(tokens[:, 0], kept) < 21.2  # of 3 degrees, one in 10⁴
    assert chi_squared(tokens[accepted == 1, 1], kept) < 21.2
    assert (accepted[drafts[:, 0] == 3] == 0).all()


def test_drafts_that_were_not_drawn_leave_the_target_as_it_is():
    """An n-gram draft is accepted with its chance, and what replaces it is another token."""
    count = 20000
    tokens, accepted = verify(torch.full((count, 1), 1), rows(P, count, 2), "cpu")
    assert chi_squared(tokens[:, 0], P) < 18.5
    assert abs(float(accepted.float().mean()) - 0.3) < 0.013
    assert (tokens[accepted == 0, 0] != 1).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_draft_without_chances_is_one_drawn_for_sure(form):
    given = SUBJECT.arguments(TESTS[4])
    one_hot = torch.nn.functional.one_hot(given["draft_tokens"], given["target_logits"].shape[2]).float()
    plain, as_drawn = SUBJECT.run(given, form), SUBJECT.run(given | {"draft_probs": one_hot}, form)
    for one, other in zip(plain, as_drawn):
        assert torch.equal(one, other)


@pytest.mark.parametrize("form", FORMS)
def test_equal_chances_never_reject(form):
    """Nothing is left to draw from, and 0 / 0 is not asked for."""
    count = {"interpret": 8, "reference": 200}.get(form, 2000)
    drafts = torch.arange(count * 2).view(count, 2) % 4
    quarter = torch.full((count, 2, 4), 0.25)
    tokens, accepted = verify(drafts, torch.zeros(count, 3, 4), form, draft_probs=quarter)
    assert (accepted == 2).all() and torch.equal(tokens[:, :2], drafts)
    assert ((tokens[:, 2] >= 0) & (tokens[:, 2] < 4)).all()


@pytest.mark.parametrize("form", FORMS)
def test_impossible_drafts_and_drafts_of_chance_0(form):
    inf = math.inf
    logits = torch.tensor([[0.0, -inf, 0.0, -1.0]]).repeat(4, 1).view(2, 2, 4)
    for probs in (None, torch.tensor([[[0.5, 0.5, 0.0, 0.0]]] * 2), torch.tensor([[[1.0, 0.0, 0.0, 0.0]]] * 2)):
        tokens, accepted = verify([[1], [1]], logits, form, draft_probs=probs)
        assert accepted.tolist() == [0, 0]  # p = 0, with q above 0 or 0
        assert all(token in (0, 2, 3) for token in tokens[:, 0].tolist()) and (tokens[:, 1] == -1).all()
    never_drawn = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]] * 2)
    assert verify([[2], [3]], logits, form, draft_probs=never_drawn)[1].tolist() == [1, 1]  # q = 0 < p


def test_the_number_0_does_not_accept_what_is_impossible():
    target = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for chance in (0.0, 0.5, 1.0):
        proposal = torch.tensor([chance, 1 - chance], dtype=torch.float64)
        assert not reference.stays(0.0, target, proposal, 0, temperature=1.0)
        assert reference.stays(0.0, target, proposal, 1, temperature=1.0)


@pytest.mark.parametrize("form", FORMS)
def test_no_drafts_at_all(form):
    logits = torch.randn(3, 1, 40, generator=torch.Generator().manual_seed(0))
    tokens, accepted = verify(torch.empty(3, 0), logits, form, torch.tensor([0.0, 1.0, 0.7]))
    assert tokens.shape == (3, 1) and accepted.tolist() == [0, 0, 0]
    assert int(tokens[0, 0]) == int(logits[0, 0].argmax()) and (tokens >= 0).all()
    padded = torch.full((3, 2), -1)
    wide = torch.cat((logits, torch.full((3, 2, 40), math.nan)), dim=1)
    again, accepted = verify(padded, wide, form, torch.tensor([0.0, 1.0, 0.7]))
    assert torch.equal(again[:, :1], tokens) and (again[:, 1:] == -1).all() and accepted.tolist() == [0, 0, 0]


@pytest.mark.parametrize("form", FORMS)
def test_what_follows_the_drafts_or_a_rejection_may_hold_anything(form):
    given = SUBJECT.arguments(TESTS[10])  # ragged, greedy and not
    tokens, accepted = SUBJECT.run(given, form)
    for request, stay in enumerate(accepted.tolist()):
        given["target_logits"][request, stay + 1 :] = math.nan
        given["draft_probs"][request, stay + 1 :] = math.nan
    again, accepted_again = SUBJECT.run(given, form)
    assert torch.equal(again, tokens) and torch.equal(accepted_again, accepted)


@pytest.mark.parametrize("form", FORMS)
def test_a_request_depends_on_nothing_around_it(form):
    case = TESTS[10] | {"top_p": (0.9, 1.0)} if form != "interpret" else TESTS[10]
    given = SUBJECT.arguments(case)
    tokens, accepted = SUBJECT.run(given, form)
    order = torch.tensor([3, 1])
    moved = {name: value[order] if torch.is_tensor(value) else value for name, value in given.items()}
    moved_tokens, moved_accepted = SUBJECT.run(moved, form)
    assert torch.equal(moved_tokens, tokens[order]) and torch.equal(moved_accepted, accepted[order])


@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_several_drafts_is_several_steps_of_one(form):
    """The numbers belong to the position in the request, not to the call."""
    count = 4 if form == "interpret" else 60
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(count, 4, 6, generator=generator)
    probs = torch.randn(count, 3, 6, generator=generator).softmax(dim=-1)
    drafts = torch.randint(0, 6, (count, 3), generator=generator)
    tokens, accepted = verify(drafts, logits, form, steps=7, draft_probs=probs)
    for position in range(3):
        options = dict(steps=7 + position, draft_probs=probs[:, position : position + 1])
        one, stays = verify(
            drafts[:, position : position + 1].contiguous(),
            logits[:, position : position + 2].contiguous(),
            form,
            **options,
        )
        reached = accepted >= position
        assert torch.equal(one[reached, 0], tokens[reached, position])
        assert torch.equal(stays[reached] == 1, (accepted > position)[reached])


@pytest.mark.parametrize("form", FORMS)
def test_synthetic_acceptance(form):
    count = {"interpret": 6, "reference": 100}.get(form, 500)
    logits = torch.randn(count, 4, 20, generator=torch.Generator().manual_seed(0))
    drafts = torch.randint(0, 20, (count, 3), generator=torch.Generator().manual_seed(1))
    heat = torch.tensor([0.0, 1.0]).repeat(count // 2)
    all_stay = verify(drafts, logits, form, heat, acceptance_rates=torch.ones(count, 3))
    assert (all_stay[1] == 3).all() and torch.equal(all_stay[0][:, :3], drafts)
    none_stay = verify(drafts, logits, form, heat, acceptance_rates=torch.zeros(count, 3))
    assert (none_stay[1] == 0).all()
    for tokens, accepted in (all_stay, none_stay):  # what follows is the target's own
        last = accepted[:, None].long()
        best = logits.argmax(dim=-1).gather(1, last)[:, 0]
        assert torch.equal(tokens.gather(1, last)[:, 0][heat == 0], best[heat == 0])
    rates = torch.tensor([0.75, 0.5, 0.25]).expand(count, 3)
    _, accepted = verify(drafts, logits, form, heat, acceptance_rates=rates)
    u, _ = verification_uniforms(torch.arange(count)[:, None], torch.arange(3)[None])
    assert torch.equal(accepted, (u < rates).cumprod(dim=1).sum(dim=1).int())
    # another target, another draft, the same pattern
    assert torch.equal(verify(drafts.flip(0), -logits, form, heat, acceptance_rates=rates)[1], accepted)


def test_synthetic_lengths():
    count, rates = 20000, [0.75] * 3
    logits, drafts = torch.zeros(count, 4, 2), torch.zeros(count, 3, dtype=torch.int64)
    for wanted in (rates, acceptance.conditional_rates(rates)):
        given = torch.tensor(wanted).expand(count, 3)
        _, accepted = verify(drafts, logits, "cpu", acceptance_rates=given)
        length = 1 + float(accepted.float().mean())
        assert abs(length - acceptance.tokens_per_step(wanted)) < 0.04


def test_acceptance_rates_and_lengths():
    assert acceptance.tokens_per_step([0.75] * 3) == pytest.approx(2.734, abs=5e-4)  # read as conditional
    marginal = acceptance.conditional_rates([0.75] * 3)
    assert marginal == [0.75, 1.0, 1.0] and acceptance.tokens_per_step(marginal) == 3.25
    assert acceptance.marginal_rates([0.5, 0.5]) == [0.5, 0.25]
    assert acceptance.conditional_rates([0.5, 0.25, 0.0, 0.0]) == [0.5, 0.5, 0.0, 0.0]
    assert acceptance.tokens_per_step([]) == 1.0
    for length, drafts in ((3.39, 3), (2.49, 3), (1.0, 4), (5.0, 4), (2.734375, 3)):
        rate = acceptance.rate_for_length(length, drafts)
        assert acceptance.tokens_per_step([rate] * drafts) == pytest.approx(length, abs=1e-12)
    assert acceptance.rate_for_length(2.734375, 3) == pytest.approx(0.75)
    for call in (
        lambda: acceptance.rate_for_length(0.9, 3),
        lambda: acceptance.rate_for_length(4.1, 3),
        lambda: acceptance.conditional_rates([0.5, 0.6]),
        lambda: acceptance.marginal_rates([1.1]),
        lambda: acceptance.tokens_per_step([-0.1]),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("form", FORMS)
def test_logits_that_allow_nothing(form):
    nothing = torch.full((2, 2, 5), -math.inf)
    for heat in (0.0, 1.0):
        tokens, accepted = verify([[3], [-1]], nothing, form, heat)
        assert tokens.tolist() == [[-1, -1], [-1, -1]] and accepted.tolist() == [0, 0]


def test_layouts_and_dtypes():
    given = SUBJECT.arguments(TESTS[5])
    wanted = SUBJECT.run(given, "cpu")
    gaps = torch.zeros(4, 3, 120)[..., 7 : 7 + given["draft_probs"].shape[2]]
    gaps.copy_(given["draft_probs"])
    for form in ("cpu", "interpret"):
        require_form(form)
        found = SUBJECT.run(given | {"draft_probs": gaps}, form)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted))
    double = given | {"target_logits": given["target_logits"].double()}
    assert torch.equal(SUBJECT.run(double, "cpu")[0], SUBJECT.run(double, "reference")[0])
    require_form("interpret")
    with pytest.raises(ValueError, match="of the Triton form are"):
        SUBJECT.run(double, "interpret")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target_logits": torch.zeros(2, 5)}, ValueError, r"must be \[B, K \+ 1, V\]"),
        ({"target_logits": torch.zeros(2, 3, 5)[..., ::2]}, ValueError, "strided"),
        ({"target_logits": torch.zeros(3, 2, 5).transpose(0, 1)}, ValueError, "lie evenly"),
        ({"draft_tokens": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, "draft_tokens must be"),
        ({"draft_tokens": torch.zeros(2, 2, dtype=torch.int32)}, ValueError, "draft_tokens must be"),
        ({"draft_tokens": torch.tensor([[0, 5], [0, 0]])}, IndexError, "token 5 in a vocabulary of 5"),
        ({"draft_probs": torch.zeros(2, 2, 4)}, ValueError, "draft_probs must be"),
        ({"draft_probs": torch.zeros(2, 2, 10)[..., ::2]}, ValueError, "draft_probs is strided"),
        ({"acceptance_rates": torch.zeros(2, 3)}, ValueError, "acceptance_rates must be"),
        ({"acceptance_rates": torch.zeros(2, 2), "draft_probs": torch.zeros(2, 2, 5)}, ValueError, "no meaning"),
        ({"temperature": torch.tensor([0.0, -1.0])}, ValueError, "finite and 0 or more"),
        ({"seeds": torch.zeros(3, dtype=torch.int64)}, ValueError, "seeds must be"),
        ({"form": "cuda"}, ValueError, "does not exist"),
    ],
)
def test_refusals(change, error, message):
    given = dict(
        draft_tokens=torch.zeros(2, 2, dtype=torch.int64),
        target_logits=torch.zeros(2, 3, 5),
        temperature=torch.ones(2),
        seeds=torch.zeros(2, dtype=torch.int64),
        steps=torch.zeros(2, dtype=torch.int64),
    )
    with pytest.raises(error, match=message):
        verification(**(given | change))


@pytest.mark.parametrize("case", TESTS, ids=str)
def test_every_request_of_the_cases_is_certain_and_obeys(case):
    given = SUBJECT.arguments(case)
    tokens, accepted = SUBJECT.expected(**given)
    assert tokens.where.all() and accepted.where.all()
    drafts = case.get("drafts", (case["num_drafts"],))
    for request, stay in enumerate(accepted.value.tolist()):
        assert stay == min(case["accepted"][request % len(case["accepted"])], drafts[request % len(drafts)])


@pytest.mark.parametrize("case", TESTS, ids=str)
def test_the_baseline_agrees(case):
    finding = check_case(SUBJECT, case, "eager", variant=SUBJECT.baselines["eager"])
    assert finding, finding


def test_what_verification_reads():
    """Every row once, a rejected one again with the draft's chances; greedy and synthetic ones only once."""
    once = 64 * 4 * 131072 * 2
    greedy, synthetic = (cost(**BENCH[f"{name}-64x4x131072"]) for name in ("greedy", "synthetic"))
    assert once < greedy.load_bytes < 1.02 * once and once < synthetic.load_bytes < 1.02 * once
    accepted = BENCH["sampled-64x4x131072"]["accepted"]
    rejections = sum(stay < 3 for stay in accepted) * 64 // len(accepted)
    sampled = cost(**BENCH["sampled-64x4x131072"]).load_bytes
    assert sampled == pytest.approx(once + rejections * 131072 * (2 + 4), rel=0.02)
