"""Sample and match: which drafted tokens stay, given what was sampled in their places.

Row i of a verification is sampled as if the first i drafts were right: with the random number of its own output index,
and with the penalties, grammar and minimum length that hold after those drafts. While the sampled tokens equal the
drafts, each row was therefore sampled exactly as it would have been without speculation; the first that differs is
still such a token, and what follows it rests on a wrong draft. Hence the tokens are those of a run without drafts,
greedy or sampled, as exactly as the logits of a row do not depend on the rows around it. A draft x that has nothing to
do with the random number is accepted with chance p(x), as by rejection sampling of a draft that was not drawn
(Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, algorithm 1 with q(x) = 1); a draft model draws with the same
number, so that its drafts match more often.
"""


def usable_drafts(drafts: list[int], limit: int, vocab_size: int) -> list[int]:
    """What an engine may schedule of a proposal: at most `limit` drafts, up to the first that is no token."""
    for position, draft in enumerate(drafts[:limit]):
        if not 0 <= draft < vocab_size:
            return drafts[:position]
    return drafts[:limit]


def num_matching(drafts: list[int], sampled: list[int]) -> int:
    """How many drafts, from the first on, equal the token that was sampled in their place.

    sampled: the token of every row, of which there is one more than drafts. The tokens of a step are those of the rows
    up to and with this number: what stays, and one more.
    """
    for position, draft in enumerate(drafts):
        if sampled[position] != draft:
            return position
    return len(drafts)
