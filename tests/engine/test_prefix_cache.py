"""What two requests may share, and what they must not: exact answers whatever the hash says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import greedy, is_idle, prompt_of, tiny_model, tokens_alone
from toy_hybrid import FULL, HYBRID, STATE, ToyModel, plain_tokens, toy_greedy, toy_prompt, window_of

from wholecurve.engine import Engine
from wholecurve.engine.cache import CacheManager, CacheSettings
from wholecurve.engine.cache.prefix import PrefixIndex, PrefixKeys, chained_hash
from wholecurve.engine.sequence import Sequence


def one_bit(parent, content):
    """A hash with which nearly everything collides."""
    return chained_hash(parent, content)[:1].translate(bytes(i & 1 for i in range(256)))


def toy_engine(specs=(FULL,), hash_function=chained_hash, **options):
    sizes = {"cache_tokens": 256, "block_size": 4, "max_batch_tokens": 64, "max_sequences": 4}
    engine = Engine(ToyModel(specs), check=True, **{"prefix_cache": True, **sizes, **options})
    engine.cache.hash_function = hash_function
    return engine


def run(engine, prompt, params=None, cache_salt="", name="r"):
    """(tokens, prompt tokens that came out of the cache) of a request, checked against the plain run."""
    params = params or toy_greedy(6)
    engine.add(name, list(prompt), params, cache_salt=cache_salt)
    tokens, cached = [], None
    while engine.has_unfinished:
        for output in engine.step():
            tokens += output.token_ids
            assert cached in (None, output.num_cached)
            cached = output.num_cached
    assert tokens == plain_tokens(engine.model.cache_specs, tuple(prompt), params)
    assert is_idle(engine)
    return cached


def test_a_prompt_that_comes_again_is_taken_from_the_cache_but_for_its_last_token():
    engine = toy_engine()
    for length, cached in ((1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)):
        prompt = toy_prompt(length, length)
        assert run(engine, prompt) == 0
        assert run(engine, prompt) == cached, length
    stats = engine.stats()
    assert stats.prefix_queried_tokens == 2 * (1 + 3 + 4 + 5 + 8 + 9 + 12 + 13)
    assert stats.prefix_hit_tokens == 4 + 4 + 8 + 8 + 12


def test_the_answer_is_cached_too_so_that_the_next_turn_finds_it():
    engine = toy_engine()
    prompt = toy_prompt(10, 1)
    answer = plain_tokens((FULL,), tuple(prompt), toy_greedy(9))
    run(engine, prompt, toy_greedy(9))
    # of 19 tokens the last one was never computed: four whole blocks
    assert run(engine, [*prompt, *answer, 1, 2, 3]) == 16


def test_a_longer_and_a_shorter_prompt_share_what_they_have_in_common():
    engine = toy_engine()
    text = toy_prompt(30, 1)
    run(engine, text)
    assert run(engine, text[:17]) == 16
    assert run(engine, [*text[:14], *toy_prompt(9, 2)]) == 12
    assert run(engine, [*toy_prompt(1, 9), *text]) == 0


def test_a_cache_that_is_off_keeps_nothing():
    engine = toy_engine(prefix_cache=False)
    for _ in range(2):
        assert run(engine, toy_prompt(20, 1)) == 0
    stats = engine.stats()
    assert stats.blocks_cached == stats.prefix_queried_tokens == stats.prefix_hit_tokens == 0


def test_requests_in_one_batch_share_blocks_while_they_run():
    engine = toy_engine(cache_tokens=64)
    prompt = toy_prompt(33, 1)
    run(engine, prompt)
    for i in range(4):
        engine.add(f"r{i}", [*prompt, i], toy_greedy(6))
    engine.step()
    # four texts of 34 tokens in 16 blocks: 8 shared ones and 1 for each
    assert engine.stats().running == 4 and engine.stats().blocks_used == 12
    tables = [s.blocks[0] for s in engine.scheduler.running]
    assert all(table[:8] == tables[0][:8] for table in tables) and len({table[8] for table in tables}) == 4
    while engine.has_unfinished:
        engine.step()
    assert is_idle(engine)


def test_salts_and_domains_keep_texts_apart():
    engine = toy_engine()
    prompt = toy_prompt(20, 1)
    assert [run(engine, prompt, cache_salt=salt) for salt in ("", "a", "b", "a", "", "b")] == [0, 0, 0, 16, 16, 16]


@pytest.mark.parametrize("hash_function", [chained_hash, one_bit])
@pytest.mark.parametrize(
    ("one", "other"),
    [(("m", "x"), ("x", "m")), (("ab", "c"), ("a", "bc")), (("", "a"), ("a", "")), (("a\0", "b"), ("a", "\0b"))],
)
def test_a_domain_never_passes_for_a_salt(one, other, hash_function):
    """One index, two domains whose parts are the same when they are run together."""
    index = PrefixIndex([])
    roots = [PrefixKeys(domain, 4, hash_function) for domain in (one, other)]
    nodes = [index.find_or_insert(None, keys.root_content, keys.root_digest) for keys in roots]
    assert nodes[0] is not nodes[1]
    content = b"the same"
    children = [index.find_or_insert(node, content, hash_function(node.digest, content)) for node in nodes]
    assert children[0] is not children[1]
    assert index.find(nodes[0], content, children[1].digest) is not children[1]


def test_the_hash_depends_on_everything_before():
    keys = [PrefixKeys(("m", "s"), 2, chained_hash) for _ in range(3)]
    keys[0].extend([1, 2, 3, 4], 2)
    keys[1].extend([1, 9, 3, 4], 2)
    keys[2].extend([1, 2], 1)
    keys[2].extend([1, 2, 3, 4, 5], 2)
    assert keys[0].contents[1] == keys[1].contents[1] and keys[0].digests[1] != keys[1].digests[1]
    assert keys[0].digests == keys[2].digests


@pytest.mark.parametrize("specs", [(FULL,), HYBRID, (window_of(6),), (STATE,)], ids=["full", "all", "window", "state"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_hash_of_one_bit_costs_no_token(specs, data):
    """Nearly all chunks collide, so only the comparison of tokens and parents stands between the texts."""
    engine = toy_engine(specs, one_bit, cache_tokens=96)
    beginnings = [toy_prompt(12, seed) for seed in range(3)]
    for _ in range(data.draw(st.integers(2, 8))):
        # the second chunk is often the same after another first one
        text = [t for _ in range(3) for t in data.draw(st.sampled_from(beginnings))[:4]]
        run(engine, text, cache_salt=data.draw(st.sampled_from(["", "x"])))
    run(engine, text)
    assert run(engine, text) > 0


def test_the_longest_unused_text_is_evicted_first_and_its_end_before_its_beginning():
    engine = toy_engine(cache_tokens=48)
    texts = [toy_prompt(17, seed) for seed in range(3)]
    for text in texts[:2]:
        run(engine, text, toy_greedy(1))
    assert engine.stats().blocks_cached == 8
    run(engine, texts[0], toy_greedy(1))  # used again: the second text is the oldest now
    run(engine, texts[2], toy_greedy(8))  # 24 tokens: all 4 free blocks and 2 of the second text
    assert run(engine, texts[0], toy_greedy(1)) == 16  # and one more for its last token
    assert run(engine, texts[1], toy_greedy(1)) == 4


def test_what_is_computed_again_takes_the_place_of_the_older_copy():
    """A state is missing, so a text is computed anew; its older blocks, unused for long, would be evicted under it."""
    engine = toy_engine((FULL, STATE), cache_tokens=24)  # six blocks, the text needs four
    text = toy_prompt(13, 1)
    run(engine, text, toy_greedy(1))
    (node,) = engine.cache.index.owners(1).values()
    engine.cache.index.detach(node, 1)
    cached = engine.stats().blocks_cached
    assert run(engine, text, toy_greedy(1)) == 0
    assert engine.stats().blocks_cached == cached + 1, "the same blocks of text, and the state again"
    assert run(engine, text, toy_greedy(1)) == 12


def test_a_stale_block_is_not_found_under_its_old_content():
    """A's blocks are reused by B; A comes again and must not hit what is B's now."""
    engine = toy_engine(cache_tokens=20, max_sequences=1)
    a, b = toy_prompt(13, 1), toy_prompt(16, 2)
    run(engine, a, toy_greedy(4))
    run(engine, b, toy_greedy(5))
    assert run(engine, a, toy_greedy(4)) == 0
    assert run(engine, b, toy_greedy(5)) == 4, "of five blocks of B, A has taken the last four"


def test_a_window_needs_only_its_last_blocks():
    """Blocks behind the window are evicted; a longer text still goes on from the end, a shorter one can not."""
    engine = toy_engine((window_of(6),), cache_tokens=64, max_sequences=1, max_batch_tokens=8)
    text = toy_prompt(33, 1)
    run(engine, text, toy_greedy(1))
    assert engine.stats().blocks_cached == 8
    # make others evict the blocks that were given back first: those of the beginning
    run(engine, toy_prompt(40, 2), toy_greedy(1))
    assert run(engine, text, toy_greedy(1)) == 32
    assert run(engine, text[:10], toy_greedy(1)) == 0


def test_a_state_is_found_only_where_it_was_saved():
    """Chunks end where a state is worth keeping; where a text branches off, the second one leaves a state behind."""
    engine = toy_engine((FULL, STATE))
    text = toy_prompt(21, 1)
    assert run(engine, text) == 0
    assert run(engine, text) == 20
    branch = [*text[:13], *toy_prompt(8, 2)]
    assert run(engine, branch) == 0, "there is no state after 12 tokens yet"
    other = [*text[:13], *toy_prompt(8, 3)]
    assert run(engine, other) == 12


def test_groups_with_blocks_of_other_sizes_agree_on_whole_chunks():
    specs = (FULL, window_of(9), STATE)
    engine = toy_engine(specs, cache_tokens=240, block_size=(4, 6, 1))
    assert engine.cache.chunk_tokens == 12
    for length, cached in ((12, 0), (13, 12), (24, 12), (25, 24), (40, 36)):
        prompt = toy_prompt(length, length)
        assert [run(engine, prompt) for _ in range(4)] == [0, cached, cached, cached]


def test_real_kernels_give_the_same_tokens_from_the_cache():
    model = tiny_model()
    engine = Engine(model, cache_tokens=256, block_size=8, max_batch_tokens=24, prefix_cache=True, check=True)
    prompt = prompt_of(40, 1)
    for length in (40, 40, 33, 32, 25):
        tokens = engine.generate([prompt[:length]], greedy(8))[0]
        assert tokens == tokens_alone(model, tuple(prompt[:length]), greedy(8))
    assert engine.stats().prefix_hit_tokens == 32 + 32 + 24 + 24


def test_two_models_in_one_index_differ_by_their_domain():
    digests = []
    for domain in ("a", "b", "a"):
        manager = CacheManager([FULL], CacheSettings(block_sizes=4, prefix_cache=True, domain=domain))
        sequence = Sequence("r", toy_prompt(9, 1), toy_greedy(1))
        manager.match(sequence)
        digests.append(sequence.prefix_keys.digests)
    assert digests[0] == digests[2] and not set(digests[0]) & set(digests[1])


def test_an_index_forgets_nodes_that_nothing_needs():
    engine = toy_engine(cache_tokens=40)
    for seed in range(30):
        run(engine, toy_prompt(30, seed), toy_greedy(2), cache_salt=str(seed))
    nodes = sum(map(len, engine.cache.index._nodes.values()))
    assert nodes <= 10 + 10, "one node per cached block, and the roots above them"
    engine.cache.forget_prefixes()
    assert not engine.cache.index._nodes and engine.stats().blocks_cached == 0
    engine.scheduler.check_integrity()
