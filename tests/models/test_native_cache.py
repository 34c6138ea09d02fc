"""The native cache: what it takes, what it refuses, and that nothing left in it reaches an answer."""

import pytest
import torch
from native_models import DTYPES, SHAPES, PagedSequences, native, needs_native, streams, tiny

from wholecurve.errors import UserError
from wholecurve.models.config import ModelConfig
from wholecurve.models.native import build_native_llama

pytestmark = needs_native


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_entry_bytes_are_the_allocated_bytes_of_a_token(shape, dtype, block_size):
    (spec,) = native(shape, dtype).cache_specs
    cache = spec.allocate(7, block_size, dtype, "cpu")
    tensors = cache.keys + cache.values
    assert sum(tensor.nbytes for tensor in tensors) == 7 * block_size * spec.entry_bytes(dtype)
    assert all(tensor.dtype == dtype and len(tensor) == 7 and not tensor.any() for tensor in tensors)
    assert (spec.kind, spec.window) == ("full", None)


@pytest.mark.parametrize("block_size", [-16, 0, 1, 8, 17, 48, 128])
def test_other_block_sizes_are_refused(block_size):
    (spec,) = native("narrow", torch.float32).cache_specs
    with pytest.raises(UserError, match=f"^block_size is {block_size}; the native CPU form takes 16, 32, 64$"):
        spec.allocate(4, block_size, torch.float32, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_copied_block_is_as_good_as_the_first(dtype):
    (spec,) = native("narrow", dtype).cache_specs
    tokens = streams("narrow")[0]
    paged = PagedSequences(native("narrow", dtype), block_size=32)
    paged.logits([(0, 0, tokens[:60])])
    before = [tensor.clone() for tensor in paged.cache.keys + paged.cache.values]
    for source, target in zip(paged.table[0, :2].tolist(), paged.table[2, :2].tolist()):
        spec.copy_block(paged.cache, source, target)
    untouched = torch.ones(len(before[0]), dtype=torch.bool)
    untouched[paged.table[2, :2]] = False
    for tensor, old in zip(paged.cache.keys + paged.cache.values, before, strict=True):
        assert torch.equal(tensor[untouched].nan_to_num(9), old[untouched].nan_to_num(9))
    first, second = paged.logits([(0, 60, tokens[60:70]), (2, 60, tokens[60:70])]).chunk(2)
    assert torch.equal(first, second)


@pytest.mark.parametrize("fill", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_block_held_before_reaches_no_answer(shape, dtype, fill):
    """A context of every length to a block and beyond, by a chunk and then by one token; `logits` wants finite ones."""
    model, tokens = native(shape, dtype), streams(shape)[3]
    clean = PagedSequences(model, fill=0.0).logits([(0, 0, tokens[:40])])
    for length in range(1, 36):
        dirty = PagedSequences(model, fill=fill, seed=length)
        assert torch.equal(dirty.logits([(0, 0, tokens[:length])]), clean[:length])
        assert torch.equal(dirty.logits([(0, length, tokens[length : length + 1])])[0], clean[length])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [3, 100])
def test_entries_of_a_table_beyond_the_context_are_not_read(dtype, count):
    """Whatever stands there: a block so far off ends the process when it is touched."""
    tokens = streams("narrow")[0]
    for start in (0, 16, 63, 64, 65):
        answers = []
        for beyond in (-1, 10**12):
            paged = PagedSequences(native("narrow", dtype))
            if start:
                paged.logits([(0, 0, tokens[:start])])
            batch = paged.batch([(0, start, tokens[start : start + count])])
            table = batch.groups[0].block_table
            table[table == -1] = beyond
            assert (table == beyond).any()
            answers.append(native("narrow", dtype)(batch, [paged.cache]))
        assert torch.equal(*answers) and answers[0].isfinite().all()


@pytest.mark.parametrize("count", [3, 100])
def test_tensors_of_another_type_or_with_gaps_are_refused(count):
    paged = PagedSequences(native("narrow", torch.float32))
    chunk = [(0, 0, streams("narrow")[0][:count])]
    for name in ("token_ids", "positions", "logits_rows", "cu_q", "context_lens"):
        for spoil in (torch.Tensor.int, lambda tensor: tensor.repeat_interleave(2)[::2]):
            batch = paged.batch(chunk)
            tensor = spoil(getattr(batch, name))
            if tensor.is_contiguous() and tensor.dtype == torch.int64:
                continue  # a single number has no gaps
            setattr(batch, name, tensor)
            with pytest.raises(ValueError, match="the tensors of a batch must be int64 and contiguous"):
                paged.model(batch, [paged.cache])
    batch = paged.batch([*chunk, (1, 0, [5])])
    batch.groups[0].block_table = batch.groups[0].block_table.T.contiguous().T
    with pytest.raises(ValueError, match="int64 and contiguous"):
        paged.model(batch, [paged.cache])


@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize("rows", [[1, 0], [0, 0], [0, 2, 1], [-1, 0], [0, 100], [100]], ids=str)
def test_rows_of_logits_that_do_not_ascend_are_refused(rows, count):
    paged = PagedSequences(native("narrow", torch.float32))
    batch = paged.batch([(0, 0, streams("narrow")[0][:count])], rows)
    with pytest.raises(
        ValueError, match="logits_rows of a batch must ascend, from 0 on and below the number of tokens"
    ):
        paged.model(batch, [paged.cache])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_matrices_lie_side_by_side_in_their_memory(shape, dtype):
    """None is cut short by its end: what is packed into it would go beyond."""
    config, weights = tiny(shape)
    model = native(shape, dtype)
    begin, end, ends = model._memory.data_ptr(), model._memory.data_ptr() + model._memory.nbytes, []
    for tensor in model._tensors:
        if tensor is not None and begin <= tensor.data_ptr() < end:
            assert tensor.data_ptr() % 64 == 0 and (not ends or tensor.data_ptr() == ends[-1])
            ends.append(tensor.data_ptr() + tensor.nbytes)
    assert len(ends) == 1 + 4 * config.num_layers and ends[-1] <= end
    matrices = sum(w.numel() for name, w in weights.items() if w.dim() == 2 and "embed" not in name)
    if config.tie_word_embeddings:
        matrices += weights["model.embed_tokens.weight"].numel()
    packed = sum(t.numel() for t in model._tensors if t is not None and begin <= t.data_ptr() < end)
    assert matrices <= packed <= 2 * matrices


def test_padding_is_a_small_part_of_smollm2():
    """Zeros in its sizes: 269 MB of bfloat16 may not become more than 2 % larger."""
    config = ModelConfig(49152, 576, 1536, 30, 9, 3, 64, 1e-5, 1e5, 8192, True)
    hidden, zeros = 576, torch.zeros(1, dtype=torch.bfloat16)

    def empty(*shape):
        return zeros.expand(*shape)

    weights = {"model.embed_tokens.weight": empty(49152, hidden), "model.norm.weight": empty(hidden)}
    for layer in range(30):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": empty(hidden),
            f"{prefix}.post_attention_layernorm.weight": empty(hidden),
            f"{prefix}.self_attn.q_proj.weight": empty(576, hidden),
            f"{prefix}.self_attn.k_proj.weight": empty(192, hidden),
            f"{prefix}.self_attn.v_proj.weight": empty(192, hidden),
            f"{prefix}.self_attn.o_proj.weight": empty(hidden, 576),
            f"{prefix}.mlp.gate_proj.weight": empty(1536, hidden),
            f"{prefix}.mlp.up_proj.weight": empty(1536, hidden),
            f"{prefix}.mlp.down_proj.weight": empty(hidden, 1536),
        }
    model = build_native_llama(config, weights, torch.bfloat16, 1)
    assert config.num_parameters == 134_515_008
    assert 2 * config.num_parameters < model.weight_bytes < 1.02 * 2 * config.num_parameters


@pytest.mark.parametrize("shape", SHAPES)
def test_weight_bytes_count_what_lies_outside_the_packed_memory(shape):
    config, _ = tiny(shape)
    model = native(shape, torch.bfloat16)
    other = 0 if config.tie_word_embeddings else 2 * config.vocab_size * config.hidden_size
    vectors = 4 * 32 * -(-config.hidden_size // 32) * (2 * config.num_layers + 1)  # norms in float32, padded
    assert model.weight_bytes == model._memory.nbytes + other + vectors


def test_an_empty_batch_is_a_step():
    paged = PagedSequences(native("narrow", torch.float32, 2))
    batch = paged.batch([])
    logits = paged.model(batch, [paged.cache])
    assert logits.shape == (0, tiny("narrow")[0].vocab_size) and batch.argmax.shape == (0,)
