"""Every quote stands where it says, and every number of the texts is a row or is named as left out."""

import csv
import re
from functools import cache

import pytest
from claim_builders import PUBLISHED, TEXTS, needs_texts

from wholecurve.curves.claims.checks import CHECKS, DECIDING
from wholecurve.curves.claims.quotes import misquotes
from wholecurve.errors import UserError
from wholecurve.readers.published import NUMBER_FIELDS, read_claims

# Digits inside names, with what they name.
NAMES = {
    "models": r"DeepSeek-V4\.1-Flash|DSV4\.1-Flash|Qwen3\.8-Flash-Next|Qwen3\.8 Flash Next 176B|GLM-5\.3(?:-Flash)?"
    r"|MiniMax-M3\.1-Flash|\bK3\b|Gemma 4(?: 12B)?|Fable 5\.2",
    "hardware": r"B200|B300|H100(?: 80GB)?|RTX PRO 6000|NVL72",
    "precision and parallelism": r"[bB][fF]16|FP8|DP8",
    "versions": r"vLLM 0\.31|2026-11-03|a679bb8",
    "percentiles": r"\b[pP]9[09]\b|90th",
    "links and handles": r"ow\.ly/\w+|@\w+|gemma-4-12",
}
TOKEN = re.compile(
    r"\d[\d,]*(?:\.\d+)?|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twice|double-digit|single)\b",
    re.IGNORECASE,
)


@cache
def published():
    return read_claims(PUBLISHED)


def readme_table(heading):
    """The rows of the table under a heading of the README, as lists of cells."""
    section = (PUBLISHED / "README.md").read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def left_out():
    """(document, line, token) of every number that the README leaves out."""
    for document, lines, printed, reason in readme_table("Numbers of the texts that are left out"):
        assert reason
        for line in lines.split(", "):
            for token in printed.split(", "):
                yield document, int(line), token


def tokens():
    """(document, line, token, start) of every number in the texts, names apart."""
    for document in published().documents.values():
        for at, text in enumerate((TEXTS / document.file).read_text(encoding="utf-8").split("\n"), start=1):
            named = [m.span() for pattern in NAMES.values() for m in re.finditer(pattern, text)]
            for match in TOKEN.finditer(text):
                token = match.group().rstrip(",")
                if not any(a <= match.start() and match.start() + len(token) <= b for a, b in named):
                    yield document.id, at, token, match.start()


@needs_texts
def test_every_quote_stands_at_its_line_and_column():
    assert misquotes(published(), TEXTS) == []
    assert all(number.column for number in published().numbers.values())


@needs_texts
def test_every_number_of_the_texts_is_a_row_or_left_out_with_a_reason():
    rows = {}
    for number in published().numbers.values():
        start = number.column - 1 + number.offset()
        rows.setdefault((number.document, number.line), []).append((start, start + len(number.text)))
    excluded, used, uncovered = set(left_out()), set(), []
    for document, line, token, start in tokens():
        in_row = any(a <= start and start + len(token) <= b for a, b in rows.get((document, line), []))
        if in_row:
            continue
        if (document, line, token) in excluded:
            used.add((document, line, token))
        else:
            uncovered.append((document, line, token))
    assert uncovered == []
    listed = {(document, line) for document, line, _ in excluded}
    assert listed == {(document, line) for document, line, _ in used}, "a left-out line without such a number"


@needs_texts
def test_a_shifted_quote_is_found(tmp_path):
    for document in published().documents.values():
        text = (TEXTS / document.file).read_text(encoding="utf-8")
        (tmp_path / document.file).write_text("one line more\n" + text, encoding="utf-8")
    found = misquotes(published(), tmp_path)
    # A piece such as a bare "1.09×" can stand in the neighbouring line as well; whole quotes with a column cannot.
    assert sum(sentence.startswith("number ") for sentence in found) == len(published().numbers)
    assert sum(sentence.startswith("claim ") for sentence in found) >= len(published().claims)


def test_quotes_need_the_texts(tmp_path):
    with pytest.raises(UserError, match=r"000_8be08055625dce24\.txt: cannot be read \(No such file"):
        misquotes(published(), tmp_path)


def test_repeated_prints_name_the_first_and_agree_with_it_within_rounding():
    numbers = published().numbers
    for number in numbers.values():
        if number.repeats:
            first = numbers[number.repeats]
            assert not first.repeats
            assert number.unit == first.unit
            assert number.interval.overlaps(first.interval), (number.id, first.id)


def test_every_number_says_what_it_is():
    for number in published().numbers.values():
        assert number.metric and number.framing and number.unit
        if number.framing in ("direct", "same speed", "same throughput", "self", "ratio", "cost", "capacity"):
            assert number.who and number.against, number.id


def test_the_files_have_the_documented_columns():
    with (PUBLISHED / "numbers.csv").open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file))
    assert set(header) == set(NUMBER_FIELDS)
    readme = (PUBLISHED / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in NUMBER_FIELDS)


def test_the_readme_lists_every_check_with_its_fields():
    rows = {name.strip("`"): fields for name, fields, _ in readme_table("Checks")}
    assert list(rows) == list(CHECKS)
    assert list(rows)[: len(DECIDING)] == list(DECIDING)
    for name, check in CHECKS.items():
        parameters = [p for p in check.__kwdefaults__ or {}] + list(check.__annotations__)
        for field in set(parameters) - {"return", "claim", "published"}:
            assert re.search(rf"\b{field}\b", rows[name]), (name, field)
