"""Text of a planned length: words that are one token each, and stay so side by side.

A random id decoded to text and tokenised again seldom is the same id; most "random" prompts of that kind have another
length at the server (vllm PR#44708, sglang PR#15732). Words that begin with a blank do not merge with their neighbours
in tokenizers that split at blanks first, so text of such words has exactly as many tokens as words.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

# How byte-level and SentencePiece vocabularies write the blank that a word begins with.
BLANK_AND_LETTERS = re.compile(r"[\u0120\u2581]([A-Za-z]{2,})")
FEWEST_WORDS = 256
# One text, not a list: it is read as prose and would be 400 lines otherwise.
COMMON_WORDS = """
able above across act add after again age ago air all almost alone along also always among and animal another answer
any appear area arm around art ask away baby back bad bag ball bank base bear beat because become bed been before
began behind being believe best better between big bird bit black blood blue board boat body book born both bottom box
boy branch bread break bring brother brought brown build built bus business busy buy call came camp can capital car
care carry case cat catch cause cell center certain chair chance change chart check chief child choose circle city
class clean clear clock close cloth cloud coast cold color column come common complete consider contain control cook
cool copy corn corner correct cost could count country course cover create crop cross crowd cry current cut dance dark
day deal dear decide deep degree depend desert design develop differ direct discuss distant divide do doctor does dog
done door double down draw dream dress drink drive drop dry during each ear early earth ease east eat edge effect egg
eight either electric else end energy engine enough enter equal even evening event ever every exact example except
excite exercise expect experience eye face fact fair fall family famous far farm fast fat father favor fear feed feel
feet fell few field fig fight figure fill final find fine finger finish fire first fish fit five flat floor flow
flower fly follow food foot for force forest form forward found four free fresh friend from front fruit full fun game
garden gas gather gave general gentle get girl give glad glass go gold gone good got govern grand grass gray great
green grew ground group grow guess guide hair half hand happen happy hard has hat have head hear heart heat heavy held
help her here high hill him his history hit hold hole home hope horse hot hour house how huge human hundred hunt hurry
ice idea if imagine inch include indicate industry insect instant instrument interest invent iron island job join joy
jump just keep key kind king knew know lady lake land language large last late laugh law lay lead learn least leave
led left leg length less let letter level lie life lift light like line list listen little live locate log long look
lost lot loud love low machine made magnet main major make man many map mark market mass master match material matter
may mean meant measure meat meet melody men metal method middle might mile milk million mind mine minute miss mix
modern molecule moment money month moon more morning most mother motion mountain
""".split()  # noqa: SIM905


@dataclass(frozen=True)
class Words:
    """``words`` to write with, without their blanks. ``exact``: n of them are n tokens of the tokenizer they are of."""

    words: np.ndarray = field(repr=False)
    exact: bool

    def draw(self, rng: np.random.Generator, tokens: int) -> str:
        """``tokens`` words, each with a blank in front, so that two texts joined are as long as both together."""
        return "".join(" " + word for word in self.words[rng.integers(0, len(self.words), size=tokens)])


@lru_cache(maxsize=4)
def words_of(tokenizer: Any | None) -> Words:
    """Words that are single tokens of this tokenizer; common English ones where there is none, or where it has few."""
    if tokenizer is None:
        return Words(np.array(COMMON_WORDS), exact=False)
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    candidates = {index: match[1] for index, piece in enumerate(pieces) if (match := _word(piece))}
    encoded = tokenizer([" " + word for word in candidates.values()], add_special_tokens=False)["input_ids"]
    words = [word for (index, word), ids in zip(candidates.items(), encoded) if list(ids) == [index]]
    if len(words) < FEWEST_WORDS:
        return Words(np.array(COMMON_WORDS), exact=False)
    found = Words(np.array(words), exact=True)
    sample = found.draw(np.random.default_rng(0), 4096)
    return found if len(tokenizer.encode(sample, add_special_tokens=False)) == 4096 else Words(found.words, exact=False)


def _word(piece: str | None) -> re.Match | None:
    return BLANK_AND_LETTERS.fullmatch(piece) if piece else None
