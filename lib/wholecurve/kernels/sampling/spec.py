"""Cost of sampling, its test cases and its bench cases."""

from wholecurve.kernels.cost import ITEM_BYTES, Cost, ceil_div, next_power_of_2

MAX_VOCAB = 2**20
# tokens of one program, bits of a threshold that one pass finds
CONFIGS = {
    "4096 tokens, 4 bits": {"chunk": 4096, "bits": 4, "num_warps": 8},
    "8192 tokens, 4 bits": {"chunk": 8192, "bits": 4, "num_warps": 8},
    "2048 tokens, 4 bits": {"chunk": 2048, "bits": 4, "num_warps": 4},
    "4096 tokens, 2 bits": {"chunk": 4096, "bits": 2, "num_warps": 8},
}
# bits of an fp32 number that are always 0 when it came from a narrower one, rounded down to a multiple of 4
LOW_BITS = {"bfloat16": 16, "float16": 12, "float32": 0}
NEUTRAL = (1.0, 0.0, 0.0)  # penalties that do nothing

WARM, MIXED = (0.8,), (0.8, 0.0, 1.5)
PENALTIES = ((1.2, 0.5, 0.25), NEUTRAL)
# chunks are 4096 tokens, and powers of two from 16 on below
TESTS = [
    {"num_rows": 0, "vocab": 100, "temperature": WARM},
    *({"num_rows": 3, "vocab": vocab, "temperature": MIXED} for vocab in (1, 2, 15, 17, 128, 4095, 4096, 4097)),
    {"num_rows": 2, "vocab": 8200, "temperature": (0.0,), "logprobs": True, "row_gap": 3},
    {"num_rows": 3, "vocab": 4100, "temperature": MIXED, "logprobs": True, "dtype": "float32", "row_gap": 5},
    {"num_rows": 3, "vocab": 4200, "temperature": (0.0, 50.0), "tied": True},
    {"num_rows": 3, "vocab": 300, "temperature": WARM, "top_k": (1, 0, 20), "tied": True},
    {"num_rows": 3, "vocab": 129, "temperature": WARM, "top_k": (-1, 129, 128), "dtype": "float16"},
    {"num_rows": 2, "vocab": 127, "temperature": WARM, "top_k": (5, 2000), "dtype": "float32", "row_gap": 1},
    {"num_rows": 3, "vocab": 300, "temperature": (2.0, 1.0, 1e-6), "top_p": (0.9, 1.0, 0.0), "tied": True},
    {"num_rows": 2, "vocab": 100, "temperature": (3.0, 0.0), "top_p": (0.5,), "dtype": "float16"},
    {"num_rows": 1, "vocab": 100, "temperature": WARM, "top_p": (0.7,), "dtype": "float32"},
    {"num_rows": 4, "vocab": 5000, "temperature": (3.0,), "min_p": (0.1, 0.0, 1.0, 0.02)},
    {"num_rows": 4, "vocab": 200, "temperature": MIXED, "top_k": (30, 50, 0), "top_p": (0.8, 0.9, 0.6, 1.0)},
    {"num_rows": 2, "vocab": 100, "temperature": WARM, "top_k": (0, 40), "top_p": (0.9,), "min_p": (0.05,)},
    {"num_rows": 1, "vocab": 5000, "temperature": (3.0,), "top_k": (2000,), "top_p": (0.9,), "min_p": (0.01,)},
    # all alike: the last token kept is in the second chunk
    {"num_rows": 1, "vocab": 6000, "temperature": WARM, "top_k": (5000,), "scale": 0.0},
    {"num_rows": 2, "vocab": 90, "temperature": MIXED, "top_p": (0.8,), "logprobs": True, "holes": True},
    {"num_rows": 6, "vocab": 200, "temperature": MIXED, "penalties": PENALTIES, "logprobs": True, "scale": 0.5},
    {"num_rows": 1, "vocab": 100, "temperature": WARM, "penalties": PENALTIES, "top_p": (0.9,)},
]
USUAL = {"temperature": (0.7,), "top_k": (50,), "top_p": (0.9,)}
BENCH = {
    f"{name}-{num_rows}x{vocab}": {"num_rows": num_rows, "vocab": vocab} | options
    for name, options in (
        ("greedy", {"temperature": (0.0,)}),
        ("temperature", {"temperature": (0.7,)}),
        ("top-p", {"temperature": (0.7,), "top_p": (0.9,)}),
        ("top-k-top-p", USUAL),
    )
    for num_rows, vocab in ((64, 131072), (256, 131072), (1, 262144))
} | {
    "top-k-top-p-fp32-64x131072": {"num_rows": 64, "vocab": 131072, "dtype": "float32"} | USUAL,
    "penalties-64x131072": {"num_rows": 64, "vocab": 131072, "temperature": (0.7,), "penalties": PENALTIES[:1]},
}
# small enough for a CPU: the vocabulary of SmolLM2, which the engine's own studies on a CPU serve
CPU_BENCH = {
    f"{name}-16x49152": {"num_rows": 16, "vocab": 49152} | options
    for name, options in (
        ("greedy", {"temperature": (0.0,)}),
        ("temperature", {"temperature": (0.7,)}),
        ("top-p", {"temperature": (0.7,), "top_p": (0.9,)}),
        ("top-k-top-p", USUAL),
    )
}


