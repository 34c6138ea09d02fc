"""Rows of an n-gram memory: every token's last n-grams, hashed."""

import torch

from wholecurve.kernels import forms
from wholecurve.kernels.engram_hash.cpu import engram_hash_cpu
from wholecurve.kernels.engram_hash.reference import engram_hash_reference

FORMS = ("reference", "cpu", "triton", "interpret")


def form_for(device):
    """Name of the form that `engram_hash` runs on `device` by default."""
    return forms.form_for(device, FORMS)


def engram_hash(
    token_ids,
    cu_seqlens,
    multipliers,
    primes,
    offsets,
    pad_id,
    history=None,
    compressed_ids=None,
    form=None,
    *,
    barrier_id=None,
):
    """Table rows of the n-grams that end at each token: [T, heads_total] int64.

    token_ids: [T] int32 or int64, new tokens of all sequences one after the other; sequence b owns cu_seqlens[b] to
    cu_seqlens[b + 1]. cu_seqlens: [B + 1] int32 or int64, from 0 to T. multipliers: [N] int64, one for each token of
    an n-gram. primes, offsets: [heads_total] int64, rows of each head's table and where they begin; the first
    heads_total / (N − 1) heads hash 2-grams, the next ones 3-grams, up to N. See `tables` for where these come from.
    history: [B, N − 1] int32 or int64, the ids before each sequence's new tokens, the last one last, −1 where there
    is none; None if no sequence has any. compressed_ids: None, or [vocabulary] int64 that ids but pad_id go through.
    Row of head h: offset + (XOR over k < n of id[t − k] · multiplier[k]) mod prime, products of 64 bits that wrap, mod
    never negative. An id that is not seen counts as pad_id (one of the compressed vocabulary). A negative id is not
    seen, nor is anything before it: what ends a document or stands for an image. barrier_id: None, or an id that no
    later token sees, nor anything before it, while it sees its own past itself (an end-of-text token of Qwen4-Exp).
    ValueError for shapes or dtypes outside this contract and, on a CPU, for cu_seqlens that do not rise from 0 to T.
    IndexError on a CPU for ids from the length of compressed_ids on; a GPU takes pad_id for them.
    """
    if problem := refusal(token_ids, cu_seqlens, history, (multipliers, primes, offsets), compressed_ids):
        raise ValueError(f"engram_hash: {problem}")
    if token_ids.device.type == "cpu":
        check_values(token_ids, cu_seqlens, history, compressed_ids)
    chosen = forms.choose_form(form, token_ids.device, FORMS)
    arguments = (token_ids, cu_seqlens, multipliers, primes, offsets, pad_id, history, compressed_ids)
    if chosen in ("reference", "cpu"):
        run = engram_hash_cpu if chosen == "cpu" else engram_hash_reference
        return run(*arguments, barrier_id=barrier_id)
    from wholecurve.kernels.engram_hash.kernel import engram_hash_triton

    return engram_hash_triton(*arguments, barrier_id=barrier_id, interpreted=chosen == "interpret")


def refusal(token_ids, cu_seqlens, history, constants, compressed_ids):
    """What is wrong with these arguments, None if nothing is. A text is only built for the error: that takes time."""
    multipliers, primes, offsets = constants
    num_tokens, max_ngram, num_sequences = token_ids.shape[0], multipliers.shape[0], cu_seqlens.shape[0] - 1
    if token_ids.dim() != 1:
        return f"token_ids must be [tokens], they are {tuple(token_ids.shape)}"
    if max_ngram < 2:
        return f"multipliers must be 2 or more, there are {max_ngram}"
    if primes.shape != offsets.shape or primes.dim() != 1 or len(primes) % (max_ngram - 1):
        return (
            f"primes {tuple(primes.shape)} and offsets {tuple(offsets.shape)} must be as many heads for each of "
            f"{max_ngram - 1} n-gram sizes"
        )
    if num_sequences < 0:
        return "cu_seqlens must have an entry more than there are sequences"
    if num_sequences == 0 and num_tokens:
        return f"{num_tokens} tokens belong to no sequence"
    if history is not None and history.shape != (num_sequences, max_ngram - 1):
        return f"history must be [{num_sequences}, {max_ngram - 1}], it is {tuple(history.shape)}"
    return refusal_of_dtypes(
        {"token_ids": token_ids, "cu_seqlens": cu_seqlens, "history": history},
        {"multipliers": multipliers, "primes": primes, "offsets": offsets, "compressed_ids": compressed_ids},
    )


def refusal_of_dtypes(ids, constants):
    """What is wrong with the dtypes of these tensors by name, None if nothing is."""
    for tensors, dtypes in ((ids, (torch.int32, torch.int64)), (constants, (torch.int64,))):
        for name, tensor in tensors.items():
            if tensor is not None and tensor.dtype not in dtypes:
                return f"{name} must be {' or '.join(map(str, dtypes))}, they are {tensor.dtype}"
    return None


def check_values(token_ids, cu_seqlens, history, compressed_ids):
    """What only the numbers themselves can tell, where reading them costs nothing."""
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != len(token_ids) or bounds != sorted(bounds):
        raise ValueError(f"engram_hash: cu_seqlens must rise from 0 to {len(token_ids)}, they are {bounds}")
    if compressed_ids is None:
        return
    for name, ids in (("token_ids", token_ids), ("history", history)):
        largest = int(ids.max()) if ids is not None and ids.numel() else -1
        if largest >= len(compressed_ids):
            raise IndexError(
                f"engram_hash: {name} hold {largest} but compressed_ids have {len(compressed_ids)} entries"
            )
