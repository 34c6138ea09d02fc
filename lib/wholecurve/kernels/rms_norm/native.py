"""RMSNorm in C: see `wholecurve.kernels.native`."""

from wholecurve.kernels.native.library import NO_WEIGHT, RMS_NORM, STYLES, load, plain, threads_for
from wholecurve.kernels.rms_norm.cpu import rms_norm_cpu


def rms_norm_native(x, weight, eps, residual=None, style="llama"):
    """See `wholecurve.kernels.rms_norm.rms_norm`. What C does not take goes to the CPU form: no library, float64,
    a strided weight, gradients.
    """
    library = load()
    code = None if library is None or not plain(x) else library.codes.get(x.dtype)
    weight_code = None if code is None else weight_code_of(library, weight)
    if weight_code is None or (residual is not None and not plain(residual)):
        return rms_norm_cpu(x, weight, eps, residual, style)
    tokens, hidden = x.shape
    out = x.new_empty(tokens, hidden)
    threads = threads_for(tokens * hidden)
    weight_at, style_code = 0 if weight is None else weight.data_ptr(), STYLES[style]
    if residual is None:
        pointers, residual_stride, summed = (x.data_ptr(), weight_at, 0, out.data_ptr(), 0), 0, None
    else:
        summed = x.new_empty(tokens, hidden)
        pointers = x.data_ptr(), weight_at, residual.data_ptr(), out.data_ptr(), summed.data_ptr()
        residual_stride = residual.stride(0)
    sizes = tokens, hidden, x.stride(0), residual_stride
    library.native_rms_norm(RMS_NORM(*pointers, *sizes, code, weight_code, style_code, threads, eps))
    return out if residual is None else (out, summed)


def weight_code_of(library, weight):
    """The number of a weight's dtype, None for one that C does not take."""
    if weight is None:
        return NO_WEIGHT
    if weight.requires_grad or not weight.is_contiguous():
        return None
    return library.codes.get(weight.dtype)
