"""Cost of speculative verification, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost
from wholecurve.kernels.sampling import spec as sampling_spec
from wholecurve.kernels.sampling.spec import RowTraffic, of_row, plan

CONFIGS = {name: sampling_spec.CONFIGS[name] for name in ("4096 tokens, 4 bits", "8192 tokens, 4 bits")}

WARM, MIXED = (0.8,), (0.8, 0.0)
# every number of accepted drafts with each kind of row; chunks are 4096 tokens, and powers of two from 16 on below
TESTS = [
    {"num_requests": 0, "num_drafts": 3, "vocab": 50, "temperature": WARM, "accepted": (0,)},
    {"num_requests": 3, "num_drafts": 0, "vocab": 129, "temperature": MIXED, "accepted": (0,)},
    {"num_requests": 1, "num_drafts": 1, "vocab": 2, "temperature": WARM, "accepted": (0,)},
    {"num_requests": 4, "num_drafts": 3, "vocab": 127, "temperature": (0.0,), "accepted": (0, 1, 2, 3)},
    {"num_requests": 4, "num_drafts": 3, "vocab": 128, "temperature": WARM, "accepted": (0, 1, 2, 3)},
    {
        "num_requests": 4,
        "num_drafts": 3,
        "vocab": 100,
        "temperature": (1.3,),
        "accepted": (3, 2, 1, 0),
        "probs": "float32",
    },
    {"num_requests": 5, "num_drafts": 2, "vocab": 60, "temperature": MIXED, "accepted": (2, 0, 1), "probs": "bfloat16"},
    {"num_requests": 2, "num_drafts": 1, "vocab": 4100, "temperature": (3.0,), "accepted": (0, 1), "probs": "float32"},
    {"num_requests": 2, "num_drafts": 1, "vocab": 4100, "temperature": (3.0,), "accepted": (0,), "dtype": "float32"},
    {"num_requests": 2, "num_drafts": 2, "vocab": 64, "temperature": WARM, "accepted": (1,), "dtype": "float16"},
    {
        **{"num_requests": 5, "num_drafts": 4, "vocab": 50, "temperature": MIXED, "probs": "float32"},
        **{"drafts": (4, 2, 0, 1, 3), "accepted": (3, 2, 0, 0, 3)},
    },
    {"num_requests": 3, "num_drafts": 2, "vocab": 40, "temperature": WARM, "accepted": (0, 1), "drafts": (1, 2)},
    {"num_requests": 4, "num_drafts": 2, "vocab": 70, "temperature": MIXED, "accepted": (0, 1, 2), "synthetic": True},
    {
        **{"num_requests": 2, "num_drafts": 2, "vocab": 90, "temperature": MIXED, "probs": "float32"},
        **{"drafts": (1, 2), "accepted": (0, 2), "top_k": (10,), "top_p": (0.9,)},
    },
    {"num_requests": 2, "num_drafts": 1, "vocab": 90, "temperature": WARM, "accepted": (0, 1), "top_p": (0.8,)},
    {"num_requests": 2, "num_drafts": 1, "vocab": 90, "temperature": WARM, "accepted": (0, 1), "min_p": (0.1,)},
]
STEP = {"num_requests": 64, "num_drafts": 3, "vocab": 131072}
# as 3 drafts at 75 % come out: a quarter stops at each draft, of those that have come so far
ACCEPTED = (0, 3, 3, 1, 3, 0, 3, 2, 3, 1, 3, 0, 3, 2, 3, 0)
BENCH = {
    "sampled-64x4x131072": STEP | {"temperature": (0.7,), "accepted": ACCEPTED, "probs": "float32"},
    "n-gram-64x4x131072": STEP | {"temperature": (0.7,), "accepted": ACCEPTED},
    "greedy-64x4x131072": STEP | {"temperature": (0.0,), "accepted": ACCEPTED},
    "top-k-top-p-64x4x131072": STEP
    | {"temperature": (0.7,), "accepted": ACCEPTED, "probs": "float32", "top_k": (50,), "top_p": (0.9,)},
    "synthetic-64x4x131072": STEP | {"temperature": (0.7,), "accepted": ACCEPTED, "synthetic": True},
    "sampled-1x4x262144": STEP
    | {"num_requests": 1, "vocab": 262144, "temperature": (0.7,), "accepted": (1,), "probs": "float32"},
}
# small enough for a CPU: the vocabulary of SmolLM2, which the engine's own studies on a CPU serve
CPU_BENCH = {
    "sampled-4x4x49152": {"num_requests": 4, "num_drafts": 3, "vocab": 49152}
    | {"temperature": (0.7,), "accepted": (0, 3, 1, 2), "probs": "float32"},
    "greedy-4x4x49152": {"num_requests": 4, "num_drafts": 3, "vocab": 49152}
    | {"temperature": (0.0,), "accepted": (0, 3, 1, 2)},
}


def cost(
    num_requests,
    num_drafts,
    vocab,
    temperature,
    accepted,
    drafts=None,
    probs=None,
    top_k=None,
    top_p=None,
    min_p=None,
    synthetic=False,
    scale=3.0,
    row_gap=0,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call. Requests take the values of the tuples in turns.

    accepted: drafts that stay. drafts: how many there are, None for num_drafts of them. probs: dtype of the draft's
    chances, None without them. scale: of the logits, row_gap: elements between their rows, which cost nothing.
    bytes_min counts the rows of logits up to the first rejection, which no implementation can do without; what the
    Triton form loads has those after it too.
    flops: as in sampling per token of those rows; per token of a residual its difference and its sum.
    """
    tiles = plan(vocab, dtype, False, **(config or {}))
    item, probs_item = ITEM_BYTES[dtype], 0 if probs is None else ITEM_BYTES[probs]
    limits, chunks = (top_k, top_p, min_p), tiles["CHUNKS"]
    filtered = any(values is not None for values in limits)
    window = min(tiles["CHUNK"], vocab)
    loads = stores = compulsory = flops = 0
    for request in range(num_requests):
        drafted = num_drafts if drafts is None else of_row(drafts, request)
        stay = min(of_row(accepted, request), drafted)
        warm = of_row(temperature, request) > 0
        replaced = warm and not synthetic and stay < drafted
        own = [of_row(values, request) for values in limits]
        for position in range(num_drafts + 1):
            gate_bytes = 8 if position and num_drafts else 0
            traffic = RowTraffic(tiles, vocab, item, gate_bytes=gate_bytes, wanted=position <= drafted)
            traffic.filter(warm, *own)
            traffic.weigh(filtered, logprobs=False)
            loads, stores = loads + traffic.loads, stores + traffic.stores

        # the drafts, the judge
        loads += 8 * num_drafts + 4 + 16
        if synthetic:
            loads += 4 * drafted
        elif warm:
            loads += drafted * (8 * chunks + item + probs_item + 8 * filtered)
        else:
            loads += drafted * 8 * chunks
        stores += 4 + 8 * num_drafts
        # what a rejected draft leaves
        if not synthetic and num_drafts:
            loads += 4 * chunks
            if warm:
                loads += chunks * (4 + 8 * (stay < num_drafts))
            if replaced:
                loads += vocab * (item + probs_item) + chunks * (12 * chunks + 8 * filtered)
                stores += 4 * chunks
        # the token that is added
        loads += 4 + 8 * chunks + 4
        if warm:
            loads += 8 * (not synthetic and stay < num_drafts) + 4 * chunks + 16 + window * item + 8 * filtered
            loads += replaced * (4 * chunks + window * probs_item)
        stores += 8

        rows = stay + 1
        given = 4 + 16 * warm + 4 * sum(limit is not None for limit in own) + 8 * drafted
        compulsory += rows * vocab * item + given + 8 * (num_drafts + 1) + 4
        compulsory += 4 * drafted if synthetic else probs_item * (stay + vocab * replaced)
        flops += warm * (rows * vocab * (3 + (top_p is not None)) + 2 * vocab * replaced)
    return Cost(compulsory, flops, load_bytes=loads, store_bytes=stores, flops_issued=0)
