"""Filled caches and the steps over them: what is attended to, what is counted, and what gives no number."""

import pytest
import torch

from wholecurve.errors import UserError
from wholecurve.models.batch import ForwardBatch, GroupBatch
from wholecurve.studies.steps import cell as cells
from wholecurve.studies.steps.acceptance import STEP_STRIDE, Acceptance
from wholecurve.studies.steps.cell import Effort, measure_step
from wholecurve.studies.steps.clock import StepTimes, time_steps
from wholecurve.studies.steps.context import FilledContext, WrongCache, blocks_needed
from wholecurve.studies.steps.decode import DecodeStep
from wholecurve.studies.steps.dummy import dummy_config, dummy_model
from wholecurve.studies.steps.prefill import PrefillStep, chunks_of
from wholecurve.studies.steps.work import StepWork, bound_fields

NO_DRAFTS = Acceptance(0, 0.0, "conditional")
DRAFTS = Acceptance(3, 0.6, "conditional")
QUICK = Effort(samples=3, seconds=0.01)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return dummy_model(dummy_config("tiny"), torch.float32, "cpu")


def filled(model, requests=4, cached=40, new=8, contexts=None, **options):
    return FilledContext(model, requests, cached, new, contexts=contexts or requests, block_size=8, **options)


def logits(step):
    step.restart()
    return step.work()[0].clone()


@pytest.mark.parametrize("position", [0, 17, 39])
def test_changing_one_cached_key_changes_the_logits_of_its_request_alone(model, position):
    context = filled(model)
    step = DecodeStep(model, context, 4, NO_DRAFTS)
    before = logits(step)
    slot = context.slots(torch.tensor([2]), torch.tensor([position])).item()
    context.keys[0].flatten(0, 1)[slot] += 3.0
    changed = (logits(step) != before).any(dim=1)
    assert changed.tolist() == [False, False, True, False]


def test_changing_what_is_not_cached_changes_nothing(model):
    context = filled(model)
    step = DecodeStep(model, context, 4, NO_DRAFTS)
    before = logits(step)
    own = context.slots(torch.arange(4), torch.arange(41)).flatten()
    others = torch.ones(len(context.is_filled), dtype=torch.bool).index_fill(0, own, False)
    for tensor in (*context.keys, *context.values):
        tensor.flatten(0, 1)[others] = 7.0
    assert torch.equal(logits(step), before)


def test_a_step_over_the_cache_is_the_forward_pass_over_all_tokens(model):
    """Real keys and values instead of random ones: the step continues what a prefill computed."""
    context = filled(model, requests=1, cached=40, new=60)
    prompt = torch.randint(0, 96, (44,))
    group = context.group(1, [44])
    group.slots = context.slots(torch.tensor([0]), torch.arange(44)).flatten()

    def forward(tokens, start):
        count = len(tokens) - start
        new = GroupBatch(group.block_table, group.slots[start : len(tokens)])
        batch = ForwardBatch(
            tokens[start:], torch.arange(start, len(tokens)), torch.arange(count), torch.tensor([0, count]),
            torch.tensor([len(tokens)]), [new], 0, max_q=count,
        )  # fmt: skip
        return model(batch, context.caches)

    with torch.inference_mode():
        expected = forward(prompt, 0)[40:]
        forward(prompt[:40], 0)
    step = DecodeStep(model, context, 1, DRAFTS)
    step.first_tokens.copy_(prompt[40:])
    torch.testing.assert_close(logits(step), expected)


def test_requests_have_contexts_of_their_own_or_share_some(model):
    own = filled(model)
    assert own.num_blocks == blocks_needed(4, 40, 8, 4, 8) == 4 * 6 == own.table.unique().numel()
    shared = filled(model, contexts=2)
    assert shared.num_blocks == 2 * 5 + 4 * 1 == shared.table.unique().numel()
    assert torch.equal(shared.table[0, :5], shared.table[2, :5])
    assert not torch.equal(shared.table[0, :5], shared.table[1, :5])
    ends = shared.table[:, 5:]
    assert ends.unique().numel() == 4
    one = logits(DecodeStep(model, shared, 4, NO_DRAFTS, seed=1))
    assert len(one.unique(dim=0)) == 4  # other tokens, same context


