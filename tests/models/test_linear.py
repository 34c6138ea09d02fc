"""A row of a product must not depend on the rows around it: this is what makes batching exact."""

import pytest
import torch

from wholecurve.models.linear import linear

SHAPES = [(576, 960), (1536, 576), (576, 576), (576, 3072), (64, 97), (88, 64), (8, 6)]


@pytest.mark.bit_exact
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("in_features", "out_features", "threads"),
    [*((*shape, 1) for shape in SHAPES), *((*shape, 2) for shape in SHAPES[:2])],
)
def test_a_row_has_the_same_bits_in_any_batch(in_features, out_features, dtype, threads):
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    x = torch.randn(67, in_features).to(dtype)
    weight = (torch.randn(out_features, in_features) / in_features**0.5).to(dtype)
    alone = torch.cat([linear(x[row : row + 1], weight) for row in range(len(x))])
    for rows in (2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 67):
        assert torch.equal(linear(x[:rows], weight), alone[:rows]), rows
        assert torch.equal(linear(x[-rows:], weight), alone[-rows:]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_the_product(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64).to(dtype), torch.randn(9, 64).to(dtype)
    expected = x.double() @ weight.double().T
    # summed in float32, rounded once
    bound = expected.abs() * torch.finfo(dtype).eps + 1e-5
    assert ((linear(x, weight).double() - expected).abs() <= bound).all()
    assert linear(x[:0], weight).shape == (0, 9)