def plan(vocab, dtype, has_penalties, chunk=4096, bits=4, num_warps=8):
    """Tile sizes by the names that the Triton form gives them; never dependent on the number of rows."""
    chunk = min(chunk, max(16, next_power_of_2(vocab)))
    chunks = ceil_div(vocab, chunk)
    low = 0 if has_penalties else LOW_BITS[dtype]
    return {
        "CHUNK": chunk,
        "CHUNKS": chunks,
        "BLOCK_CHUNKS": next_power_of_2(chunks),
        "BITS": bits,
        "BLOCK_DIGITS": 2 << bits,
        "LOW": low,
        "PASSES": (32 - low) // bits,
        "num_warps": max(1, min(num_warps, chunk // 256)),
    }


def of_row(values, row):
    """A row's value of a parameter whose values the rows take in turns; None without one."""
    return None if values is None else values[row % len(values)]


class RowTraffic:
    """Bytes that the programs of one row load and store, kernel by kernel, in the order of the launches.

    loads, stores: so far. logit_bytes: per token, counts of penalties included. fixed_bytes: that each program loads
    beside. gate_bytes: that each program reads to see whether the row is wanted.
    """

    def __init__(self, tiles, vocab, logit_bytes, fixed_bytes=0, gate_bytes=0, wanted=True):
        self.tiles, self.vocab = tiles, vocab
        self.logit_bytes, self.fixed_bytes = logit_bytes, fixed_bytes
        self.gate_bytes, self.wanted = gate_bytes, wanted
        self.chunks, self.radix = tiles["CHUNKS"], 1 << tiles["BITS"]
        self.loads = self.stores = 0

    def all_chunks(self):
        return self.vocab * self.logit_bytes + self.chunks * self.fixed_bytes

    def one_chunk(self):
        return min(self.tiles["CHUNK"], self.vocab) * self.logit_bytes + self.fixed_bytes

    def weigh(self, filtered, logprobs):
        self.loads += self.chunks * self.gate_bytes
        if not self.wanted:
            return
        self.loads += self.all_chunks() + self.chunks * (4 + 8 * filtered)
        self.stores += self.chunks * (12 + 8 * logprobs)

    def search(self, searched, by_mass, earlier, masses_last):
        """Every pass. masses_last: whether the last pass of a count sums masses too."""
        chunks, passes = self.chunks, self.tiles["PASSES"]
        self.loads += passes * chunks * (self.gate_bytes + 8 * self.wanted)
        if not (searched and self.wanted):
            return
        for step in range(passes):
            first, last = step == 0, step == passes - 1
            masses, counts = by_mass or (last and masses_last), not by_mass or last
            digits = self.radix + 1 if last else self.radix - 1
            target = (4 if earlier else 8 * chunks) if by_mass else 0
            former = 0 if first else target + chunks * (self.radix - 1) * 4 + 8
            self.loads += self.all_chunks() + chunks * (4 * chunks * masses + former)
            self.stores += 8 + chunks * digits * 4 * (masses + counts)

    def settle(self, searched, has_search, by_mass, earlier, masses, floor):
        chunks = self.chunks
        self.loads += self.gate_bytes
        if not self.wanted:
            return
        self.loads += 4 + 8 * earlier + 4 * chunks * (masses or floor) + 4 * has_search + 4 * floor
        self.loads += masses * (4 if by_mass and earlier else 8 * chunks)
        if searched:
            self.loads += chunks * (self.radix + 1) * 4 * (1 + masses) + 8 + self.one_chunk()
        self.stores += 8 + 4 * (masses and not by_mass)

    def filter(self, warm, top_k, top_p, min_p):
        """All launches before the last `weigh`."""
        if top_k is None and top_p is None and min_p is None:
            return
        if top_p is not None or min_p is not None:
            self.weigh(filtered=False, logprobs=False)
        cuts = {"top_k": warm and 0 < (top_k or 0) < self.vocab, "top_p": warm and top_p is not None and top_p < 1}
        searches = [name for name, value in (("top_k", top_k), ("top_p", top_p)) if value is not None]
        for index, name in enumerate(searches):
            by_mass, earlier = name == "top_p", index > 0
            self.search(cuts[name], by_mass, earlier, top_p is not None)
            floor = min_p is not None and index == len(searches) - 1
            self.settle(cuts[name], True, by_mass, earlier, top_p is not None, floor)
        if not searches:
            self.settle(False, False, False, False, False, True)

    def pick(self, warm, filtered, logprobs, own_bytes):
        self.loads += 8 * self.chunks + 4
        if warm:
            self.loads += 4 * self.chunks + 16 + self.one_chunk() + 8 * filtered
        self.loads += logprobs * (12 * self.chunks + own_bytes)
        self.stores += 8 + 4 * logprobs


def cost(
    num_rows,
    vocab,
    temperature,
    top_k=None,
    top_p=None,
    min_p=None,
    penalties=None,
    logprobs=False,
    scale=3.0,
    row_gap=0,
    tied=False,
    holes=False,
    dtype="bfloat16",
    config=None,
):
    """Cost of one call. Rows take the values of temperature, top_k, top_p, min_p and penalties in turns.

    penalties: (repetition, presence, frequency) each, with counts in int16, which a row with NEUTRAL ones does not
    read. scale: of the logits, row_gap: elements between their rows, tied: whether they are whole numbers, holes:
    whether some are −inf and NaN, all of which costs nothing.
    flops per token of a row that is not greedy: the difference to the largest, its product with 1/temperature and the
    running sum; with top_p the running sum of the ordered ones; with penalties the factor, the two terms and their
    differences; with logprobs a difference and a sum. Exponentials and comparisons are not counted.
    """
    tiles = plan(vocab, dtype, penalties is not None, **(config or {}))
    item, has_filter = ITEM_BYTES[dtype], any(limits is not None for limits in (top_k, top_p, min_p))
    loads = stores = compulsory = flops = 0
    for row in range(num_rows):
        warm = of_row(temperature, row) > 0
        penalised = penalties is not None and of_row(penalties, row) != NEUTRAL
        limits = [of_row(values, row) for values in (top_k, top_p, min_p)]
        traffic = RowTraffic(tiles, vocab, item + 2 * penalised, 12 * (penalties is not None))
        traffic.filter(warm, *limits)
        traffic.weigh(has_filter, logprobs)
        traffic.pick(warm, has_filter, logprobs, item)
        loads, stores = loads + traffic.loads, stores + traffic.stores
        given = 4 + 16 * warm + 4 * sum(limit is not None for limit in limits) + 12 * (penalties is not None)
        compulsory += vocab * (item + 2 * penalised) + given + 8 + 4 * logprobs
        flops += vocab * (warm * (3 + (top_p is not None)) + 5 * penalised + 2 * logprobs)
    return Cost(compulsory, flops, load_bytes=loads, store_bytes=stores, flops_issued=0)
