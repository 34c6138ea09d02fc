"""A claims file: what it takes, and that every refusal is one line with file, row or claim, and field."""

import re
from pathlib import Path

import pytest

from wholecurve.curves.claims import Sentence, audit
from wholecurve.curves.claims.quotes import misquotes
from wholecurve.errors import UserError
from wholecurve.readers.published import read_claims

README = Path(__file__).parents[2] / "data" / "published" / "README.md"

YAML = """\
documents:
- {id: vendor, title: Twice as fast, file: post.txt}
numbers:
- {id: ours, document: vendor, who: A, printed: "2,095", unit: tok/s, line: 2, quote: "2,095 tok/s"}
- {id: theirs, document: vendor, who: B, printed: "1,731", unit: tok/s, line: 2, column: 21, quote: "1,731"}
- {id: gain, document: vendor, who: A, against: B, framing: direct, printed: 21%, unit: "% more", line: 1,
   quote: 21% more, n: 2}
claims:
- id: headline
  document: vendor
  line: 1
  last_line: 2
  text: 21% more … 2,095 tok/s
  checks:
  - arithmetic: {claimed: gain, formula: percent more, of: [ours, theirs]}
  - runs: {numbers: [gain], says: {line: 3, quote: two runs}}
"""
ARITHMETIC = "{claimed: gain, formula: percent more, of: [ours, theirs]}"
POST = "We are 21% more efficient\n2,095 tok/s against 1,731\nAll from two runs\n"
DOCUMENTS = "id,title,file\nvendor,Twice as fast,post.txt\n"
NUMBERS = """\
id,document,who,against,framing,value,printed,unit,line,column,quote,n,approximate
ours,vendor,A,,,2095,"2,095",tok/s,2,1,"2,095 tok/s",,
theirs,vendor,B,,,,"1,731",tok/s,2,,"1,731",,false
gain,vendor,A,B,direct,21,21%,% more,1,,21% more,2,
"""


