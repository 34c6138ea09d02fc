"""Top-k, top-p and min-p in Triton without a sort: a threshold per row, found digit by digit.

Numbers have order-keeping 32-bit keys, and as in a radix select each pass fixes the next digit of the threshold's key,
by counting, or weighing, what reaches every candidate. The number of passes depends on the dtype alone.
"""

import torch
import triton
import triton.language as tl

from wholecurve.kernels.sampling.device import TINY, load_logits, row_top, scale_of, value_of, weights_of
from wholecurve.kernels.sampling.weigh import is_wanted, row_mass, weigh_launch

TILES = ("LOW", "BITS", "CHUNK", "BLOCK_CHUNKS", "BLOCK_DIGITS")


@triton.jit
def is_searched(temperature, limit, vocab, BY_MASS: tl.constexpr):
    """Whether a row's top-k or, with BY_MASS, top-p leaves anything out that a draw could otherwise give."""
    if BY_MASS:
        cuts = limit < 1.0
    else:
        cuts = (limit > 0) & (limit < vocab)
    return cuts & (temperature >= TINY)


@triton.jit
def mass_to_reach(limit, total):
    """The mass that the tokens of a top-p reach; never 0, for one token is always kept."""
    return tl.maximum(limit * total, 1e-30)


@triton.jit
def next_digit(totals, target, RADIX: tl.constexpr, BLOCK_DIGITS: tl.constexpr):
    """The highest digit whose total reaches the target: digit 0 does, and totals fall as digits rise."""
    digits = tl.arange(0, BLOCK_DIGITS)
    return tl.sum(((digits > 0) & (digits < RADIX) & (totals >= target)).to(tl.int32), axis=0)


@triton.jit
def load_totals(partials, row, chunks, FIRST, STOP, RADIX, BLOCK_CHUNKS: tl.constexpr, BLOCK_DIGITS: tl.constexpr):
    """What every chunk of a row found at the digits FIRST to STOP − 1 of a pass, [BLOCK_CHUNKS, BLOCK_DIGITS]."""
    lanes, digits = tl.arange(0, BLOCK_CHUNKS)[:, None], tl.arange(0, BLOCK_DIGITS)[None, :]
    inside = (lanes < chunks) & (digits >= FIRST) & (digits < STOP)
    return tl.load(partials + (row * chunks + lanes) * (RADIX + 1) + digits, mask=inside, other=0)


