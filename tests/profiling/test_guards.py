import pytest
import torch

from wholecurve.profiling.guards import GUARD, Guarded, PoisonedEmpty, poison_of

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_keep_values_and_strides_between_guard_bands(dtype):
    numbers = torch.arange(12.0).view(2, 6).to(dtype)
    for tensor in (numbers, numbers[:, ::2], numbers.T, numbers[:, 1:4]):
        guarded = Guarded()
        copy = guarded(tensor, "x")
        assert torch.equal(copy.float(), tensor.float()) and copy.stride() == tensor.stride()
        assert guarded.changed() == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [-1, 0, 3, 9], ids=["before", "inside", "in a gap", "after"])
def test_a_write_is_seen(dtype, place):
    guarded = Guarded()
    copy = guarded(torch.zeros(2, 6).to(dtype)[:, :3], "x")  # elements 0 to 2 and 6 to 8 of its memory
    copy.as_strided((1,), (1,), copy.storage_offset() + place).copy_(torch.ones(1))
    assert guarded.changed() == ["x"]
    assert guarded.changed(writable=("x",)) == ([] if place == 0 else ["x"])


def test_an_overlapping_view_comes_back_as_it_is():
    wide = torch.ones(1, 4).expand(3, 4)
    assert Guarded()(wide) is wide


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unwritten_memory_is_poison(dtype):
    with PoisonedEmpty() as allocated:
        made = [torch.empty(3, 5, dtype=dtype), torch.ones(3, 5).to(dtype).new_empty(15)]
        made.append(torch.empty_like(made[0]))
    for tensor in made:
        poison = poison_of(dtype)
        assert tensor.float().isnan().all() if dtype.is_floating_point else (tensor == poison).all()
    assert not allocated.overrun()
    assert torch.empty(2).shape == (2,)  # outside, torch allocates as ever


@pytest.mark.parametrize("place", [-1, 15])
def test_writing_past_an_allocation_is_seen(place):
    with PoisonedEmpty() as allocated:
        made = torch.empty(15)
    made.fill_(0)
    assert not allocated.overrun()
    made.as_strided((17,), (1,), GUARD - 1)[place + 1] = 0.0
    assert allocated.overrun()
