"""Agreement: right answers pass, a wrong model does not."""

import pytest
import torch

from wholecurve.engine import Engine, SamplingParams
from wholecurve.errors import UserError
from wholecurve.models.folder import read_folder
from wholecurve.models.llama import build_llama
from wholecurve.studies.agreement import agreement_requests, require_agreement, score_greedy, summarise
from wholecurve.studies.plan import AgreementPlan


def answers(folder, change=lambda weights: weights, tokens=12):
    config, weights = read_folder(folder)
    engine = Engine(build_llama(config, change(weights), torch.float32))
    requests = agreement_requests(folder, tokens)
    texts = engine.generate([r.prompt_ids for r in requests], SamplingParams(max_new_tokens=tokens, ignore_eos=True))
    return [{"prompt_ids": r.prompt_ids, "tokens": text} for r, text in zip(requests, texts)]


def test_same_weights_agree_exactly(tiny_folder):
    summary = summarise(score_greedy(str(tiny_folder), answers(tiny_folder)))
    assert summary["best_share"] == 1 and summary["max_gap"] == 0 and summary["tokens"] == 8 * 12
    require_agreement("ours", summary, AgreementPlan())


def test_a_single_wrong_matrix_is_found(tiny_folder):
    def swap(weights):
        name = "model.layers.0.self_attn.k_proj.weight"
        return {**weights, name: weights[name].flip(0)}

    summary = summarise(score_greedy(str(tiny_folder), answers(tiny_folder, swap)))
    with pytest.raises(UserError, match=r"contender theirs does not agree .* nothing was timed"):
        require_agreement("theirs", summary, AgreementPlan())


def test_gap_is_measured_in_the_context_of_the_tokens_before(tiny_folder):
    sequences = answers(tiny_folder)
    changed = [*sequences[0]["tokens"]]
    changed[3] = (changed[3] + 1) % 256
    gaps = score_greedy(str(tiny_folder), [{**sequences[0], "tokens": changed}])[0]
    assert gaps[:3] == [0, 0, 0] and gaps[3] > 0


@pytest.mark.parametrize(("best", "gap", "passes"), [(0.9, 0.5, True), (0.89, 0.1, False), (1.0, 0.51, False)])
def test_bounds_of_the_plan_decide(best, gap, passes):
    summary = {"tokens": 100, "best_share": best, "max_gap": gap, "mean_gap": 0.0}
    if passes:
        require_agreement("c", summary, AgreementPlan())
    else:
        with pytest.raises(UserError):
            require_agreement("c", summary, AgreementPlan())
