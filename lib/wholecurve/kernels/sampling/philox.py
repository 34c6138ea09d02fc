"""Random numbers by counter in plain torch: Philox-4x32-10, the generator behind Triton's `tl.rand`.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", https://doi.org/10.1145/2063384.2063405, section 3.3.
A number depends on a seed and a counter alone: no state is kept, so no other row can change it.
"""

import torch

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
# who draws: the streams of one (seed, step) are independent, so a draft model may sample with the seeds of its target
SAMPLING_STREAM, VERIFICATION_STREAM = 0, 1


def philox(seeds, counters, stream=0):
    """Four random 32-bit words per element, as int64 tensors: those of `tl.philox(seed, low, high, stream, 0)`, which
    for stream 0 are those of `tl.randint4x(seed, counter)`.

    seeds, counters: int64 tensors that broadcast, read as 64 unsigned bits. stream: an int below 2³².
    """
    seeds, counters = torch.broadcast_tensors(seeds, counters)
    shape, on_cpu = seeds.shape, seeds.device.type == "cpu"
    seeds, counters = seeds.reshape(-1), counters.reshape(-1)
    if on_cpu:  # numpy starts an operation several times as fast, and there are a hundred
        seeds, counters = seeds.numpy(), counters.numpy()
    words = philox_words(seeds, counters, stream)
    return tuple((torch.from_numpy(word) if on_cpu else word).view(shape) for word in words)


def philox_words(seeds, counters, stream):
    """`philox` for int64 arrays of one shape, of torch or of numpy."""
    key_0, key_1 = seeds, seeds >> 32
    word_0, word_1 = counters & MASK, counters >> 32
    word_2, word_3 = counters * 0 + stream, counters * 0
    for _ in range(ROUNDS):
        # products wrap as int64, but their 64 bits are the unsigned ones. Only factors need a mask: what else stands
        # above the 32 bits of a word or a key is cut off with the next one
        product_0, product_2 = word_0 * MULTIPLIERS[0], word_2 * MULTIPLIERS[1]
        word_0 = ((product_2 >> 32) ^ word_1 ^ key_0) & MASK
        word_2 = ((product_0 >> 32) ^ word_3 ^ key_1) & MASK
        word_1, word_3 = product_2, product_0
        key_0, key_1 = key_0 + KEY_STEPS[0], key_1 + KEY_STEPS[1]
    return word_0, word_1 & MASK, word_2, word_3 & MASK


def uniform(high, low):
    """float64 numbers in [0, 1) with 53 random bits from two 32-bit words."""
    return (high.double() * 2.0**21 + (low >> 11).double()) * 2.0**-53


def sampling_uniform(seeds, steps):
    """The number in [0, 1) that `sampling` draws with, float64, for int64 seeds and steps."""
    words = philox(seeds, steps, SAMPLING_STREAM)
    return uniform(words[0], words[1])


def verification_uniforms(seeds, steps):
    """The numbers in [0, 1) with which `verification` (accepts a draft, draws instead of it) at these steps."""
    words = philox(seeds, steps, VERIFICATION_STREAM)
    return uniform(words[0], words[1]), uniform(words[2], words[3])
