"""Whether broken C++ is caught: one change in the text of a source at a time."""

import pytest
import torch
from native_builds import compiled_headers, copied_sources, in_use, quick_builds
from native_models import DTYPES, SHAPES, check_forms, needs_native

from wholecurve.kernels.native import build
from wholecurve.models.native import library

pytestmark = needs_native
# file: what is broken: (text, replacement). None reads or writes outside of its memory.
BROKEN = {
    "lanes": {
        "remainder of the exponent": ("const Lanes r = x - n;", "const Lanes r = n - x;"),
        "a coefficient": ("5.550410866e-2f", "5.6e-2f"),
        "second half of a pair": ("std::memcpy(&pair, p, 4);", "std::memcpy(&pair, p, 2);"),
    },
    "tiles": {
        "rows of a tile": ("D::spread(rows[r / 3] + r % 3 * row_stride)", "D::spread(rows[r / 3])"),
        "weights of the next block": ("block * steps * D::GROUP", "block * steps"),
        "end of the last block": ("block + 1 < num_blocks ? steps : last_steps", "steps"),
        "second vector of a row": ("if (vectors > 1) store(out", "if (vectors > 2) store(out"),
    },
    "attention": {
        "own key not seen": ("counting > IntLanes{}", "counting >= IntLanes{}"),
        "next key seen": ("seen[r] < (v + 1) * LANES - 1", "seen[r] < (v + 1) * LANES - 2"),
        "no scale": ("model.scale * LOG2_E", "LOG2_E"),
        "wrong base": ("model.scale * LOG2_E", "model.scale"),
        "out not rescaled": ("if (factors[r] != 1.0f)", "if (0)"),
        "total not rescaled": ("state.totals[t][r] * factor", "state.totals[t][r]"),
        "not divided by the total": ("1.0f / sum(state.totals[t][r])", "1.0f"),
        "wrong head of a group": (
            "queries + (query * sizes.heads + head + r % heads)",
            "queries + query * sizes.heads",
        ),
        "wrong head of the keys": ("sizes.kv_heads + kv_head;", "sizes.kv_heads;"),
        "position of a later subtile": ("row + t * each + r / heads] - start", "row + r / heads] - start"),
        "last key of a new tile": ("if (end < start) continue;", "if (end <= start) continue;"),
        "one key too few": ("std::min(end + 1 - start, KEYS)", "std::min(end - start, KEYS)"),
        "keys further in a block": ("/ LANES * LANES * D::GROUP;", "/ LANES * LANES;"),
        "out not cleared": ("std::fill(state.out[t], state.out[t] + rows * width, 0.0f);", ""),
    },
    "layers": {
        "sign of the rotation": ("fma(-b, load(s), a * load(c))", "fma(b, load(s), a * load(c))"),
        "sign within a head": ("fma(-b, lean, a * turn)", "fma(b, lean, a * turn)"),
        "halves of a query": ("q[0] = D::narrow(left), q[half] =", "q[half] = D::narrow(left), q[0] ="),
        "second half of the keys": ("((at + part * half) / D::GROUP", "(at / D::GROUP"),
        "no eps": ("mean + eps", "mean"),
        "mean over the padding": ("float(sizes.true_hidden)", "float(sizes.hidden)"),
        "no weight of the norm": ("* factor * load(weight + i)", "* factor"),
        "sign of the sigmoid": ("(gate > zero ? one : e)", "(gate > zero ? e : one)"),
        "up left out": ("gate * sigmoid * up", "gate * sigmoid"),
        "other token of a group not cleared": ("place.is_last && in_group + 1", "false && in_group + 1"),
        "cleared by every token": ("place.is_last && in_group + 1", "in_group + 1"),
        "stride of the values": ("put(to + i * D::GROUP, i);", "put(to + i, i);"),
        "width of the values": ("width = sizes_.value_width(), in_group", "width = sizes_.head_dim, in_group"),
        "columns of a tied embedding": ("token % COLUMNS * D::GROUP", "token % COLUMNS"),
        "last row of a tile": ("r < rows; r++) after", "r + 1 < rows; r++) after"),
    },
    "step": {
        "residual stream lost": ("store(to, load(to) + load(sums));", "store(to, load(sums));"),
        "place within a block": ("int32_t(slot % sizes.block_size)", "int32_t(slot % LANES)"),
        "first for last": ("row + 1 == batch.cu_q[s + 1]}", "row == batch.cu_q[s]}"),
        "queries of two sequences": ("std::min(end, batch_.cu_q[buffers_.places[row].sequence + 1])", "end"),
        "rows of logits, few tokens": ("(from ? from[r] : r)", "r"),
        "rows of logits, many tokens": ("last_.push_back({batch.logits_rows[r], 1})", "last_.push_back({r, 1})"),
        "row of a block left out": (
            "end = batch_.tokens * (i + 1) / count;",
            "end = batch_.tokens * (i + 1) / count - 1;",
        ),
        "norm of the wrong place": ("norm_all(turn, layer.mlp_norm)", "norm_all(turn, layer.attention_norm)"),
        "highest of equal logits": ("first + i < found.second", "first + i > found.second"),
        "stream of the rows not moved": ("std::memmove(buffers_.x +", "if (0) std::memmove(buffers_.x +"),
        "attention of the rows not moved": ("std::memmove(buffers_.attended", "if (0) std::memmove(buffers_.attended"),
        "logits of a panel": ("batch_.logits + r * s.vocab + first", "batch_.logits + r * s.vocab"),
    },
}
MUTANTS = {name: (file, *texts) for file, mutants in BROKEN.items() for name, texts in mutants.items()}
ONLY_IN_BFLOAT16 = (
    "second half of a pair",
    "weights of the next block",
    "keys further in a block",
    "other token of a group not cleared",
    "cleared by every token",
    "stride of the values",
    "columns of a tied embedding",
    "first for last",
)


@pytest.fixture(scope="module")
def more_flags(tmp_path_factory):
    with quick_builds(optimise="-O0"):
        return compiled_headers(tmp_path_factory.mktemp("headers"))


def test_what_is_not_broken_passes(tmp_path, more_flags):
    assert [how_it_is_caught(library.SOURCES, dtype, tmp_path, more_flags) for dtype in DTYPES] == [None, None]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant, tmp_path, more_flags, record_property):
    file, old, new = MUTANTS[mutant]
    dtype = torch.bfloat16 if mutant in ONLY_IN_BFLOAT16 else torch.float32
    sources = copied_sources(tmp_path / "sources")
    path = sources / f"{file}.hpp"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    found = how_it_is_caught(sources, dtype, tmp_path, more_flags)
    assert found
    record_property("mutant", f"native llama\t{mutant}\t{found}")


def test_the_names_are_those_of_mutants():
    assert set(ONLY_IN_BFLOAT16) <= MUTANTS.keys() and len(MUTANTS) == sum(map(len, BROKEN.values()))


def how_it_is_caught(sources, dtype, folder, more_flags):
    """What the checks say of a library of these sources, None if nothing."""
    with quick_builds(optimise="-O0", more=more_flags):
        built = library.open_library(build.built(library.program(dtype, sources), folder))
    assert built is not None, "it does not compile"
    with in_use({dtype: built}):
        for shape in SHAPES:
            try:
                check_forms(shape, dtype, threads=1)
            except AssertionError as error:
                return f"{str(error).splitlines()[0]} ({shape})"
    return None
