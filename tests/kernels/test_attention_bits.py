"""On the CPU a query's attention depends on its position alone: bit for bit, however its prompt is cut, also in decode.

This is what makes greedy tokens identical across batching, chunking and recomputation. It rests on how torch's products
order their sums, which these tests pin for processors with AVX-512 BF16.
"""

from itertools import pairwise

import pytest
import torch

from wholecurve.kernels.decode_attention import decode_attention
from wholecurve.kernels.prefill_attention import prefill_attention
from wholecurve.models.linear import linear

pytestmark = pytest.mark.bit_exact

HEADS = [(9, 3), (4, 4), (7, 1), (4, 2), (16, 2)]
CONTEXT, BLOCK = 600, 16


def paged(dtype, heads, kv_heads, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    pages = -(-CONTEXT // BLOCK) + 3
    table = torch.randperm(pages, generator=generator)[None]
    return draw(CONTEXT, heads, 64) * 1.5, draw(pages, BLOCK, kv_heads, 64), draw(pages, BLOCK, kv_heads, 64), table


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_of_any_size_give_the_bits_of_the_whole(dtype, heads, kv_heads):
    q, k, v, table = paged(dtype, heads, kv_heads)
    whole = prefill_attention(q, k, v, table, [CONTEXT], [0, CONTEXT], 0.125)
    for step in (1, 7, 63, 64, 65, 250):
        cuts = [*range(0, CONTEXT, step), CONTEXT]
        parts = [prefill_attention(q[a:b], k, v, table, [b], [0, b - a], 0.125) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole), f"chunks of {step}"


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_gives_the_bits_of_prefill(dtype, heads, kv_heads):
    q, k, v, table = paged(dtype, heads, kv_heads)
    whole = prefill_attention(q, k, v, table, [CONTEXT], [0, CONTEXT], 0.125)
    positions = torch.tensor([0, 1, 62, 63, 64, 65, 95, 96, 127, 128, 200, 383, 384, 511, 512, 599])
    alone = [decode_attention(q[p : p + 1], k, v, table, torch.tensor([int(p) + 1]), 0.125) for p in positions]
    assert torch.equal(torch.cat(alone), whole[positions])
    together = decode_attention(q[positions], k, v, table.expand(len(positions), -1), positions + 1, 0.125)
    assert torch.equal(together, whole[positions])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("in_features", "out_features"), [(576, 960), (1536, 576), (64, 200)])
def test_rows_of_a_product_do_not_depend_on_their_number(dtype, in_features, out_features):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(240, in_features, generator=generator).to(dtype)
    weight = (torch.randn(out_features, in_features, generator=generator) * 0.05).to(dtype)
    whole = linear(x, weight)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 40):
        parts = torch.cat([linear(x[i : i + rows], weight) for i in range(0, 240, rows)])
        assert torch.equal(parts, whole[: len(parts)]), f"{rows} rows at a time"
    assert linear(x[:0], weight).shape == (0, out_features)
