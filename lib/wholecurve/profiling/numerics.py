"""Faithful bf16, fp8 and tf32 arithmetic for Triton's NumPy interpreter.

The stock interpreter holds bf16 and fp8 as their bit patterns in uint16 and uint8 and then computes on the
bits, cuts fp32 off instead of rounding it, lets fp8 overflow wrap, and runs tf32 products in full fp32. The
replacements here decode to fp32, compute, and round once to nearest even, as the hardware does; conversion to
fp8 saturates like `cvt.rn.satfinite`, and tf32 drops the 13 low bits of each operand (Triton emits no
rounding conversion for it).
"""

import functools
import inspect

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

STORED_AS_BITS = {
    tl.bfloat16: ml_dtypes.bfloat16,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e5: ml_dtypes.float8_e5m2,
    tl.float8e4b8: ml_dtypes.float8_e4m3fnuz,
    tl.float8e5b16: ml_dtypes.float8_e5m2fnuz,
}
BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
TF32_MASK = np.uint32(0xFFFFE000)

stock = {
    name: getattr(InterpreterBuilder, name)
    for name in (
        "binary_op",
        "unary_op",
        "ternary_op",
        "cast_impl",
        "create_fp_to_fp",
        "create_dot",
        "create_fma",
        "create_masked_load",
        "create_masked_store",
    )
}


def bits_dtype(dtype):
    """The unsigned NumPy type in which the interpreter holds a value of this Triton type."""
    return np.dtype(np.uint16 if dtype == tl.bfloat16 else np.uint8)


def decode(handle, to=np.float32):
    """The values of a handle as floating point; a handle that is not stored as bits comes back as it is."""
    dtype = handle.dtype.scalar
    if dtype in STORED_AS_BITS and handle.data.dtype == bits_dtype(dtype):
        return handle.data.view(STORED_AS_BITS[dtype]).astype(to)
    return handle.data


def encode(values, dtype):
    """A handle of `dtype` with these values, rounded to nearest even; fp8 saturates."""
    values = np.asarray(values)
    if dtype != tl.bfloat16:
        largest = float(ml_dtypes.finfo(STORED_AS_BITS[dtype]).max)
        values = np.where(np.isnan(values), values, np.clip(values, -largest, largest))
    return TensorHandle(np.ascontiguousarray(values.astype(STORED_AS_BITS[dtype])).view(bits_dtype(dtype)), dtype)


def binary_op(self, left, right, operation):
    dtype = left.dtype.scalar
    if dtype not in STORED_AS_BITS or right.dtype.scalar not in STORED_AS_BITS or operation in BITWISE:
        return stock["binary_op"](self, left, right, operation)
    result = operation(decode(left), decode(right))
    return TensorHandle(result, dtype) if result.dtype == np.bool_ else encode(result, dtype)


def unary_op(self, argument, operation):
    if argument.dtype.scalar not in STORED_AS_BITS:
        return stock["unary_op"](self, argument, operation)
    return encode(operation(decode(argument)), argument.dtype.scalar)


def ternary_op(self, first, second, third, operation):
    # np.where moves bits without computing on them, the stock form is right for it
    if operation is np.where or third.dtype.scalar not in STORED_AS_BITS:
        return stock["ternary_op"](self, first, second, third, operation)
    return encode(operation(decode(first), decode(second), decode(third)), third.dtype.scalar)


def cast_impl(self, source, target):
    target = target.scalar
    if target in STORED_AS_BITS:
        return encode(decode(source).astype(np.float32), target)
    if source.dtype.scalar in STORED_AS_BITS:
        return TensorHandle(decode(source).astype(interpreter._get_np_dtype(target)), target)
    return stock["cast_impl"](self, source, target)


def create_fp_to_fp(self, source, target, rounding_mode):
    if "RTZ" in str(rounding_mode):
        return stock["create_fp_to_fp"](self, source, target, rounding_mode)
    return cast_impl(self, source, target)


def create_dot(self, a, b, accumulator, input_precision, max_num_imprecise_acc):
    left, right = decode(a), decode(b)
    if left.dtype.kind in "iu":
        return stock["create_dot"](self, a, b, accumulator, input_precision, max_num_imprecise_acc)
    if a.dtype.scalar == tl.float32 and str(input_precision).endswith("TF32"):
        left, right = cut_to_tf32(left), cut_to_tf32(right)
    elif left.dtype == np.float16:
        # exact: every product of two fp16 numbers fits fp32, which is what the hardware accumulates in
        left, right = left.astype(np.float32), right.astype(np.float32)
    product = np.matmul(left, right) + accumulator.data
    return TensorHandle(product.astype(accumulator.data.dtype), accumulator.dtype.scalar)


def cut_to_tf32(values):
    """fp32 values without the 13 mantissa bits that tf32 lacks."""
    return (np.ascontiguousarray(values).view(np.uint32) & TF32_MASK).view(np.float32)


def create_fma(self, x, y, z):
    if z.dtype.scalar not in STORED_AS_BITS:
        return stock["create_fma"](self, x, y, z)
    return encode(decode(x, np.float64) * decode(y, np.float64) + decode(z, np.float64), z.dtype.scalar)


def create_masked_load(self, pointers, mask, *rest, **keywords):
    return stock["create_masked_load"](self, pointers, as_bool(mask), *rest, **keywords)


def create_masked_store(self, pointers, value, mask, *rest, **keywords):
    return stock["create_masked_store"](self, pointers, value, as_bool(mask), *rest, **keywords)


def as_bool(mask):
    """A mask of numbers as one of truth values: Triton 3.9 refuses what `scalar condition & tensor` gives."""
    # the mask of a tensor descriptor is a plain array of truth values
    if isinstance(mask, TensorHandle) and mask.data.dtype != np.bool_:
        mask.data = mask.data.astype(np.bool_)
    return mask


@functools.cache
def install():
    """Put the faithful arithmetic into the interpreter; a second call changes nothing."""
    replacements = (binary_op, unary_op, ternary_op, cast_impl, create_fp_to_fp, create_dot, create_fma)
    for replacement in (*replacements, create_masked_load, create_masked_store):
        setattr(InterpreterBuilder, replacement.__name__, replacement)
    if "squeeze" not in inspect.getsource(interpreter._patch_lang_tensor):
        patch_index_for_numpy_2_4()


def patch_index_for_numpy_2_4():
    """Triton 3.6 and older turn a one-element array into an int directly, which NumPy 2.4 refuses."""
    stock_patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor, *scope):
        stock_patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(-1)[0])

    interpreter._patch_lang_tensor = patch_tensor
