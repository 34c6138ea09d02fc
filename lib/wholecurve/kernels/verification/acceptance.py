"""Acceptance of drafts: conditional rates, marginal rates, and the tokens that a step gives by either.

"3 drafts at 75 %" is ambiguous. Read as conditional, a draft is accepted with 75 % once all before it are, and a step
gives 1 + 0.75 + 0.75² + 0.75³ = 2.734 tokens; read as marginal, each of the three is accepted in 75 % of all steps, and
it gives 1 + 3 · 0.75 = 3.25.
"""


def marginal_rates(conditional):
    """How often each position is accepted over all steps, from how often it is once all positions before it are."""
    check_rates(conditional)
    marginal, product = [], 1.0
    for rate in conditional:
        product *= rate
        marginal.append(product)
    return marginal


def conditional_rates(marginal):
    """The converse of `marginal_rates`; what can never be reached is accepted with 0. ValueError for rates that rise:
    a position is accepted in no more steps than the one before it.
    """
    check_rates(marginal)
    conditional, former = [], 1.0
    for position, rate in enumerate(marginal):
        if rate > former:
            raise ValueError(f"marginal acceptance rises from {former} to {rate} at draft {position + 1}; it cannot")
        conditional.append(rate / former if former else 0.0)
        former = rate
    return conditional


def tokens_per_step(conditional):
    """Expected tokens of a step, the acceptance length: one, and one for each draft that is accepted."""
    return 1.0 + sum(marginal_rates(conditional))


def rate_for_length(length, num_drafts):
    """The conditional rate a, the same at all positions, with 1 + a + … + a^num_drafts = length.

    ValueError for a length outside 1 … num_drafts + 1.
    """
    if not 1 <= length <= num_drafts + 1:
        raise ValueError(f"{num_drafts} drafts give between 1 and {num_drafts + 1} tokens per step, not {length}")
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if tokens_per_step([middle] * num_drafts) < length:
            low = middle
        else:
            high = middle
    return high


def check_rates(rates):
    """ValueError for a rate outside 0 … 1."""
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"an acceptance rate must lie between 0 and 1, {rate} does not")