def test_a_context_that_ends_inside_a_block_keeps_its_last_tokens_apart(model):
    shared = filled(model, cached=43, contexts=1)
    assert shared.num_blocks == 5 + 4 * 2 and shared.is_filled.sum() == 40 + 4 * 3
    step = DecodeStep(model, shared, 4, DRAFTS)
    assert shared.require_cached(step.batch()) == 43 and measure_step(step, QUICK)["cached_tokens"] == 43


def test_caches_hold_finite_numbers_that_differ_by_layer_and_nan_where_nothing_is_cached(model):
    context = filled(model)
    tensors = [*context.keys, *context.values]
    for tensor in tensors:
        by_slot = tensor.flatten(0, 1).flatten(1)
        assert by_slot[context.is_filled].isfinite().all() and by_slot[~context.is_filled].isnan().all()
        assert 0.9 < by_slot[context.is_filled].std() < 1.1
    assert len({tensor.nan_to_num().sum().item() for tensor in tensors}) == len(tensors)
    again = filled(model)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, [*again.keys, *again.values]))


def test_a_decode_step_verifies_one_row_per_draft_and_one_more(model):
    step = DecodeStep(model, filled(model), 3, DRAFTS)
    batch = step.batch()
    assert (batch.num_decodes, batch.decode_queries, len(batch.token_ids)) == (3, 4, 12)
    assert batch.positions.tolist() == [40, 41, 42, 43] * 3 and batch.context_lens.tolist() == [44] * 3
    assert step.work()[0].shape == (12, 96)


def test_drafts_that_stay_follow_the_pattern_and_the_added_token_is_the_targets(model):
    step = DecodeStep(model, filled(model), 4, DRAFTS, seed=3)
    for number in range(6):
        given, (rows, tokens) = step.token_ids.clone().view(4, 4), step.work()
        accepted = DRAFTS.accepted(step.seeds, number)
        best = rows.view(4, 4, -1).argmax(-1)
        for request, count in enumerate(accepted.tolist()):
            assert tokens[request, :count].tolist() == given[request, 1 : 1 + count].tolist()
            assert tokens[request, count] == best[request, count]
            assert step.token_ids.view(4, 4)[request].tolist() == [tokens[request, count], *given[request, 1:]]
    assert step.outcome()["tokens_per_step_measured"] == 1 + step.num_accepted.sum().item() / 24


def test_contenders_of_any_form_accept_the_same(model):
    found = []
    for contender in (model, dummy_model(dummy_config("tiny"), torch.bfloat16, "cpu", seed=9)):
        step = DecodeStep(contender, filled(contender, cached=64), 4, DRAFTS, seed=3)
        for _ in range(5):
            step.work()
        found.append(step.num_accepted.tolist())
    assert found[0] == found[1] and len(set(found[0])) > 1


def test_another_pattern_than_that_of_the_numbers_gives_no_number(model):
    step = DecodeStep(model, filled(model), 4, DRAFTS)
    step.rates += 0.3
    with pytest.raises(WrongCache, match="accepted other drafts over 3 steps"):
        measure_step(step, QUICK)


def test_restart_brings_the_first_step_back(model):
    step = DecodeStep(model, filled(model), 4, DRAFTS)
    first = logits(step)
    assert not torch.equal(step.work()[0], first)
    assert torch.equal(logits(step), first) and int(step.numbers[0]) == STEP_STRIDE


def test_cached_tokens_are_counted_from_the_batch(model):
    context = filled(model)
    for step in (DecodeStep(model, context, 2, DRAFTS), PrefillStep(model, context, [8, 5])):
        assert context.require_cached(step.batch()) == 40
        assert measure_step(step, QUICK)["cached_tokens"] == 40


