"""Does every quotation stand where it says?"""

from pathlib import Path

from wholecurve.curves.claims.nouns import Claim, Published, Sentence
from wholecurve.errors import UserError


def misquotes(published: Published, folder: str | Path) -> list[str]:
    """What does not stand in the stored documents as quoted: one sentence per quote, text of a claim, or digits.

    `folder` holds the files named in the documents. An empty list means that every quote is where it says.
    Raises UserError when no document names a file, or a file cannot be read.
    """
    named = [document for document in published.documents.values() if document.file]
    if not named:
        raise UserError("no document names a file, so no quote can be looked up")
    lines = {document.id: _lines(Path(folder) / document.file) for document in named}
    found = []
    for number in published.numbers.values():
        if number.document in lines:
            text = _line(lines[number.document], number.line)
            start = text.find(number.quote) if number.column is None else number.column - 1
            if start < 0 or not text.startswith(number.quote, start):
                found.append(f"number {number.id!r}: line {number.line} does not read {number.quote!r} there")
    for claim in published.claims:
        if claim.document in lines:
            text = " ".join(lines[claim.document][claim.line - 1 : claim.last_line])
            if not _in_order(claim.text.split(" … "), text):
                found.append(f"claim {claim.id!r}: line {claim.line} does not read {claim.text!r}")
        for sentence in _sentences(claim):
            text = _line(lines.get(sentence.document, []), sentence.line)
            if sentence.document in lines and not _in_order(sentence.quote.split(" … "), text):
                found.append(f"claim {claim.id!r}: line {sentence.line} does not read {sentence.quote!r}")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start})") from None


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1] if number <= len(lines) else ""


def _in_order(pieces: list[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _sentences(claim: Claim) -> list[Sentence]:
    return [check.arguments["says"] for check in claim.checks if "says" in check.arguments]