@triton.jit(do_not_specialize=["shift"])
def search_kernel(
    logits,  # [rows, V]
    counts,  # [rows, V], any pointer without HAS_PENALTIES
    penalties,  # [rows, 3] fp32, any pointer without HAS_PENALTIES
    drafts,  # [rows / GROUP, GROUP − 1] int64, any pointer when GROUP is 1
    temperature,  # [rows / GROUP] fp32
    limits,  # [rows / GROUP] top_p fp32 with BY_MASS, else top_k
    tops,  # [rows, chunks] fp32, any pointer without HAS_MASSES
    masses,  # [rows, chunks] fp32, any pointer without BY_MASS or with HAS_EARLIER
    kept_mass,  # [rows] fp32, any pointer without BY_MASS and HAS_EARLIER
    former_prefixes,  # [rows] int64, any pointer when FIRST
    former_totals,  # [rows, chunks, RADIX + 1] fp32 with BY_MASS, else int32, any pointer when FIRST
    prefixes,  # [rows] int64
    found_counts,  # [rows, chunks, RADIX + 1] int32, any pointer without HAS_COUNTS
    found_masses,  # [rows, chunks, RADIX + 1] fp32, any pointer without HAS_MASSES
    vocab,
    chunks,
    row_stride,
    count_stride,
    shift,
    GROUP: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    HAS_EARLIER: tl.constexpr,
    BY_MASS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_MASSES: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    LOW: tl.constexpr,
    BITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_DIGITS: tl.constexpr,
):
    """One program handles one chunk of one row in one pass: how many of its tokens, and what mass of them, reach the
    threshold that each digit at bit `shift` would give. The digit before is known from what the pass before found.
    """
    # 64 bits before the products: rows · V passes 2³¹
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if not is_wanted(drafts, row, GROUP):
        return
    heat, limit = tl.load(temperature + row // GROUP), tl.load(limits + row // GROUP)
    if not is_searched(heat, limit, vocab, BY_MASS):
        return
    RADIX: tl.constexpr = 1 << BITS
    scale = scale_of(heat)
    if HAS_MASSES:
        top = row_top(tops, row, chunks, BLOCK_CHUNKS)
    unit = tl.full([], 1, tl.int64) << shift
    prefix = unit * 0
    if not FIRST:
        if not BY_MASS:
            target = limit
        elif HAS_EARLIER:
            target = mass_to_reach(limit, tl.load(kept_mass + row))
        else:
            target = mass_to_reach(limit, row_mass(tops, masses, row, top, scale, chunks, BLOCK_CHUNKS))
        found = load_totals(former_totals, row, chunks, 1, RADIX, RADIX, BLOCK_CHUNKS, BLOCK_DIGITS)
        digit = next_digit(tl.sum(found, axis=0), target, RADIX, BLOCK_DIGITS)
        prefix = tl.load(former_prefixes + row) + digit * (unit << BITS)
    if chunk == 0:
        tl.store(prefixes + row, prefix)

    _, _, values = load_logits(
        logits, counts, penalties, row, chunk * CHUNK, vocab, row_stride, count_stride, HAS_PENALTIES, CHUNK
    )
    if HAS_MASSES:
        weights = weights_of(values, top, scale)
    slot = (row * chunks + chunk) * (RADIX + 1)
    # the last pass tells what is at the threshold from what is above it, for which it needs both ends
    for candidate in tl.static_range(0 if LAST else 1, RADIX + 1 if LAST else RADIX):
        reaches = values >= value_of(prefix + candidate * unit, LOW)
        if HAS_COUNTS:
            tl.store(found_counts + slot + candidate, tl.sum(reaches.to(tl.int32), axis=0))
        if HAS_MASSES:
            tl.store(found_masses + slot + candidate, tl.sum(tl.where(reaches, weights, 0.0), axis=0))


@triton.jit
def tighter(threshold, last, other_threshold, other_last):
    """The stricter of two filters."""
    lower = tl.where(threshold == other_threshold, tl.minimum(last, other_last), last)
    return tl.maximum(threshold, other_threshold), tl.where(threshold < other_threshold, other_last, lower)


@triton.jit
def last_tie(
    logits,
    counts,
    penalties,
    row,
    found,
    ties,  # [BLOCK_CHUNKS] how many tokens of each chunk are at the threshold `found`
    budget,
    vocab,
    chunks,
    row_stride,
    count_stride,
    HAS_PENALTIES: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """The id of the last of the first `budget` tokens that are at the threshold; all it reads is one chunk."""
    chunk = tl.minimum(tl.sum((tl.cumsum(ties, axis=0) < budget).to(tl.int32), axis=0), chunks - 1)
    budget -= tl.sum(tl.where(tl.arange(0, BLOCK_CHUNKS) < chunk, ties, 0), axis=0)
    # a window that ends with the row reads as much as any other
    start = tl.maximum(tl.minimum(chunk * CHUNK, vocab - CHUNK), 0).to(tl.int64)
    ids, _, values = load_logits(
        logits, counts, penalties, row, start, vocab, row_stride, count_stride, HAS_PENALTIES, CHUNK
    )
    tied = (values == found) & (ids >= chunk * CHUNK)
    within = tied & (tl.cumsum(tied.to(tl.int32), axis=0) <= budget)
    return tl.max(tl.where(within, ids, -1), axis=0)


@triton.jit
def settle_kernel(
    logits,  # [rows, V]
    counts,  # [rows, V], any pointer without HAS_PENALTIES
    penalties,  # [rows, 3] fp32, any pointer without HAS_PENALTIES
    drafts,  # [rows / GROUP, GROUP − 1] int64, any pointer when GROUP is 1
    temperature,  # [rows / GROUP] fp32
    limits,  # [rows / GROUP] top_p fp32 with BY_MASS, else top_k, any pointer without SEARCHED
    min_p,  # [rows / GROUP] fp32, any pointer without HAS_FLOOR
    tops,  # [rows, chunks] fp32, any pointer without HAS_MASSES and HAS_FLOOR
    masses,  # [rows, chunks] fp32, any pointer without HAS_MASSES
    prefixes,  # [rows] int64, any pointer without SEARCHED
    found_counts,  # [rows, chunks, RADIX + 1] int32, any pointer without SEARCHED
    found_masses,  # [rows, chunks, RADIX + 1] fp32, any pointer without HAS_MASSES
    kept_mass,  # [rows] fp32: read with BY_MASS and HAS_EARLIER, written without BY_MASS and with HAS_MASSES
    thresholds,  # [rows] fp32, read too with HAS_EARLIER
    lasts,  # [rows] int32, read too with HAS_EARLIER
    vocab,
    chunks,
    row_stride,
    count_stride,
    GROUP: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    HAS_EARLIER: tl.constexpr,
    SEARCHED: tl.constexpr,
    BY_MASS: tl.constexpr,
    HAS_MASSES: tl.constexpr,
    HAS_FLOOR: tl.constexpr,
    LOW: tl.constexpr,
    BITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_DIGITS: tl.constexpr,
):
    """One program handles one row: the filter that a search found, as a threshold and the last token kept of those
    that are at it, and, with HAS_FLOOR, the filter of min-p.
    """
    row = tl.program_id(0).to(tl.int64)
    if not is_wanted(drafts, row, GROUP):
        return
    RADIX: tl.constexpr = 1 << BITS
    heat = tl.load(temperature + row // GROUP)
    scale = scale_of(heat)
    threshold = -float("inf")
    last = vocab
    if HAS_EARLIER:
        threshold, last = tl.load(thresholds + row), tl.load(lasts + row)
    if HAS_MASSES or HAS_FLOOR:
        top = row_top(tops, row, chunks, BLOCK_CHUNKS)
    if HAS_MASSES:
        if BY_MASS and HAS_EARLIER:
            total = tl.load(kept_mass + row)
        else:
            total = row_mass(tops, masses, row, top, scale, chunks, BLOCK_CHUNKS)
    if SEARCHED:
        limit = tl.load(limits + row // GROUP)
        if is_searched(heat, limit, vocab, BY_MASS):
            reaching = load_totals(found_counts, row, chunks, 0, RADIX + 1, RADIX, BLOCK_CHUNKS, BLOCK_DIGITS)
            if HAS_MASSES:
                heavy = load_totals(found_masses, row, chunks, 0, RADIX + 1, RADIX, BLOCK_CHUNKS, BLOCK_DIGITS)
            if BY_MASS:
                digit = next_digit(tl.sum(heavy, axis=0), mass_to_reach(limit, total), RADIX, BLOCK_DIGITS)
            else:
                digit = next_digit(tl.sum(reaching, axis=0), limit, RADIX, BLOCK_DIGITS)
            found = value_of(tl.load(prefixes + row) + digit.to(tl.int64) * (1 << LOW), LOW)
            digits = tl.arange(0, BLOCK_DIGITS)[None, :]
            above = tl.sum(tl.where(digits == digit + 1, reaching, 0), axis=1)  # [BLOCK_CHUNKS]
            ties = tl.sum(tl.where(digits == digit, reaching, 0), axis=1) - above
            if HAS_MASSES:
                mass_above = tl.sum(tl.sum(tl.where(digits == digit + 1, heavy, 0.0), axis=0), axis=0)
                weight = tl.max(weights_of(tl.full([1], 0.0, tl.float32) + found, top, scale), axis=0)
            if BY_MASS:
                # tokens without a weight are at the threshold only where rounding left the sum short: all are kept
                budget = tl.ceil((mass_to_reach(limit, total) - mass_above) / tl.maximum(weight, 1e-38))
                budget = tl.minimum(budget, 2147483520.0).to(tl.int32)
            else:
                budget = limit.to(tl.int32) - tl.sum(above, axis=0)
                if HAS_MASSES:
                    total = mass_above + weight * budget.to(tl.float32)
            last_kept = last_tie(
                logits,
                counts,
                penalties,
                row,
                found,
                ties,
                budget,
                vocab,
                chunks,
                row_stride,
                count_stride,
                HAS_PENALTIES=HAS_PENALTIES,
                CHUNK=CHUNK,
                BLOCK_CHUNKS=BLOCK_CHUNKS,
            )
            threshold, last = tighter(threshold, last, found, last_kept)
    if HAS_FLOOR:
        least = tl.load(min_p + row // GROUP)
        floor = tl.where(least > 0, top + tl.log(tl.maximum(least, 1e-38)) * heat, -float("inf"))
        threshold, last = tighter(threshold, last, tl.where(heat >= TINY, floor, -float("inf")), vocab)
    tl.store(thresholds + row, threshold)
    tl.store(lasts + row, last)
    if HAS_MASSES and not BY_MASS:
        tl.store(kept_mass + row, total)


def filter_launches(rows, top_k, top_p, min_p, tiles):
    """([launches], (thresholds [rows] fp32, lasts [rows] int32)): a row keeps what is above its threshold, and of the
    tokens that are at it those up to its last one. No launches and () where nothing is filtered.
    """
    if top_k is None and top_p is None and min_p is None:
        return [], ()
    launches, weighed = [], (None, None)
    if top_p is not None or min_p is not None:
        launch, (tops, _, masses, _, _) = weigh_launch(rows, (), tiles)
        launches, weighed = [launch], (tops, masses)
    kept_mass = rows.empty() if top_k is not None and top_p is not None else None
    filtered = rows.empty(), rows.empty(dtype=torch.int32)
    searches = [(limits, by_mass) for limits, by_mass in ((top_k, False), (top_p, True)) if limits is not None]
    for index, (limits, by_mass) in enumerate(searches or [(None, False)]):
        options = dict(HAS_EARLIER=index > 0, BY_MASS=by_mass)
        found = (None, None, None)
        if limits is not None:
            tensors = (limits, *weighed, kept_mass)
            passes, found = search_launches(rows, tensors, by_mass or top_p is not None, tiles, options)
            launches += passes
        launches.append(
            rows.launch(
                settle_kernel,
                (len(rows.logits),),
                (limits, min_p, *weighed, *found, kept_mass, *filtered),
                tiles=tiles,
                names=TILES,
                SEARCHED=limits is not None,
                HAS_MASSES=limits is not None and top_p is not None,
                HAS_FLOOR=min_p is not None and index == max(0, len(searches) - 1),
                **options,
            )
        )
    return launches, filtered


def search_launches(rows, tensors, masses_last, tiles, options):
    """([launches] of all passes, (prefixes, counts, masses) of the last one). masses_last: whether that sums masses."""
    launches, passes, by_mass = [], tiles["PASSES"], options["BY_MASS"]
    shape = (tiles["CHUNKS"], (1 << tiles["BITS"]) + 1)
    prefixes = counts = masses = None
    for step in range(passes):
        first, last = step == 0, step == passes - 1
        former = prefixes, masses if by_mass else counts
        prefixes = rows.empty(dtype=torch.int64)
        counts = rows.empty(*shape, dtype=torch.int32) if last or not by_mass else None
        masses = rows.empty(*shape) if by_mass or (last and masses_last) else None
        launches.append(
            rows.launch(
                search_kernel,
                (len(rows.logits), tiles["CHUNKS"]),
                (*tensors, *former, prefixes, counts, masses),
                (32 - tiles["BITS"] * (step + 1),),
                tiles=tiles,
                names=TILES,
                HAS_COUNTS=counts is not None,
                HAS_MASSES=masses is not None,
                FIRST=first,
                LAST=last,
                **options,
            )
        )
    return launches, (prefixes, counts, masses)
