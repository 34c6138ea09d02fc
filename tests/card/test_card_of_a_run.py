"""The whole card from folders: the recorded runs, broken folders, hostile names, and every form of it."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import card_runs
import pytest

from wholecurve.card import make_card
from wholecurve.card.checks import FLAG, NOT_CHECKED, PASS
from wholecurve.card.html import print_points, to_html
from wholecurve.card.markdown import to_markdown
from wholecurve.errors import UserError
from wholecurve.runs import RunFolder

RUNS = Path(__file__).parents[2] / "data" / "runs"
HOSTILE = "<script>alert(1)<|script> | `x` [a](http:x) *b* _c_ $d$ & \\"


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return card_runs.engines_run(tmp_path_factory.mktemp("engines") / "run")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    return card_runs.serving_run(tmp_path_factory.mktemp("servers") / "run")


@pytest.fixture
def copy(engines, tmp_path):
    shutil.copytree(engines.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def statuses(card):
    return {check.name: check.status for check in card.checks}


def cells(table):
    return " ".join(cell for row in table.rows for cell in row)


@pytest.mark.parametrize("name", ["recorded-quick", "recorded-peers-cpu"])
def test_recorded_runs_follow_from_their_traces_and_are_complete(name):
    card = make_card(RunFolder.open(RUNS / name))
    found = statuses(card)
    for check in (
        "Plan",
        "Complete",
        "Points from traces",
        "Code",
        "Order",
        "Fresh starts",
        "Same requests",
        "Lengths",
    ):
        assert found[check] == PASS
    assert {"Warm-up", "Prefix cache"} <= {check for check, status in found.items() if status == NOT_CHECKED}
    assert [check.status for check in card.checks] == sorted(found.values(), key=(FLAG, NOT_CHECKED, PASS).index)


def test_the_race_says_what_its_bounds_rest_on_and_that_one_peer_had_fewer_tries():
    card = make_card(RunFolder.open(RUNS / "recorded-peers-cpu"))
    found = {check.name: check.found for check in card.checks if check.status == FLAG}
    assert {"Like settings", "Tuning", "Steady machine", "Bounds"} <= set(found)
    assert "fewer than wholecurve: transformers" in found["Tuning"] and "float16 (llama.cpp)" in found["Like settings"]
    assert "30 are above it by the rounds that keep their raw trials" in found["Bounds"]


def test_the_first_study_says_where_ours_is_behind():
    card = make_card(RunFolder.open(RUNS / "recorded-quick"))
    over = {(row[0], row[1], row[2]): row[-1] for row in card.multipliers.rows}
    assert over["decode", "openvino-genai", "load, throughput"] == "behind at 1, 2, 4, 8, 16"
    leads = {row[:2]: row[2:] for row in card.leads.rows}
    assert leads["decode", "output throughput"][0] == "no load"
    assert leads["decode", "output throughput"][1].startswith("behind: openvino-genai 0.50× [0.50, 0.51] at 1 to 0.62×")


def test_direct_multipliers_carry_interval_and_load(engines):
    (row,) = [r for r in make_card(engines).multipliers.rows if r[0] == "decode" and r[2] == "load, throughput"]
    lowest, median, highest, not_ahead = row[3:]
    pattern = r"1\.\d\d× \[\d\.\d\d, \d\.\d\d\] at [124]"
    assert re.fullmatch(pattern, lowest) and re.fullmatch(pattern, highest)
    assert re.fullmatch(r"1\.\d\d× at [124]", median) and not_ahead == "nowhere"


def test_one_page_names_contenders_versions_protocol_and_limits(servers):
    card = make_card(servers)
    assert card.question == "How does wholecurve compare with vllm?"
    assert "1.2.3" in cells(card.contenders) and "A/A control: wholecurve once more" in cells(card.contenders)
    conditions = dict(card.conditions)
    assert conditions["Workload"].startswith("requests of 8–16 tokens in, 6–12 out, as token ids, no prefix shared")
    assert conditions["Prices"] == "vllm 2 USD per hour with all its devices" and "over HTTP" in conditions["Client"]
    words = " ".join(card.protocol)
    for said in ("hash", "harness version 1", "seed 7", "3 repeats: a fresh server", "TTFT ≤ 500 ms and TPOT ≤ 100 ms"):
        assert said in words
    assert any("its own harness" in one for one in card.limits) and any("closed loop" in one for one in card.limits)


def test_tuning_is_told_with_rank_of_how_many_and_what_it_gained(copy):
    candidates = [
        {"settings": {}, "score_tok_per_s": 100.0, "refused": None},
        {"settings": {"block_size": 32}, "score_tok_per_s": 110.0, "refused": None},
        {"settings": {"threads": 1}, "score_tok_per_s": None, "refused": "does not start"},
    ]
    copy.write("tuning", {"criterion": "c", "contenders": {"transformers": {"candidates": candidates, "winner": 1}}})
    rows = {row[0]: row[-1] for row in make_card(copy).contenders.rows}
    assert rows["transformers"] == "best of 3 settings tried: block_size 32 (1.100× its own); 1 did not run"


def test_a_finalist_is_named_by_its_place(servers, tmp_path):
    shutil.copytree(servers.path, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    candidates = [{"settings": {"n": i}, "score_tok_per_s": 100.0 + i, "refused": None} for i in range(12)]
    found = {"candidates": candidates, "winner": 11, "finalists": [11, 4]}
    run.write("tuning", {"criterion": "c", "contenders": {"vllm": found}})
    for point_id in run.point_ids():
        row = run.read(f"points/{point_id}")
        if row["contender"] == "vllm":
            name = f"vllm (finalist {1 + row['repeat'] % 2} of 12)"
            run.write(f"points/{point_id}", {**row, "contender": name})
    rows = {row[0]: row[-1] for row in make_card(run).contenders.rows}
    assert rows["vllm (finalist 1 of 12)"] == "finalist 1 of 12 settings tried: n 11 (1.110× its own)"
    assert rows["vllm (finalist 2 of 12)"] == "finalist 2 of 12 settings tried: n 4 (1.040× its own)"


def test_a_changed_point_no_longer_follows_from_its_trace(copy):
    row = copy.read("points/decode-wholecurve-00002-r1")
    copy.write("points/decode-wholecurve-00002-r1", {**row, "output_throughput_tok_per_s": 1e3})
    (found,) = [check for check in make_card(copy).checks if check.name == "Points from traces"]
    assert found.status == FLAG
    assert "decode-wholecurve-00002-r1 differs in output_throughput_tok_per_s" in found.found


def test_a_metric_that_a_point_lacks_is_taken_from_its_trace(copy):
    for point_id in copy.point_ids():
        row = copy.read(f"points/{point_id}")
        row.pop("client_lag_ms", None)
        copy.write(f"points/{point_id}", row)
    assert statuses(make_card(copy))["Client lag"] == PASS


def test_a_missing_trace_is_flagged_and_a_torn_one_is_an_error(copy):
    (trace,) = (copy.path / "traces").glob("decode-wholecurve-00002-r1.jsonl*")
    lines = copy.trace("decode-wholecurve-00002-r1")
    assert len(lines) == 20
    trace.unlink()
    assert statuses(make_card(copy))["Points from traces"] == FLAG
    (copy.path / "traces" / "decode-wholecurve-00002-r1.jsonl").write_text('{"request": "r0000"}\n')
    with pytest.raises(UserError, match=r"00002-r1\.jsonl: line \d+ is not a request record"):
        make_card(copy)


def test_a_point_without_what_every_point_has_is_named(copy):
    row = copy.read("points/decode-wholecurve-00002-r1")
    del row["repeat"]
    copy.write("points/decode-wholecurve-00002-r1", row)
    with pytest.raises(UserError, match=r"decode-wholecurve-00002-r1\.json: has no repeat"):
        make_card(copy)


def test_a_plan_without_its_hash_is_no_plan_of_a_run(copy):
    copy.write("plan", {"plan": copy.plan["plan"]})
    with pytest.raises(UserError, match=r"plan\.json: has no plan_hash"):
        make_card(copy)


def test_a_run_that_has_only_begun_gets_a_card_without_numbers(copy):
    shutil.rmtree(copy.path / "points")
    card = make_card(copy)
    assert statuses(card)["Complete"] == FLAG and statuses(card)["Points from traces"] == NOT_CHECKED
    assert not card.multipliers.rows and not card.leads.rows and "No point is finished yet" in card.notes[0]
    assert to_markdown(card) and to_html(card)


def test_one_contender_alone_is_no_comparison(tmp_path):
    card = make_card(card_runs.engines_run(tmp_path / "run", contenders=card_runs.ENGINES["contenders"][:1]))
    assert card.question == "How does wholecurve run on this machine?" and not card.multipliers.rows
    assert statuses(card)["Order"] == NOT_CHECKED and statuses(card)["A/A control"] == FLAG


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether every tag is closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def hostile(engines, tmp_path_factory):
    """A run whose texts are markup wherever a run may hold text of others."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(engines.path, folder)
    run = RunFolder.open(folder)
    for point_id in run.point_ids():
        row = run.read(f"points/{point_id}")
        settings = {**row["settings"], "version": HOSTILE, "note": HOSTILE + row["contender"]}
        run.write(f"points/{point_id}", {**row, "settings": settings, "source": HOSTILE})
    provenance = run.provenance
    run.write("provenance", {**provenance, "hardware": {**provenance["hardware"], "cpu": HOSTILE}, "python": HOSTILE})
    return make_card(run)


