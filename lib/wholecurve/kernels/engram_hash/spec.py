"""Cost of the n-gram hash, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div

BLOCK_SEQUENCES = 128  # bounds of sequences that a program compares its tokens with at once
CONFIGS = {"16 tokens": {"block_tokens": 16}, "32 tokens": {"block_tokens": 32}, "64 tokens": {"block_tokens": 64}}


def case(lengths, max_ngram=3, heads=2, **rest):
    """A case. lengths: new tokens of each sequence."""
    return {"lengths": tuple(lengths), "max_ngram": max_ngram, "heads": heads, **rest}


# a program takes 32 tokens: sequences that end before, at and after its edge, shorter than an n-gram and empty
TESTS = [
    case([]),
    case([0, 0]),
    case([1], max_ngram=2, heads=1),
    case([31, 1, 0, 2, 30], has_history=True),
    case([32], heads=3),
    case([33], max_ngram=4, heads=8, has_history=True, vocab_size=500, distinct_ids=20),
    case([0, 1, 2, 3, 4, 5, 0], max_ngram=4, heads=5, has_history=True, barrier_every=4),
    case([20, 45], max_ngram=4, heads=8, vocab_size=70, distinct_ids=65, barrier_every=7, dtype="int32"),
    case([1] * 130, has_history=True, vocab_size=64, distinct_ids=13, dtype="int32"),
    case([40], has_history=True, wraps=True),
    case([3, 9], has_history=True, barrier_id=1, vocab_size=6, distinct_ids=6),
]
# DeepSeek-V4.1: n-grams of 2, 3 and 4 tokens with 8 heads each, ids compressed from 129,280, heads of 16 million
# rows; a step of 64 requests, and a prefill of 8 sequences
COMPRESSED = {"max_ngram": 4, "heads": 8, "has_history": True, "vocab_size": 129280, "table_size": 16_000_000}
BENCH = {
    "decode-64": case([1] * 64, distinct_ids=50, **COMPRESSED),
    "prefill-8192": case([1024] * 8, distinct_ids=2000, **COMPRESSED),
}


def cost(
    lengths,
    max_ngram,
    heads,
    has_history=False,
    vocab_size=None,
    distinct_ids=None,
    barrier_every=None,
    barrier_id=None,
    wraps=False,
    table_size=1000,
    dtype="int64",
    config=None,
):
    """Cost of one call; whole numbers are not counted as flops.

    distinct_ids: different ids among the tokens, each of which is an entry of the compressed vocabulary (vocab_size
    entries). table_size: a number that no head has fewer rows than. dtype: of ids and bounds. Barriers, table sizes and
    products that wrap change what is computed, not what it costs.
    """
    num_tokens, num_sequences, item = sum(lengths), len(lengths), ITEM_BYTES[dtype]
    total_heads = (max_ngram - 1) * heads
    constants = 8 * (max_ngram + 2 * total_heads)
    programs = ceil_div(num_tokens, (config or {"block_tokens": 32})["block_tokens"])
    # the tokens k places before: those of a sequence from its k-th on, its history for the others
    new = sum(max(0, length - back) for length in lengths for back in range(max_ngram))
    old = (max_ngram * num_tokens - new) if has_history else 0
    rows = 8 * num_tokens * total_heads
    bounds = item * (num_sequences + 1)
    table = 0 if vocab_size is None else 8
    return Cost(
        bytes_min=(item * num_tokens + bounds + constants + table * (distinct_ids or 0) + rows) * (num_tokens > 0)
        + item * num_sequences * (max_ngram - 1) * (has_history and num_tokens > 0),
        flops=0,
        load_bytes=programs * (item * num_sequences + constants)
        + item * (num_tokens + new + old)
        + table * (new + old),
        store_bytes=rows,
        flops_issued=0,
    )
