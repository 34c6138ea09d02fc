"""The kernels: one folder per operation.

`reference.py` is the definition in plain torch, `kernel.py` the Triton form, `cpu.py` a faster torch form
where one exists, `native.py` one in C, `spec.py` the cost formula with the test and bench cases, and `subject.py` the
kernel as the laboratory sees it. The folder itself exports the public operation, which picks the form by the device of
its input; `form_for(device)` says which. Nothing here imports triton until a Triton form is asked for.
"""

import importlib

KERNELS = (
    *("rms_norm", "rope", "qk_norm_rope", "gated_activation", "kv_store"),
    *("decode_attention", "prefill_attention", "mla_decode", "indexer_scores", "top_k"),
    *("moe_router", "moe_permute", "moe_unpermute", "grouped_gemm"),
    *("fp8_quantize", "fp8_gemm"),
    *("sampling", "verification"),
    *("engram_hash", "engram_gather", "engram_gate"),
    *("gated_delta_prefill", "gated_delta_decode", "causal_conv"),
)


def load_subject(name):
    """The Subject of a kernel (loads torch). ValueError for an unknown name."""
    require_known(name)
    return importlib.import_module(f"wholecurve.kernels.{name}.subject").SUBJECT


def load_spec(name):
    """The `spec` module of a kernel: `cost`, TESTS, BENCH and CONFIGS. ValueError for an unknown name."""
    require_known(name)
    return importlib.import_module(f"wholecurve.kernels.{name}.spec")


def require_known(name):
    if name not in KERNELS:
        raise ValueError(f"there is no kernel {name!r}; there are {', '.join(KERNELS)}")