def moved(batch, **changes):
    for name, change in changes.items():
        setattr(batch, name, change(getattr(batch, name)))
    return batch


@pytest.mark.parametrize(
    "changes",
    [
        {"context_lens": lambda lengths: lengths - 1},  # one cached token is not attended to
        {"context_lens": lambda lengths: lengths + 1},  # one more than was filled
        {"positions": lambda positions: positions - 1},
        {"context_lens": lambda lengths: lengths - 1, "positions": lambda positions: positions - 1},  # all 39 alike
        {"context_lens": lambda lengths: lengths - torch.tensor([0, 8])},  # of one sequence alone
    ],
)
def test_a_batch_that_does_not_stand_on_the_cached_tokens_is_refused(model, changes):
    context = filled(model)
    for step in (DecodeStep(model, context, 2, NO_DRAFTS), PrefillStep(model, context, [5, 5])):
        with pytest.raises(WrongCache, match="cached"):
            context.require_cached(moved(step.batch(), **changes))


def test_a_batch_with_foreign_blocks_or_that_overwrites_its_context_is_refused(model):
    context = filled(model)
    step = DecodeStep(model, context, 2, NO_DRAFTS)
    batch = step.batch()
    batch.groups = [GroupBatch(step.group.block_table.flip(1), step.group.slots)]
    with pytest.raises(WrongCache, match="tokens before the new ones are cached"):
        context.require_cached(batch)
    batch.groups = [GroupBatch(step.group.block_table, context.slots(torch.arange(2), torch.tensor([3])).flatten())]
    with pytest.raises(WrongCache, match=r"\[39\] of 40"):
        context.require_cached(batch)


def test_a_model_that_does_not_read_its_cache_gives_no_number(model):
    class Forgetful:
        config, dtype, device, cache_specs = model.config, model.dtype, model.device, model.cache_specs

        def __call__(self, batch, caches):
            return model.embedding[batch.token_ids][batch.logits_rows] @ model.head.T

    context = filled(Forgetful())
    for step in (DecodeStep(Forgetful(), context, 3, NO_DRAFTS), PrefillStep(Forgetful(), context, [8, 8, 3])):
        with pytest.raises(WrongCache, match="3 sequences give the same logits after a cached value was changed"):
            measure_step(step, QUICK)


def test_a_step_that_reads_what_nobody_wrote_gives_no_number(model):
    context = filled(model)
    context.table[1, 2] = context.table[1, 5]  # a block of new tokens where cached ones should lie
    step = DecodeStep(model, context, 3, NO_DRAFTS)
    step.filled.require_cached = lambda batch: 40
    with pytest.raises(WrongCache, match="not finite"):
        measure_step(step, QUICK)


def test_a_step_that_spoils_its_context_is_found_after_the_timed_steps(model):
    context = filled(model)
    step = DecodeStep(model, context, 2, NO_DRAFTS)
    plain, calls = step.work, []

    def spoils():
        calls.append(1)
        if len(calls) == 5:
            context.values[0].nan_to_num_().mul_(-3.0)
        return plain()

    step.work = spoils
    with pytest.raises(WrongCache, match="after the timed steps, the first step gives other logits"):
        measure_step(step, QUICK)


def test_the_probe_leaves_the_cache_as_it_was(model):
    for contexts in (4, 1):
        context = filled(model, contexts=contexts)
        before = [tensor.clone() for tensor in context.values]
        with context.changed_values(3):
            changed = [(a != b)[~b.isnan()].any().item() for a, b in zip(context.values, before, strict=True)]
        assert changed == [True, True]
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(context.values, before, strict=True))


