"""The arithmetic of the native form against float64 and torch, compiled for several processors."""

import ctypes
import functools
from pathlib import Path

import pytest
import torch
from native_builds import FORMS, SOURCES, quick_builds
from native_models import needs_native

from wholecurve.kernels.native import build

pytestmark = needs_native


@pytest.fixture(scope="module", params=FORMS)
def numbers(request, tmp_path_factory):
    """Function of native_numbers.cpp by name, to be called with tensors and a number of elements."""
    folder, source = tmp_path_factory.mktemp("numbers"), Path(__file__).with_name("native_numbers.cpp")
    for path in (source, *SOURCES.glob("*.hpp")):
        (folder / path.name).write_bytes(path.read_bytes())
    with quick_builds(request.param):
        program = build.Program(folder / source.name, tuple(sorted(folder.glob("*.hpp"))))
        library = ctypes.CDLL(str(build.built(program, folder)))

    def call(name, *arguments):
        for argument in arguments[:-1]:
            assert argument.is_contiguous()
        pointers = [ctypes.c_void_p(argument.data_ptr()) for argument in arguments[:-1]]
        getattr(library, name)(*pointers, ctypes.c_int64(arguments[-1]))

    return call


@functools.cache
def interesting():
    """Float32 numbers of every exponent, their neighbours at the ties of bfloat16, and special ones."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (60000,), generator=generator)
    ties = torch.arange(-(2**15), 2**15) * 2**16
    near = torch.cat([ties + offset for offset in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    values = torch.cat([random, near]).to(torch.int32).view(torch.float32)
    return values[: len(values) // 16 * 16].clone()


def test_powers_of_two(numbers):
    x = torch.cat([torch.linspace(-125.5, 0, 200000), -torch.arange(0, 126, 0.5), torch.zeros(4)])
    x = x[: len(x) // 16 * 16].clone()
    out = torch.empty_like(x)
    numbers("powers", x, out, len(x))
    exact = torch.exp2(x.double())
    assert ((out - exact).abs() / exact).max() < 2.5e-7
    whole = x == x.round()
    assert whole.sum() > 100 and torch.equal(out[whole].double(), exact[whole])
    assert ((out <= 1) | (x == 0)).all()


def test_powers_of_two_that_float32_can_hardly_hold(numbers):
    x = torch.cat([torch.linspace(-300, -125.5, 10000), torch.tensor([-1e30, -3e38, -torch.inf, -150.5, -151, -200])])
    x = x[-(len(x) // 16 * 16) :].clone()
    out = torch.empty_like(x)
    numbers("powers", x, out, len(x))
    assert (out >= 0).all() and ((out - torch.exp2(x.double())).abs() <= 2.0**-126).all()
    assert (out[x < -150] == 0).all()


def test_bfloat16_is_rounded_as_torch_does(numbers):
    """By vectors and one by one. AVX-512 takes subnormal numbers for 0, the rest of the code keeps them."""
    x = interesting()
    vectors, scalars = torch.empty(2, len(x), dtype=torch.bfloat16)
    numbers("narrowed", x, vectors, scalars, len(x))
    wanted, normal = x.bfloat16(), ~x.isnan() & ((x.abs() >= 2.0**-126) | (x == 0))
    for found in (vectors, scalars):
        assert torch.equal(found.isnan(), x.isnan())
        assert torch.equal(found.view(torch.int16)[normal], wanted.view(torch.int16)[normal])
    tiny = ~x.isnan() & ~normal
    assert tiny.sum() > 100 and torch.equal(scalars[tiny].view(torch.int16), wanted[tiny].view(torch.int16))
    assert ((vectors[tiny] == wanted[tiny]) | (vectors[tiny] == 0)).all()


def test_bfloat16_is_widened_exactly(numbers):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    out = torch.empty(len(x))
    numbers("widened", x, out, len(x))
    assert torch.equal(out.view(torch.int32), x.float().view(torch.int32))


def test_swiglu(numbers):
    gate = torch.cat([torch.linspace(-80, 80, 100000), torch.linspace(-1, 1, 1008), torch.zeros(16)])
    up = torch.randn(len(gate), generator=torch.Generator().manual_seed(0))
    gate_up, out = torch.stack([gate.view(-1, 16), up.view(-1, 16)], dim=1).contiguous(), torch.empty(len(gate))
    numbers("activated", gate_up, out, len(gate))
    exact = up.double() * gate.double() * torch.sigmoid(gate.double())
    assert ((out - exact).abs() <= 4e-6 * exact.abs()).all()  # the exponent is rounded once: 80 log2(e) times 2^-24
    near = gate.abs() < 1
    assert ((out - exact).abs()[near] <= 5e-7 * exact.abs()[near]).all()


def test_swiglu_of_special_numbers(numbers):
    gate = torch.tensor([0.0, -0.0, 1e4, -1e4, 3e38, -3e38, torch.inf, torch.nan, *[1.0] * 8])
    gate_up, out = torch.cat([gate, torch.ones(16)]), torch.empty(16)
    numbers("activated", gate_up, out, 16)
    assert torch.equal(out[:7], torch.tensor([0.0, 0.0, 1e4, 0.0, 3e38, 0.0, torch.inf])) and out[7].isnan()
    gate_up = torch.cat([torch.ones(16), gate])
    numbers("activated", gate_up, out, 16)
    assert out[7].isnan() and out[6] == torch.inf


def test_largest_and_sum_of_a_vector(numbers):
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    x[0], x[1, 3], x[2] = -torch.inf, torch.inf, -1.0
    tops, sums = torch.empty(2, 64)
    numbers("reduced", x, tops, sums, x.numel())
    assert torch.equal(tops, x.amax(dim=1))
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    assert torch.equal(sums, x[:, 0])


def test_dots_of_pairs(numbers):
    """Within the rounding of two additions; exactly where nothing is rounded."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 2, generator=generator).bfloat16()
    columns = torch.randn(64, 16, 2, generator=generator).bfloat16()
    start = torch.randn(64, 16, generator=generator)
    out = start.clone()
    numbers("dots", rows, columns, out, out.numel())
    terms = torch.cat([rows[:, None].double() * columns.double(), start[..., None].double()], dim=-1)
    assert ((out - terms.sum(-1)).abs() <= 2.0**-22 * terms.abs().sum(-1)).all()
    for whole in (rows, columns, out):
        whole.copy_(torch.randint(-9, 9, whole.shape, generator=generator))
    wanted = out + (rows[:, None].float() * columns.float()).sum(-1)
    numbers("dots", rows, columns, out, out.numel())
    assert torch.equal(out, wanted)