def test_html_needs_nothing_else_and_holds_no_markup_of_the_run(hostile):
    text = to_html(hostile)
    page = Page(text)
    assert not page.open and "script" not in page.tags and "img" not in page.tags and "a" not in page.tags
    assert not [name for name, _ in page.attributes if name in ("src", "href", "style") or name.startswith("on")]
    assert "url(" not in text and "@import" not in text
    assert HOSTILE in "".join(page.text)
    assert "prefers-color-scheme: dark" in text and "@page { size: A4" in text


def test_markdown_holds_no_markup_of_the_run(hostile):
    text = to_markdown(hostile)
    assert "<script" not in text and "](http" not in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for block in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    # What a reader of the rendered page sees is the text as it stands in the run.
    assert r"\| \`x\` [a]\(http:x) \*b\* \_c\_ \$d\$ &amp; \\" in text


def test_markdown_and_html_say_the_same(servers):
    card = make_card(servers)
    page = " ".join("".join(Page(to_html(card)).text).split())
    for one in (*card.protocol, *card.limits, *card.notes, *(c.found for c in card.checks)):
        assert " ".join(one.split()) in page
    text = to_markdown(card)
    assert text.count("\n## ") == 6 and all(check.name in text for check in card.checks)


def test_a_longer_card_is_printed_smaller(servers):
    card = make_card(servers)
    longer = type(card)(**{**card.__dict__, "limits": card.limits * 20})
    assert print_points(longer) < print_points(card)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="counting printed pages needs chromium")
