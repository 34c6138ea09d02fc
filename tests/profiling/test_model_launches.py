"""A step of the Llama in its Triton form: interpreted it gives the CPU's numbers, and it compiles for a GPU."""

from contextlib import nullcontext

import pytest
import torch

from wholecurve.engine.graphs import StaticBatch
from wholecurve.models import llama
from wholecurve.models.batch import ForwardBatch, GroupBatch
from wholecurve.profiling.compile import compile_launch
from wholecurve.profiling.model_launches import distinct_launches, forced_form, recorded_launches, step_launches
from wholecurve.studies.steps import decode
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.context import FilledContext
from wholecurve.studies.steps.decode import DecodeStep
from wholecurve.studies.steps.dummy import dummy_config, dummy_model

KERNELS = [
    "decode_attention",
    "plan_decode_attention",
    "plan_prefill_attention",
    "prefill_attention",
    "rms_norm",
    "rope",
    "store_kv",
    "swiglu",
]
BLOCK = 4


def mixed_batch(lengths, queries, num_decodes, seed=0):
    """Sequences over blocks of their own: lengths are contexts before the step, queries new tokens of each."""
    generator = torch.Generator().manual_seed(seed)
    ends = [length + new for length, new in zip(lengths, queries, strict=True)]
    width, first, table, slots, positions = max(-(-end // BLOCK) for end in ends), 0, [], [], []
    for length, end in zip(lengths, ends, strict=True):
        used = -(-end // BLOCK)
        table.append([*range(first, first + used), *[-1] * (width - used)])
        positions += range(length, end)
        slots += range(first * BLOCK + length, first * BLOCK + end)
        first += used
    cu_q = torch.tensor([0, *queries]).cumsum(0)
    return ForwardBatch(
        token_ids=torch.randint(0, 96, (sum(queries),), generator=generator),
        positions=torch.tensor(positions),
        logits_rows=torch.arange(sum(queries)),
        cu_q=cu_q,
        context_lens=torch.tensor(ends),
        groups=[GroupBatch(torch.tensor(table), torch.tensor(slots))],
        num_decodes=num_decodes,
        decode_queries=queries[0] if num_decodes else 1,
        max_q=max(queries),
    )


def filled(model, num_blocks):
    (spec,) = model.cache_specs
    cache, generator = spec.allocate(num_blocks, BLOCK, model.dtype, model.device), torch.Generator().manual_seed(3)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return [cache]


@pytest.mark.parametrize(
    ("lengths", "queries", "num_decodes"),
    [((5, 0, 33), (1, 1, 1), 3), ((7, 12), (3, 3), 2), ((9, 0), (6, 11), 0), ((4, 17, 8), (2, 2, 9), 2)],
    ids=["decode", "drafts", "chunks", "both"],
)
def test_interpreted_triton_kernels_give_the_logits_of_the_cpu_forms(lengths, queries, num_decodes):
    model = dummy_model(dummy_config("tiny"), torch.float32, "cpu")
    batch, other = (mixed_batch(lengths, queries, num_decodes) for _ in range(2))
    with torch.inference_mode():
        expected = model(batch, filled(model, 32))
        with forced_form(llama, "interpret"):
            found = model(other, filled(model, 32))
    assert "prefill" not in other.plans or other.plans["prefill"][-1] is None
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_an_interpreted_step_of_a_study_verifies_as_the_cpu_forms_do():
    """Model, verification and feedback of the tokens over three steps, all in the kernels that a GPU runs."""
    found = []
    for form in (None, "interpret"):
        model = dummy_model(dummy_config("tiny"), torch.float32, "cpu")
        filled = FilledContext(model, 2, 20, 4, contexts=2, block_size=BLOCK)
        step = DecodeStep(model, filled, 2, Acceptance(2, 0.6, "conditional"))
        with forced_form(llama, form) if form else nullcontext(), forced_form(decode, form) if form else nullcontext():
            found.append([step.work()[1].tolist() for _ in range(3)] + [step.outcome()])
    assert found[0] == found[1]


def test_every_kernel_of_the_model_is_forced_and_then_set_free():
    before = {name: getattr(llama, name) for name in KERNELS}
    with forced_form(llama, "reference") as names:
        assert names == KERNELS
        assert all(getattr(llama, name) is not before[name] for name in KERNELS)
    assert all(getattr(llama, name) is before[name] for name in KERNELS)


def test_launches_that_are_noted_do_not_run():
    from wholecurve.kernels.rms_norm import rms_norm

    x, weight = torch.ones(3, 16), torch.ones(16)
    with recorded_launches() as found:
        rms_norm(x, weight, 1e-5, form="interpret")
    assert [launch.name for launch in found] == ["rms_norm_kernel"]
    assert torch.allclose(rms_norm(x, weight, 1e-5, form="interpret"), torch.ones(3, 16), atol=1e-3)
    assert len(found) == 1


def meta_step(config, queries, sequences=8, width=512, dtype=torch.bfloat16):
    """(model, decode batch, caches) on the meta device."""
    model = dummy_model(config, dtype, "meta")
    caches = [spec.allocate(sequences * width, 16, dtype, model.device) for spec in model.cache_specs]
    return model, StaticBatch(sequences, queries, (width,), torch.device("meta")).forward_batch(), caches


@pytest.mark.parametrize("queries", [1, 4])
def test_a_decode_step_reads_no_value_on_the_host_and_launches_seven_kernels_a_layer(queries):
    config = dummy_config("llama-8b")
    launches = step_launches(llama, *meta_step(config, queries), "sm_90")
    assert len(launches) == 7 * config.num_layers + 1
    assert {launch.options["QUERIES"] for launch in launches if launch.name == "attend_split_kernel"} == {queries}
    assert all(tensor.device.type == "meta" for launch in launches for tensor in launch.tensors)


def test_a_step_that_reads_a_value_is_found():
    model, batch, caches = meta_step(dummy_config("tiny"), 1)

    def reads(batch, caches):
        return model(batch, caches)[: int(batch.context_lens.max())]

    with pytest.raises(RuntimeError, match="meta"):
        step_launches(llama, reads, batch, caches, "sm_90")


@pytest.mark.parametrize("queries", [1, 4])
def test_the_decode_step_of_an_8b_model_compiles_for_sm_90(queries):
    launches = distinct_launches(step_launches(llama, *meta_step(dummy_config("llama-8b"), queries), "sm_90"))
    assert [launch.name for launch in launches] == [
        "rms_norm_kernel",
        "rope_kernel",
        "store_kv_kernel",
        "attend_split_kernel",
        "merge_splits_kernel",
        "rms_norm_kernel",
        "gated_activation_kernel",
    ]
    for launch in launches:
        assert "cubin" in compile_launch(launch, "sm_90").asm
