"""Published claims: a YAML file of claims, with the documents and printed numbers that they speak of.

    documents: documents.csv      # or a list of mappings with the same fields; this name when left out
    numbers: numbers.csv          # the same
    claims:
      - id: bf16-throughput
        document: vendor-post
        line: 14                  # where the claim stands; last_line where it goes on
        text: 21% more throughput # its own words, " … " where some are left out
        checks:
          - arithmetic: {claimed: gain, formula: percent more, of: [ours, theirs]}
          - runs: {numbers: [gain], says: {line: 57, quote: average two runs}}

A document needs `id`, a number `id`, `document`, `printed`, `unit`, `line` and `quote`; the other columns are
the fields of `Document` and `Number` in `wholecurve.curves.claims.nouns`, and `value` for people, which must
be what `printed` says. The checks and their fields are the functions of `wholecurve.curves.claims.checks`.
"""

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

from wholecurve.curves.claims.binding import Binder, line_number
from wholecurve.curves.claims.checks import DECIDING
from wholecurve.curves.claims.nouns import BOUNDS, FRAMINGS, Check, Claim, Document, Number, Published
from wholecurve.curves.claims.printed import UNITS_OF_SUFFIX, parse
from wholecurve.errors import UserError
from wholecurve.readers.text_files import check_last_line, csv_lines, read_text

DOCUMENT_FIELDS = tuple(field.name for field in fields(Document))
NUMBER_FIELDS = (*(field.name for field in fields(Number)), "value")
NUMBER_NEEDS = ("id", "document", "printed", "unit", "line", "quote")
CLAIM_NEEDS = ("id", "document", "line", "text", "checks")

# Fields that a mapping may give as other than text. YAML would read printed digits as numbers and lose how they stood.
YAML_KINDS = {"line": (int, str), "column": (int, str), "n": (int, str), "approximate": (bool, str)}

# Where a row stands, for messages, and its cells.
Row = tuple[str, dict]


def read_claims(path: str | Path) -> Published:
    """The claims of a YAML file, or of `claims.yaml` in a folder.

    Raises UserError in one line, naming file, row or claim, and field, for what is missing, unknown, given
    twice, or of the wrong kind.
    """
    path = Path(path)
    path = path / "claims.yaml" if path.is_dir() else path
    content = _yaml(path)
    if not isinstance(content, dict) or "claims" not in content:
        raise UserError(f"{path}: a mapping with the key 'claims' is needed")
    if unknown := set(content) - {"documents", "numbers", "claims"}:
        raise UserError(f"{path}: key {min(map(str, unknown))!r} is unknown; known are documents, numbers, claims")
    documents, numbers = {}, {}
    for where, cells in _rows(path, "documents", content, DOCUMENT_FIELDS, ("id",)):
        _add(where, documents, Document(**cells))
    for where, cells in _rows(path, "numbers", content, NUMBER_FIELDS, NUMBER_NEEDS):
        _add(where, numbers, _number(where, cells, documents))
    for number in numbers.values():
        if number.repeats and number.repeats not in numbers:
            raise UserError(f"{path}: number {number.id!r} repeats {number.repeats!r}, which is not there")
    claims, binder = {}, Binder(documents, numbers)
    if not isinstance(content["claims"], list) or not content["claims"]:
        raise UserError(f"{path}: claims must be a list of one claim or more")
    for position, given in enumerate(content["claims"], start=1):
        _add(f"{path}, claim {position}", claims, _claim(path, position, given, documents, binder))
    return Published(documents, numbers, tuple(claims.values()))


