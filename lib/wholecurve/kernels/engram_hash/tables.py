"""What an Engram layer's hash is made of: multipliers, prime table sizes and the compressed vocabulary.

Source: the demo of Engram, https://github.com/deepseek-ai/Engram (engram_demo_v1.py), which DeepSeek-V4.1 follows;
the multipliers of Qwen4-Exp: transformers, models/qwen4_exp. Every number here decides where a trained table is read,
so none may change.
"""

import math

import numpy as np

LAYER_STEP = 10007  # between the seeds of neighbouring layers
WORD = 2**64
GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # of splitmix64


def multipliers(layer, max_ngram, vocab_size, seed=0):
    """int64 [max_ngram]: one odd number for each token of an n-gram, by NumPy's default generator.

    layer: index of the model's layer. vocab_size: of the *compressed* vocabulary; products of its ids stay below 2⁶³.
    """
    drawn = np.random.default_rng(seed + LAYER_STEP * layer).integers(half_bound(vocab_size), size=max_ngram)
    return 2 * drawn + 1


def splitmix_multipliers(position, max_ngram, vocab_size, seed=0):
    """The same by splitmix64, as Qwen4-Exp draws them. position: of the layer among the layers that hash."""
    states = [seed + LAYER_STEP * position + GOLDEN_GAMMA * (token + 2) for token in range(max_ngram)]
    return np.array([2 * (splitmix_output(state % WORD) % half_bound(vocab_size)) + 1 for state in states])


def splitmix_output(state):
    """The output function of splitmix64 (Steele, Lea and Flood 2014, figure 17) for one state."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


def half_bound(vocab_size):
    """Exclusive bound r of the odd numbers 2r + 1 whose products with every id fit a signed 64-bit number."""
    return max(1, np.iinfo(np.int64).max // vocab_size // 2)


def head_primes(num_layers, max_ngram, heads, table_size):
    """int64 [num_layers, (max_ngram − 1) · heads]: rows of each head's table, n-grams of 2 first.

    The primes from `table_size` on, each used once over all layers. table_size: a number, or one for each n-gram size.
    """
    sizes = [table_size] * (max_ngram - 1) if isinstance(table_size, int) else table_size
    used, layers = set(), []
    for _ in range(num_layers):
        row = []
        for size in sizes:
            candidate = size - 1
            for _ in range(heads):
                candidate += 1
                while candidate in used or not is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                row.append(candidate)
        layers.append(row)
    return np.array(layers, dtype=np.int64)


def is_prime(number):
    """By trial division: table sizes are some ten million."""
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def head_offsets(primes):
    """int64, as long as `primes`: the first row of each head in one table that holds them one after the other."""
    return np.concatenate([[0], np.cumsum(primes)[:-1]])


def compressed_ids(tokenizer):
    """int64 [vocabulary]: ids of texts, the same for tokens whose texts differ in case, accents or white space alone.

    tokenizer: a `tokenizers.Tokenizer`. Texts are normalised to NFKC, then NFD without accents, lower case, one space
    for a run of white space, none around; a lone space stays, and so does a text of which nothing would be left. A
    token that is no whole UTF-8 text is taken by its name in the vocabulary. Ids count texts in the order of their
    first token. The pad id of a hash is its place in here.
    """
    from tokenizers import Regex, normalizers

    lone_space = "\ue000"  # private use: no token has it
    simplify = normalizers.Sequence(
        [
            *(normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()),
            *(normalizers.Replace(Regex("[ \t\r\n]+"), " "), normalizers.Replace(Regex("^ $"), lone_space)),
            *(normalizers.Strip(), normalizers.Replace(lone_space, " ")),
        ]
    )
    ids, texts = {}, []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        is_partial = "\ufffd" in text
        texts.append(tokenizer.id_to_token(token) if is_partial else simplify.normalize_str(text) or text)
    return np.array([ids.setdefault(text, len(ids)) for text in texts], dtype=np.int64)