def write(folder, text=YAML, **files):
    for name, content in files.items():
        (folder / f"{name}.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    path = folder / "claims.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path):
    with pytest.raises(UserError) as caught:
        audit(read_claims(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_claims_with_their_numbers_in_one_file(tmp_path):
    published = read_claims(write(tmp_path))
    (claim,) = published.claims
    assert (claim.id, claim.line, claim.last_line) == ("headline", 1, 2)
    assert claim.checks[0].arguments["of"] == (published.numbers["ours"], published.numbers["theirs"])
    assert claim.checks[1].arguments["says"] == Sentence("vendor", 3, "two runs")
    assert published.numbers["gain"].n == "2" and published.numbers["theirs"].column == 21
    assert audit(published).claims[0].verdict == "confirmed"


def test_claims_with_their_numbers_in_csv_files_and_a_folder_as_path(tmp_path):
    claims = YAML[YAML.index("claims:") :]
    inline = audit(read_claims(write(tmp_path))).to_document()
    write(tmp_path, claims, documents=DOCUMENTS, numbers=NUMBERS)
    assert audit(read_claims(tmp_path)).to_document() == inline
    write(tmp_path, "documents: d.csv\nnumbers: n.csv\n" + claims, d=DOCUMENTS, n="\ufeff" + NUMBERS)
    assert audit(read_claims(tmp_path)).to_document() == inline


def test_the_example_of_the_readme_runs_and_contradicts(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = audit(read_claims(write(tmp_path, example))).claims
    assert found.verdict == "contradicted"
    assert [finding.verdict for finding in found.findings[1:]] == ["clear", "caution", "caution"]


def test_quotes_are_looked_up(tmp_path):
    path = write(tmp_path)
    (tmp_path / "post.txt").write_text(POST, encoding="utf-8")
    assert misquotes(read_claims(path), tmp_path) == []
    (tmp_path / "post.txt").write_text(POST.replace("two runs", "three runs").replace("tok/s against", "tok/s and"))
    found = misquotes(read_claims(path), tmp_path)
    assert found == [
        "number 'theirs': line 2 does not read '1,731' there",
        "claim 'headline': line 3 does not read 'two runs'",
    ]
    (tmp_path / "post.txt").write_text("short\n", encoding="utf-8")
    assert "claim 'headline': line 1 does not read '21% more … 2,095 tok/s'" in misquotes(read_claims(path), tmp_path)


def test_pieces_of_a_claim_must_stand_in_order(tmp_path):
    path = write(tmp_path, YAML.replace("21% more … 2,095 tok/s", "2,095 tok/s … 21% more"))
    (tmp_path / "post.txt").write_text(POST, encoding="utf-8")
    assert misquotes(read_claims(path), tmp_path) == ["claim 'headline': line 1 does not read '2,095 tok/s … 21% more'"]


def test_without_named_files_nothing_can_be_looked_up(tmp_path):
    with pytest.raises(UserError, match="no document names a file"):
        misquotes(read_claims(write(tmp_path, YAML.replace(", file: post.txt", ""))), tmp_path)


@pytest.mark.parametrize(
    "old, new, says",
    [
        ('"2,095", unit', '"2,0955", unit', "(number 'ours'): printed is '2,0955'; digits as printed are needed"),
        ('"2,095", unit', '"", unit', "numbers 1: printed is missing"),
        ('"2,095", unit', "2095.0, unit", "numbers 1: printed is 2095.0; text is needed (in quotes"),
        ('"2,095", unit', "2095, unit", "numbers 1: printed is 2095; text is needed"),
        ('"2,095", unit', "null, unit", "numbers 1: printed is missing"),
        ('"2,095", unit', "nan, unit", "(number 'ours'): printed is 'nan', NaN"),
        ('"2,095", unit', '"-2,095", unit', "printed is '-2,095', negative"),
        ('"2,095", unit', '"2,096", unit', "'2,096' does not stand in the quote '2,095 tok/s'"),
        ("unit: tok/s, line: 2, quote", "line: 2, quote", "numbers 1: unit is missing"),
        ('unit: "% more"', 'unit: "×"', "(number 'gain'): unit is '×', but '21%' is printed"),
        ("framing: direct", "framing: fair", "framing is 'fair'; one of direct, same speed"),
        ("framing: direct", "bound: most", "bound is 'most'; one of up to, range low"),
        ("framing: direct", "value: 22", "value is 22; text is needed"),
        ("framing: direct", 'value: "22"', "value is '22', but '21%' is printed"),
        ("framing: direct", 'value: "many"', "value is 'many', but '21%' is printed"),
        ("framing: direct", "approximate: maybe", "approximate is 'maybe'; true or nothing is needed"),
        ("framing: direct", "repeats: other", "number 'gain' repeats 'other', which is not there"),
        ("framing: direct", "colour: red", "numbers 3: column 'colour' is unknown; known are id, document"),
        ("column: 21", "column: 0", "(number 'theirs'): column is '0'; a whole number from 1 up is needed"),
        ("column: 21", 'column: "2.5"', "column is '2.5'; a whole number from 1 up is needed"),
        ("id: theirs, document: vendor", "id: ours, document: vendor", "numbers 2: id 'ours' is given twice"),
        ("id: theirs, document: vendor", "id: theirs, document: rival", "document 'rival' is not among the documents"),
        ("- {id: vendor,", "- {name: vendor,", "documents 1: column 'name' is unknown; known are id, file, publisher"),
        ("- {id: vendor, ", "- {", "documents 1: id is missing"),
        ("numbers:\n", "numbers:\n- just text\n", "numbers must name a CSV file or be a list of mappings"),
        ("headline\n  document: vendor", "headline\n  document: rival", "claim 'headline': document 'rival'"),
        ("- id: headline", "- id: 7", "claim 1: id is 7; text is needed (in quotes)"),
        ("- id: headline", "- label: headline", "claim 1: id is missing"),
        ("  line: 1\n", "", "claim 'headline': line is missing"),
        ("  line: 1\n", "  line: first\n", "line is 'first'; a whole number from 1 up is needed"),
        ("  line: 1\n", "  line: true\n", "line is True; a whole number from 1 up is needed"),
        ("  last_line: 2", "  last_line: 0", "line is 0; a whole number from 1 up is needed"),
        ("  line: 1\n", "  line: 5\n", "last_line 2 lies before line 5"),
        ("  last_line: 2", "  note: here", "claim 'headline': 'note' is unknown; known are id, document, line, text"),
        ("  line: 1\n", "  line: 1\n  line: 2\n", "line 12: key 'line' is given twice"),
        ("of: [ours, theirs]", "of: [ours, nobody]", "check 'arithmetic', field 'of': there is no number 'nobody'"),
        ("of: [ours, theirs]", "of: [ours, [theirs]]", "field 'of': there is no number ['theirs']"),
        ("of: [ours, theirs]", "of: []", "field 'of': a list of one or more is needed, not []"),
        ("of: [ours, theirs]", "of: ours", "field 'of': a list of one or more is needed, not 'ours'"),
        ("of: [ours, theirs]", "from: [ours]", "field 'from' is unknown; known are claimed, formula, of"),
        (", of: [ours, theirs]", "", "check 'arithmetic': field 'of' is missing"),
        ("formula: percent more", "formula: 3", "field 'formula': is 3; text is needed"),
        ("formula: percent more", "formula: sum", "claim 'headline', check 'arithmetic': formula 'sum' is unknown"),
        ("formula: percent more", "formula: ratio", "formula 'ratio' gives ×, but the claimed number is in '% more'"),
        ("arithmetic: {claimed", "sums: {claimed", "check 'sums' is unknown; known are arithmetic, range"),
        ("runs: {numbers: [gain],", "remark: {finding: x, credit: 1,", "field 'credit': is 1; true or false is needed"),
        ("  - runs:", "  - claim: {}\n    runs:", "a check is one name with its fields"),
        ("says: {line: 3, quote: two runs}", "says: two runs", "field 'says': is 'two runs'; line and quote"),
        ("says: {line: 3, quote: two runs}", "says: {line: 3}", "line and quote are needed"),
        ("says: {line: 3, quote: two runs}", "says: {line: x, quote: y}", "field 'says': line is 'x'"),
        ("says: {line: 3, quote: two runs}", "says: {line: 3, quote: 2}", "field 'says': quote is 2; text is needed"),
        ("{line: 3, quote: two runs}", "{document: rival, line: 3, quote: q}", "no document 'rival'; there is vendor"),
        (f"arithmetic: {ARITHMETIC}", "framing: {number: gain}", "no check decides"),
        (ARITHMETIC, "[gain]", "check 'arithmetic': fields and their values are needed"),
        ("claims:\n", "claims: {}\nother:\n", "key 'other' is unknown; known are documents, numbers, claims"),
        ("claims:\n", "statements:\n", "a mapping with the key 'claims' is needed"),
        ("documents:\n", "documents: [\n", "not valid YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(tmp_path, old, new, says):
    assert YAML.count(old) == 1
    message = refused(write(tmp_path, YAML.replace(old, new)))
    assert says in message
    # Only what a check finds wrong in its numbers is named by claim alone: the file was in order.
    assert message.startswith((str(tmp_path / "claims.yaml"), "claim 'headline', check"))


def test_merge_keys_are_plain_yaml(tmp_path):
    merged = YAML.replace("- {id: ours, document", "- {<<: {n: 4}, id: ours, document")
    assert read_claims(write(tmp_path, merged)).numbers["ours"].n == "4"


@pytest.mark.parametrize(
    "claims, says",
    [
        ("[]", "claims must be a list"),
        ("null", "must be a list"),
        ("{}", "must be a list"),
        ("[text]", "a mapping is needed"),
    ],
)
def test_claims_are_a_list_of_mappings(tmp_path, claims, says):
    assert says in refused(write(tmp_path, YAML[: YAML.index("claims:")] + f"claims: {claims}\n"))


@pytest.mark.parametrize("checks", ["null", "[]", "text", "[text]", "[{}]"])
def test_checks_are_a_list_of_one_name_each(tmp_path, checks):
    message = refused(write(tmp_path, YAML[: YAML.index("  checks:")] + f"  checks: {checks}\n"))
    assert "claim 'headline': " in message and "check" in message


@pytest.mark.parametrize(
    "numbers, says",
    [
        ("", "numbers.csv: the file is empty"),
        ("id,id\n", "numbers.csv: a column name occurs twice"),
        ("id,document\nours\n", "numbers.csv, line 2: 1 cells, but 2 columns are named"),
        (NUMBERS + "more,vendor\n", "numbers.csv, line 5: 2 cells, but 13 columns are named"),
        (NUMBERS.replace('"2,095 tok/s"', '"2,095 tok/s'), "numbers.csv, line 2: not valid CSV"),
        (NUMBERS.replace("2095,", "2096,"), "line 2 (number 'ours'): value is '2096', but '2,095' is printed"),
        (NUMBERS.replace("theirs,vendor", ",vendor"), "numbers.csv, line 3: id is missing"),
        (b"id\n\xff\n", "numbers.csv: not text in UTF-8 (byte 3)"),
    ],
)  # fmt: skip
def test_a_broken_numbers_file_is_named(tmp_path, numbers, says):
    message = refused(write(tmp_path, YAML[YAML.index("claims:") :], documents=DOCUMENTS, numbers=numbers))
    assert message.startswith(str(tmp_path / "numbers.csv")) and says in message


def test_files_that_are_not_there(tmp_path):
    assert refused(tmp_path / "none.yaml").endswith("none.yaml: cannot be read (No such file or directory)")
    assert "documents.csv: cannot be read" in refused(write(tmp_path, YAML[YAML.index("claims:") :]))
    assert "not text in UTF-8" in refused(write(tmp_path, b"claims: \xff"))


def test_a_blank_line_in_a_csv_file_is_no_row_and_lines_are_counted_as_in_the_file(tmp_path):
    spaced = NUMBERS.replace("theirs,", "\ntheirs,").replace("21,21%", "22,21%")
    message = refused(write(tmp_path, YAML[YAML.index("claims:") :], documents=DOCUMENTS, numbers=spaced))
    assert "numbers.csv, line 5 (number 'gain')" in message
