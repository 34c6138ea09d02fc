"""From logits to tokens: temperature, top-k, top-p, min-p and penalties per row, with a seed per row."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.sampling.cpu import sampling_cpu
from wholecurve.kernels.sampling.reference import sampling_reference

FORMS = ("reference", "cpu", "triton", "interpret")
COUNT_DTYPES = (torch.uint8, torch.int16, torch.int32)


def form_for(device):
    """Name of the form that `sampling` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def sampling(
    logits,
    temperature,
    seeds,
    steps,
    form=None,
    *,
    top_k=None,
    top_p=None,
    min_p=None,
    counts=None,
    penalties=None,
    return_logprobs=False,
):
    """One token per row of logits.

    logits: [B, V], any row stride, last dimension contiguous; bfloat16, float16 or float32 (float64 but for the Triton
    form). temperature: [B] float32, finite; 0, or less than 2⁻¹²⁶, takes the largest logit, at the lowest id of equal
    ones, and then nothing below matters but the penalties.
    seeds, steps: [B] int64. A row draws with one number in [0, 1) that depends on its seed and step alone, so its
    token depends on nothing else in the batch: Philox-4x32-10 as in Triton's `randint4x(seed, step)`. The token is the
    first, in order of ids, at which the running sum of the chances exceeds that number's share of their sum.

    Filters, [B] each, None for none; a later one works on what the earlier ones kept. In all of them the order is by
    logit and, for equal logits, by id, lowest first.
    top_k: int32 or int64; the first top_k tokens stay. 0, −1 and whatever is V or more keep all.
    top_p: float32 in [0, 1]; a token stays when the chances before it sum to less than top_p. 1 keeps all, 0 one.
    min_p: float32 in [0, 1]; a token stays when its chance is at least min_p times the largest. 0 keeps all, and 1 the
    largest alone, all of them if several are equal.

    counts: [B, V] uint8, int16 or int32: 2 · (times in the output) + (1 if in the prompt), see `token_counts`; last
    dimension contiguous. penalties: [B, 3] float32: repetition, presence, frequency. Both or neither. A logit of a
    token with a count is divided by the repetition penalty where positive, else multiplied with it; then presence is
    subtracted if the token is in the output, and frequency times how often it is. A row of (1, 0, 0) reads no counts.

    Logits of −inf and NaN are never chosen, +inf outweighs every finite one. Returns tokens [B] int64, −1 in a row
    that has nothing to choose; with return_logprobs a pair of them and the natural logarithm of the chosen token's
    softmax [B] in float32 (float64 for float64 logits): that of the logits as given, before penalties, temperature and
    filters, −inf where there is no token. No input is written.
    ValueError for shapes or dtypes outside this contract and, on a CPU, for parameters out of range.
    """
    options = dict(top_k=top_k, top_p=top_p, min_p=min_p, counts=counts, penalties=penalties)
    check_logits("sampling", logits, 2)
    check_rows("sampling", logits.shape[0], temperature, seeds, steps, top_k, top_p, min_p)
    check_penalties(logits, counts, penalties)
    chosen = forms.choose_form(form, logits.device, FORMS)
    if chosen == "reference":
        return sampling_reference(logits, temperature, seeds, steps, **options, return_logprobs=return_logprobs)
    if chosen == "cpu":
        return sampling_cpu(logits, temperature, seeds, steps, **options, return_logprobs=return_logprobs)
    from wholecurve.kernels.sampling.kernel import sampling_triton

    options["return_logprobs"] = return_logprobs
    return sampling_triton(logits, temperature, seeds, steps, **options, interpreted=chosen == "interpret")


def token_counts(prompts, outputs, vocab, dtype=torch.int16, device=None):
    """`counts` of `sampling` [B, vocab] for lists of token ids per row. A new token adds 2 to its place."""
    counts = torch.zeros(len(prompts), vocab, dtype=dtype, device=device)
    for row, prompt, output in zip(counts, prompts, outputs, strict=True):
        row[torch.as_tensor(prompt, dtype=torch.int64, device=device)] = 1
        row += 2 * torch.bincount(torch.as_tensor(output, dtype=torch.int64, device=device), minlength=vocab).to(dtype)
    return counts


def check_logits(operation, logits, dimensions, name="logits"):
    """ValueError for logits of another number of dimensions, without a vocabulary, strided or not of floats."""
    if logits.dim() != dimensions or logits.shape[-1] == 0:
        wanted = "[B, V]" if dimensions == 2 else "[B, K + 1, V]"
        raise ValueError(f"{operation}: {name} must be {wanted} with V ≥ 1, they have shape {tuple(logits.shape)}")
    if not logits.dtype.is_floating_point:
        raise ValueError(f"{operation}: {name} must be of a floating-point dtype, they are {logits.dtype}")
    if logits.stride(-1) != 1 and logits.shape[-1] > 1:
        raise ValueError(f"{operation}: last dimension of {name} is strided")


def check_rows(operation, rows, temperature, seeds, steps, top_k, top_p, min_p):
    """ValueError for a parameter that is not one number per row, of another dtype, or on a CPU out of range."""
    whole, real = (torch.int32, torch.int64), (torch.float32,)
    for name, tensor, dtypes in (
        ("temperature", temperature, real),
        ("seeds", seeds, whole[1:]),
        ("steps", steps, whole[1:]),
        ("top_k", top_k, whole),
        ("top_p", top_p, real),
        ("min_p", min_p, real),
    ):
        if tensor is None and name in ("top_k", "top_p", "min_p"):
            continue
        if tensor.shape != (rows,) or tensor.dtype not in dtypes or not tensor.is_contiguous():
            wanted, given = " or ".join(map(str, dtypes)), f"{tuple(tensor.shape)} {tensor.dtype}"
            raise ValueError(f"{operation}: {name} must be [{rows}], contiguous, {wanted}; it is {given}")
        if tensor.device.type != "cpu" or not rows or tensor.dtype != torch.float32:
            continue
        low, high = (float(bound) for bound in tensor.aminmax())
        most = torch.finfo(torch.float32).max if name == "temperature" else 1
        if not (low >= 0 and high <= most):
            between = "finite and 0 or more" if name == "temperature" else "in 0 … 1"
            raise ValueError(f"{operation}: {name} must be {between}, it spans {low} to {high}")


def check_penalties(logits, counts, penalties):
    """ValueError for one without the other, other shapes or dtypes, or on a CPU a repetition penalty of 0 or less."""
    if counts is None and penalties is None:
        return
    if counts is None or penalties is None:
        raise ValueError("sampling: counts and penalties need each other, one of them is None")
    if counts.shape != logits.shape or counts.dtype not in COUNT_DTYPES:
        wanted, given = " or ".join(map(str, COUNT_DTYPES)), f"{tuple(counts.shape)} {counts.dtype}"
        raise ValueError(f"sampling: counts must be {tuple(logits.shape)} {wanted}, they are {given}")
    if counts.stride(-1) != 1 and counts.shape[-1] > 1:
        raise ValueError("sampling: last dimension of counts is strided")
    rows = len(logits)
    if penalties.shape != (rows, 3) or penalties.dtype != torch.float32 or not penalties.is_contiguous():
        given = f"{tuple(penalties.shape)} {penalties.dtype}"
        raise ValueError(f"sampling: penalties must be [{rows}, 3], contiguous, torch.float32, they are {given}")
    if penalties.device.type == "cpu" and rows and not (penalties.isfinite().all() and penalties[:, 0].min() > 0):
        raise ValueError("sampling: penalties must be finite, and those of repetition above 0")