@pytest.mark.parametrize("name", ["recorded-quick", "recorded-peers-cpu"])
def test_it_prints_on_one_page(name, tmp_path):
    (tmp_path / "card.html").write_text(to_html(make_card(RunFolder.open(RUNS / name))), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={tmp_path / 'card.pdf'}"]
    subprocess.run([*command, (tmp_path / "card.html").as_uri()], capture_output=True, timeout=120, check=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", (tmp_path / "card.pdf").read_bytes())) == 1


CLI = [sys.executable, "-c", "import wholecurve.cli.card; from wholecurve.cli import main; main()"]


def cli(*arguments, code=0):
    result = subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stderr
    return result


def test_the_command_prints_markdown_and_writes_either_form(engines, tmp_path):
    assert cli("card", str(engines.path)).stdout.startswith("# Methodology card: run\n")
    assert cli("card", str(engines.path), "--format", "html").stdout.startswith("<!doctype html>")
    for name, begins in (("card.md", "# Methodology"), ("card.html", "<!doctype html>")):
        assert cli("card", str(engines.path), "--out", str(tmp_path / name)).stdout.strip() == str(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)


def test_what_the_user_got_wrong_is_one_line(engines, tmp_path):
    for arguments, says in (
        ((str(tmp_path / "none"),), "no such run folder"),
        ((str(tmp_path),), "not a run folder"),
        ((str(engines.path), "--out", str(tmp_path / "card.txt")), "give --format md or html"),
        ((str(engines.path), "--out", str(tmp_path)), "give --format md or html"),
    ):
        error = cli("card", *arguments, code=2).stderr
        assert says in error and error.count("\n") == 1 and error.startswith("wholecurve: ")


def test_the_record_of_a_run_is_not_touched(engines):
    before = {path: path.stat().st_mtime_ns for path in engines.path.rglob("*")}
    make_card(engines)
    assert {path: path.stat().st_mtime_ns for path in engines.path.rglob("*")} == before
    assert json.loads((engines.path / "plan.json").read_text())["plan"]["name"] == "small"
