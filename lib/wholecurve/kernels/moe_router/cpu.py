"""The router in torch: a plain top-k, and the definition for the few rows in which it met equal numbers."""

import functools

import numpy as np
import torch
import torch.nn.functional as F

from wholecurve.kernels.moe_router.reference import choose, grouped, moe_router_reference

VECTOR = 32  # elements of a step of torch's elementwise loops; what is left over is rounded another way
HEAP = 64  # torch's top-k keeps a heap for up to a 64th of the columns; one more place takes three times as long
ONE_THREAD = 32767  # elements that torch does not split between threads, at places that are no such step
AT_ONCE = 2**18  # logits, so that what is made of them stays in the cache
FEW = 16  # rows from which on a second maximum is faster than the top-k of many short groups
SHIFT = 2.0**-21  # of a 16-bit number for each column, see `rank_keys`
SHIFTED_COLUMNS = {torch.bfloat16: 4096, torch.float16: 512}  # beyond these, a number would pass the next lower one


def moe_router_cpu(
    logits,
    top_k,
    scoring="softmax",
    bias=None,
    num_groups=None,
    top_groups=None,
    renormalize=True,
    scale=1.0,
):
    """See `wholecurve.kernels.moe_router.moe_router`. A token's bits do not depend on the other tokens.

    What has as few elements as there are chosen experts goes through NumPy, whose calls take half the time.
    """
    wants_gradient = torch.is_grad_enabled() and (logits.requires_grad or (bias is not None and bias.requires_grad))
    options = (scoring, bias, num_groups, top_groups, renormalize)
    if wants_gradient or logits.dtype == torch.float64:
        return moe_router_reference(logits, top_k, *options, scale)
    if logits.numel() <= AT_ONCE:
        weights, experts = route(logits, top_k, *options)
    else:
        parts = [route(part, top_k, *options) for part in logits.split(max(1, AT_ONCE // logits.shape[1]))]
        weights, experts = (np.concatenate(part) for part in zip(*parts))
    if scale != 1.0:
        weights *= np.float32(scale)
    return torch.from_numpy(weights), torch.from_numpy(experts)


def route(logits, top_k, scoring, bias, num_groups, top_groups, renormalize):
    """(weights, experts) as NumPy arrays, the weights not yet scaled."""
    values = logits.float()
    if bias is None and not grouped(num_groups):
        # the quotient of two powers of a softmax does not contain the sum over all experts
        of_chosen = renormalize and scoring == "softmax"
        choice, scores = values, values if of_chosen else score(values, scoring)
        keys = rank_keys(values, logits.dtype)
        best, columns, unclear = top_columns(keys, None, top_k)
    else:
        of_chosen, scores = False, score(values, scoring)
        choice = scores if bias is None else scores + bias.to(scores.dtype)
        _, columns, unclear = top_columns(*inside_best_groups(choice, num_groups, top_groups), top_k)
    if unclear is not None:
        columns[unclear, :top_k] = choose(choice[unclear], top_k, num_groups, top_groups)
    is_known = of_chosen and keys is values and unclear is None
    weights = (best if is_known else scores.gather(1, columns)).numpy()[:, :top_k]
    with np.errstate(all="ignore"):
        if of_chosen:
            weights = np.exp(weights - weights[:, :1])
            weights /= np.add.reduce(weights, axis=1, keepdims=True)
        elif renormalize:
            weights = weights / (np.add.reduce(weights, axis=1, keepdims=True) + np.float32(1e-20))
    if of_chosen and unclear is not None:  # a NaN that is not chosen is still one in the sum over all
        weights[unclear[values[unclear].isnan().any(dim=1)].numpy()] = np.nan
    return weights, columns.numpy()[:, :top_k].astype(np.int32)


def rank_keys(values, dtype):
    """fp32 numbers that are in the order of `values`, which dtype holds, and fall with the column among equal ones.

    The gap to the next lower number of 16 bits is wider than all the steps by which columns move it; fp32 has no
    such room and hardly any ties. Zeros and infinities stay equal.
    """
    if values.shape[1] > SHIFTED_COLUMNS.get(dtype, 0):
        return values
    return torch.addcmul(values, values.abs(), column_shifts(values.shape[1]))


@functools.lru_cache(maxsize=8)
def column_shifts(num_columns):
    """[columns] fp32, falling from −SHIFT."""
    with torch.inference_mode(False):  # what is made in that mode is of no use outside it
        return torch.arange(1, num_columns + 1, device="cpu") * -SHIFT


def top_columns(values, unclear, count):
    """(values, columns, unclear): [T, count or more], the largest first, and the rows in which that is not clear.

    unclear: None or bool [T], rows that are not clear before. Rows are not clear if two of the largest, or the last
    and one that is left out, are equal or not a number. They come back as None or an int64 tensor.
    """
    width = values.shape[1]
    at_edge = HEAP * count <= width < HEAP * (count + 1)
    best, columns = values.topk(min(count + (not at_edge), width), dim=1)
    unclear = either(unclear, not_falling(best.numpy()))
    if at_edge:
        taken = values.numpy() >= best.numpy()[:, -1:]
        if np.count_nonzero(taken) != count * len(taken):
            unclear = either(unclear, taken.sum(axis=1) != count)
    return best, columns, None if unclear is None else torch.from_numpy(unclear.nonzero()[0])


def not_falling(best):
    """None, or bool [T]: the rows of an array in which a number is not above the one behind it."""
    falls = best[:, :-1] > best[:, 1:]
    return None if np.count_nonzero(falls) == falls.size else ~falls.all(axis=1)


def either(one, other):
    return one if other is None else other if one is None else one | other


def inside_best_groups(choice, num_groups, top_groups):
    """(choice with −inf outside the best groups by the sum of their two best, rows in which these are not clear)."""
    if not grouped(num_groups) or top_groups == num_groups:
        return choice, None
    members = choice.view(len(choice), num_groups, -1)
    if len(choice) < FEW:
        sums = members.topk(2, dim=2).values.sum(dim=2)
    else:
        best, place = members.max(dim=2, keepdim=True)
        sums = best[:, :, 0] + members.scatter(2, place, -torch.inf).amax(dim=2)
    best = sums.topk(top_groups + 1, dim=1).values
    outside = sums < best[:, top_groups - 1 : top_groups]
    return members.masked_fill(outside[:, :, None], -torch.inf).view(choice.shape), not_falling(best.numpy())


def score(logits, scoring):
    """[T, E] scores, each of them from its own logit alone (softmax: from its row)."""
    if scoring == "softmax":
        return logits.softmax(dim=1)
    num_experts = logits.shape[1]
    if num_experts % VECTOR:
        whole = F.pad(logits, (0, -num_experts % VECTOR))
        return score(whole, scoring)[:, :num_experts]
    if logits.numel() > ONE_THREAD:
        parts = logits.split(max(1, ONE_THREAD // num_experts))
        return torch.cat([score(part, scoring) for part in parts]) if len(parts) > 1 else of_each(logits, scoring)
    return of_each(logits, scoring)


def of_each(logits, scoring):
    return logits.sigmoid() if scoring == "sigmoid" else F.softplus(logits, threshold=40).sqrt_()