def _yaml(path: Path) -> object:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice, of which YAML would silently keep the last."""

    def mapping(loader, node):
        seen = []
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = loader.construct_object(key, deep=True)
            if name in seen:
                raise UserError(f"{path}, line {key.start_mark.line + 1}: key {name!r} is given twice")
            seen.append(name)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(read_text(path, "a YAML file"), Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None


def _rows(path: Path, kind: str, content: dict, known: tuple[str, ...], needed: tuple[str, ...]) -> list[Row]:
    """Rows of documents or numbers, from the list in the claims file or the CSV file that it names."""
    given = content.get(kind, f"{kind}.csv")
    if isinstance(given, str):
        rows = _csv(path.parent / given)
    elif isinstance(given, list) and all(isinstance(row, Mapping) for row in given):
        rows = [(f"{path}, {kind} {at}", dict(row)) for at, row in enumerate(given, start=1)]
    else:
        raise UserError(f"{path}: {kind} must name a CSV file or be a list of mappings")
    for where, cells in rows:
        if unknown := [name for name in cells if name not in known]:
            raise UserError(f"{where}: column {unknown[0]!r} is unknown; known are {', '.join(known)}")
        for name in needed:
            if cells.get(name) in (None, ""):
                raise UserError(f"{where}: {name} is missing")
        for name, cell in cells.items():
            if type(cell) not in YAML_KINDS.get(name, (str,)):
                raise UserError(f"{where}: {name} is {cell!r}; text is needed (in quotes, to keep digits as printed)")
        cells.update({name: str(cell) for name, cell in cells.items()})
    return rows


def _csv(path: Path) -> list[Row]:
    text = read_text(path, "a CSV file")
    (_, columns), *lines = csv_lines(path, text)
    if len(set(columns)) < len(columns):
        raise UserError(f"{path}: a column name occurs twice")
    for number, cells in lines:
        if len(cells) != len(columns):
            raise UserError(f"{path}, line {number}: {len(cells)} cells, but {len(columns)} columns are named")
    check_last_line(path, text)
    return [(f"{path}, line {number}", dict(zip(columns, cells))) for number, cells in lines]


def _add(where: str, known: dict, noun) -> None:
    if noun.id in known:
        raise UserError(f"{where}: id {noun.id!r} is given twice")
    known[noun.id] = noun


def _number(where: str, cells: dict, documents: Mapping[str, Document]) -> Number:
    where = f"{where} (number {cells['id']!r})"
    if cells["document"] not in documents:
        raise UserError(f"{where}: document {cells['document']!r} is not among the documents")
    try:
        printed = parse(cells["printed"])
    except UserError as error:
        raise UserError(f"{where}: printed {error}") from None
    unit = cells["unit"]
    if unit not in UNITS_OF_SUFFIX.get(printed.suffix, (unit,)):
        raise UserError(f"{where}: unit is {unit!r}, but {printed.text!r} is printed")
    for name, allowed in (("framing", ("", *FRAMINGS)), ("bound", BOUNDS)):
        if cells.get(name, "") not in allowed:
            raise UserError(f"{where}: {name} is {cells[name]!r}; one of {', '.join(filter(None, allowed))} or nothing")
    if cells.get("value") and _fraction(cells["value"]) != printed.value:
        raise UserError(f"{where}: value is {cells['value']!r}, but {printed.text!r} is printed")
    approximate = cells.get("approximate", "").lower()
    if approximate not in ("", "true", "false"):
        raise UserError(f"{where}: approximate is {cells['approximate']!r}; true or nothing is needed")
    places = {name: _place(where, name, cells[name]) for name in ("line", "column") if cells.get(name)}
    rest = {k: v for k, v in cells.items() if k not in ("value", "printed", "approximate", "line", "column")}
    number = Number(**rest, **places, printed=printed, approximate=approximate == "true")
    if number.offset() < 0:
        raise UserError(f"{where}: {printed.text!r} does not stand in the quote {number.quote!r}")
    return number


def _fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ValueError:
        return None


def _place(where: str, name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{where}: {name} is {text!r}; a whole number from 1 up is needed")
    return int(text)


def _claim(path: Path, position: int, given: object, documents: Mapping[str, Document], binder: Binder) -> Claim:
    where = f"{path}, claim {position}"
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: is {given!r}; a mapping is needed")
    if isinstance(given.get("id"), str):
        where = f"{path}, claim {given['id']!r}"
    for name in CLAIM_NEEDS:
        if not given.get(name):
            raise UserError(f"{where}: {name} is missing")
    if unknown := set(given) - {*CLAIM_NEEDS, "last_line"}:
        raise UserError(
            f"{where}: {min(map(str, unknown))!r} is unknown; known are {', '.join(CLAIM_NEEDS)}, last_line"
        )
    for name in ("id", "document", "text"):
        if not isinstance(given[name], str):
            raise UserError(f"{where}: {name} is {given[name]!r}; text is needed (in quotes)")
    if given["document"] not in documents:
        raise UserError(f"{where}: document {given['document']!r} is not among the documents")
    first = line_number(where, given["line"])
    last = line_number(where, given.get("last_line", first))
    if last < first:
        raise UserError(f"{where}: last_line {last} lies before line {first}")
    checks = _checks(where, given, binder)
    return Claim(given["id"], given["document"], first, last, given["text"], checks)


def _checks(where: str, given: Mapping, binder: Binder) -> tuple[Check, ...]:
    if not isinstance(given["checks"], list):
        raise UserError(f"{where}: checks must be a list")
    checks = []
    for item in given["checks"]:
        if not isinstance(item, Mapping) or len(item) != 1:
            raise UserError(f"{where}: a check is one name with its fields, not {item!r}")
        ((name, arguments),) = item.items()
        checks.append(binder.bind(where, given["document"], name, arguments))
    if not any(check.name in DECIDING for check in checks):
        raise UserError(f"{where}: no check decides; one of {', '.join(DECIDING)} is needed")
    return tuple(checks)
