"""The native form compiled for less than this processor: other instructions, other bits, the same promises."""

import pytest
import torch
from native_builds import FORMS, in_use, quick_builds
from native_models import DTYPES, SHAPES, check_forms, needs_native

from wholecurve.kernels.native import build
from wholecurve.models.native import library

pytestmark = needs_native
# float32 has no use for BF16 instructions: nothing else would be compiled
OTHERS = [
    (form, dtype) for form in list(FORMS)[1:] for dtype in DTYPES if "BF16" not in form or dtype == torch.bfloat16
]


@pytest.mark.parametrize("form, dtype", OTHERS, ids=lambda value: str(value).replace(" ", "_"))
def test_other_processors_keep_the_promises(form, dtype, tmp_path):
    with quick_builds(form):
        path = build.built(library.program(dtype), tmp_path)
    with in_use({dtype: library.open_library(path)}):
        for shape in SHAPES:
            check_forms(shape, dtype)
