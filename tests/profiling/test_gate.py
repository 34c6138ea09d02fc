import pytest
import torch

from wholecurve.profiling.gate import agreement


def test_tolerance_is_ulps_of_the_row():
    reference = torch.tensor([[1.0, 100.0], [1.0, 1.0]], dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    near = reference.clone()
    near[0, 0] += 100 * eps  # one ulp of the row's largest
    result = agreement(near.float(), reference, ulps=2)
    assert result and 0.45 < result.worst_ratio < 0.55 and result.worst_index == (0, 0)
    far = reference.clone()
    far[1, 1] += 100 * eps  # the same error in a row of ones
    result = agreement(far.float(), reference, ulps=2)
    assert not result and result.worst_index == (1, 1) and 45 < result.worst_ratio < 55


def test_eps_is_that_of_the_output():
    reference = torch.ones(1, 4).double()
    off = reference + 2**-7
    assert agreement(off.bfloat16(), reference, ulps=1) and not agreement(off.half(), reference, ulps=1)


def test_scale_and_relative_tolerance():
    reference = torch.tensor([[0.0, 10.0]]).double()
    output = torch.tensor([[1e-3, 10.001]])
    assert not agreement(output, reference, ulps=0, rtol=1e-3)  # a zero has no relative tolerance
    assert agreement(output, reference, ulps=1, rtol=1e-3, scale=torch.tensor(1e4).double())


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_must_be_in_the_same_places(wrong):
    reference = torch.tensor([[1.0, 2.0, 3.0]]).double()
    output = reference.float()
    output[0, 1] = wrong
    result = agreement(output, reference, ulps=1e9)
    assert not result and result.worst_ratio == torch.inf and result.worst_index == (0, 1)
    assert not agreement(reference.float(), output.double(), ulps=1e9)
    assert agreement(output, output.double())


def test_inf_of_the_wrong_sign():
    assert not agreement(torch.tensor([[torch.inf]]), torch.tensor([[-torch.inf]]).double())


def test_no_elements_and_wrong_shapes():
    assert agreement(torch.ones(0, 3), torch.ones(0, 3).double()).worst_index == ()
    with pytest.raises(ValueError, match=r"output is \(1, 3\)"):
        agreement(torch.ones(1, 3), torch.ones(3).double())


def test_a_zero_row_must_be_zero():
    zeros = torch.zeros(1, 3)
    assert agreement(zeros, zeros.double())
    assert not agreement(zeros + 1e-30, zeros.double())