def test_a_graph_that_gives_other_logits_gives_no_number(model, monkeypatch):
    class Stale:
        def __init__(self, device, work):
            self.outputs = work()

        def replay(self):
            return self.outputs

    step = DecodeStep(model, filled(model), 2, DRAFTS)
    monkeypatch.setattr(cells, "replay_for", Stale)
    plain, calls = step.work, []

    def drifting():
        calls.append(1)
        rows, tokens = plain()
        return (rows + 5.0 if len(calls) == 3 else rows), tokens

    step.work = drifting
    with pytest.raises(WrongCache, match="replayed in a graph, the first step gives other logits"):
        measure_step(step, Effort(3, 0.01, graph=True))


def test_a_replayed_step_gives_the_numbers_of_an_eager_one(model, monkeypatch):
    """Without a GPU the replay calls the step over the same static tensors."""
    replays, plain = [], cells.replay_for
    monkeypatch.setattr(cells, "replay_for", lambda *given: replays.append(plain(*given)) or replays[-1])
    step = DecodeStep(model, filled(model), 4, DRAFTS)
    fields = measure_step(step, Effort(samples=4, seconds=0.01, graph=True))
    eager = measure_step(step, Effort(samples=4, seconds=0.01))
    assert fields["tokens_per_step_measured"] == eager["tokens_per_step_measured"] and fields["n_samples"] <= 4
    assert len(replays) == 1


def test_chunks():
    assert chunks_of(8, 4) == [4, 4] and chunks_of(9, 4) == [4, 4, 1] and chunks_of(3, 4) == [3]


def test_a_prefill_step_gives_one_row_of_logits_per_sequence(model):
    step = PrefillStep(model, filled(model), [8, 8, 3])
    rows, tokens = step.work()
    assert rows.shape == (3, 96) and torch.equal(tokens, rows.argmax(-1))
    batch = step.batch()
    assert batch.logits_rows.tolist() == [7, 15, 18]  # the last new token of each
    assert batch.cu_q.tolist() == [0, 8, 16, 19] and batch.num_decodes == 0 and batch.max_q == 8


def test_a_prefill_from_an_empty_cache_has_nothing_to_probe(model):
    assert measure_step(PrefillStep(model, filled(model, cached=0), [8, 2]), QUICK)["cached_tokens"] == 0


def test_samples_are_single_steps_and_at_least_three():
    calls = []
    times = time_steps(lambda: calls.append(1), torch.device("cpu"), samples=10, seconds=1e-9)
    assert len(calls) == len(times.samples_ms) == 3
    assert len(time_steps(lambda: None, torch.device("cpu"), samples=10, seconds=60).samples_ms) == 10
    assert len(time_steps(lambda: None, torch.device("cpu"), samples=2, seconds=60).samples_ms) == 2


def test_percentiles_of_times():
    times = StepTimes([4.0, 1.0, 3.0, 2.0, 5.0], 2, "")
    assert (times.median_ms, times.percentile_ms(0.1), times.percentile_ms(0.9)) == (3.0, 1.4, pytest.approx(4.6))


def test_more_than_a_ceiling_is_an_error_that_is_said():
    from wholecurve.models.bounds import Ceilings

    work = StepWork(read_bytes=1000, flops=10.0)
    fields = bound_fields(work, Ceilings(1e6, 1e6), median_ms=2.0)
    assert (fields["bound_ms"], fields["attained"]) == (pytest.approx(1.0), pytest.approx(0.5)) and "note" not in fields
    assert fields["bound_by"] == "memory, measured ceiling"
    assert "error: 200% of the measured memory ceiling" in bound_fields(work, Ceilings(1e6, 1e6), 0.5)["note"]
    assert bound_fields(work, None, 0.5)["bound_ms"] is None


def test_only_a_cache_of_keys_and_values_can_be_filled(model):
    class Other:
        config, dtype, device = model.config, model.dtype, model.device

        class Spec:
            kind, window = "state", None

            @staticmethod
            def allocate(*_):
                return torch.zeros(1)

        cache_specs = (Spec(),)

    with pytest.raises(UserError, match="one cache group of kind 'full'; this model has state"):
        filled(Other())
    Other.Spec.kind = "full"
    with pytest.raises(UserError, match="a Tensor cannot be filled"):
        filled(Other())
