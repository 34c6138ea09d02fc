"""The gate around a call sees each kind of wrong answer: a kernel is replaced by variants with one fault each."""

import pytest
import torch

from wholecurve.kernels import load_subject
from wholecurve.kernels.subject import Expected
from wholecurve.profiling.checks import check_case, compare_output

CASE = {"num_tokens": 5, "hidden": 129, "has_residual": True}
SUBJECT = load_subject("rms_norm")


def right(**arguments):
    return SUBJECT.operation(**arguments, form="reference")


def wrong_value(**arguments):
    normed, summed = right(**arguments)
    normed[3, 7] *= 1.05
    return normed, summed


def unwritten(**arguments):
    normed, summed = right(**arguments)
    out = torch.empty_like(normed)
    out[:-1] = normed[:-1]
    return out, summed


def writes_an_input(**arguments):
    answer = right(**arguments)
    arguments["weight"][0] += 1
    return answer


def writes_beside(**arguments):
    x = arguments["x"]
    x.as_strided((1,), (1,), x.storage_offset() + x.numel())[0] = 0.0
    return right(**arguments)


def overruns_its_output(**arguments):
    normed, summed = right(**arguments)
    out = torch.empty_like(normed).copy_(normed)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel())[0] = 0.0
    return out, summed


def one_output_less(**arguments):
    return right(**arguments)[0]


def another_shape(**arguments):
    normed, summed = right(**arguments)
    return normed[:-1], summed


def test_the_right_answer_passes():
    assert check_case(SUBJECT, CASE, "variant", variant=right)
    for form in ("reference", "cpu", "interpret"):
        assert check_case(SUBJECT, CASE, form)


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        (wrong_value, "output 0: worst at (3, 7)"),
        (unwritten, "output 0: worst at (4, 0): nan where"),
        (writes_an_input, "weight was written"),
        (writes_beside, "x was written, or something around it"),
        (overruns_its_output, "something outside an allocated tensor was written"),
        (one_output_less, "1 outputs where the definition has 2"),
        (another_shape, "output 0: its shape is (4, 129), it should be (5, 129)"),
    ],
)
def test_a_wrong_one_is_named(variant, problem):
    finding = check_case(SUBJECT, CASE, "variant", variant=variant)
    assert not finding and any(problem in found for found in finding.problems), finding


def test_whole_numbers_are_compared_exactly():
    wanted = Expected(torch.tensor([3, 4]))
    assert compare_output(torch.tensor([3, 4], dtype=torch.int32), wanted)[2] is None
    assert "the first at (1,)" in compare_output(torch.tensor([3, 5]), wanted)[2]


def test_undefined_elements_may_hold_anything():
    defined = torch.tensor([[True, False]])
    output, value = torch.tensor([[1.0, torch.nan]]), torch.tensor([[1.0, 7.0]]).double()
    assert compare_output(output, Expected(value, where=defined))[2] is None
    assert compare_output(output, Expected(value))[2] is not None
    assert compare_output(torch.tensor([[3, 9]]), Expected(torch.tensor([[3, 4]]), where=defined))[2] is None


def test_the_scale_of_a_row_leaves_out_undefined_elements():
    """Else a huge number in a place that means nothing would allow any error beside it."""
    value, output = torch.tensor([[1.0, 1e9]]).double(), torch.tensor([[1.1, 0.0]])
    assert compare_output(output, Expected(value, where=torch.tensor([[True, False]])))[2] is not None
