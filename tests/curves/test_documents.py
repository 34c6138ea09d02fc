"""The document of a whole comparison: decode and prefill side by side, and what is not shared is absent."""

import json
from pathlib import Path

import pytest

from wholecurve.curves import compare_sources
from wholecurve.curves.documents import Targets
from wholecurve.errors import UserError
from wholecurve.readers import Source, read_source

RUN = Path(__file__).parents[2] / "data" / "runs" / "recorded-quick"


def source(contender, *workloads):
    found = read_source(f"{RUN}:{contender}")
    return Source(found.spec, contender, found.points[found.points["workload"].isin(workloads)])


def test_both_workloads_stand_side_by_side():
    document = compare_sources(
        source("wholecurve", "decode", "prefill"), source("transformers", "decode", "prefill")
    ).to_document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [row["load_b"] for row in document["direct"]] == [1, 2, 4, 8, 16]
    assert [row["load_b"] for row in document["prefill"]["direct"]] == [128, 256, 512, 1024]
    assert document["prefill"]["summary"]["direct"]["read"] == 4
    assert document["direct"][0]["speed"] and document["prefill"]["direct"][0]["speed"] is None


def test_a_workload_that_is_not_shared_is_absent():
    decode = compare_sources(source("wholecurve", "decode", "prefill"), source("transformers", "decode")).to_document()
    assert decode["prefill"] is None and len(decode["direct"]) == 5
    prefill = compare_sources(source("wholecurve", "prefill"), source("transformers", "prefill")).to_document()
    assert (prefill["a"], prefill["b"]) == ("wholecurve", "transformers")
    assert prefill["direct"] == prefill["same_speed"] == prefill["same_throughput"] == prefill["warnings"] == []
    assert prefill["summary"] == {} and len(prefill["prefill"]["direct"]) == 4


def test_nothing_in_common_is_refused():
    with pytest.raises(UserError, match="they have none in common"):
        compare_sources(source("wholecurve", "decode"), source("transformers", "prefill"))


def test_targets_without_decode_are_refused():
    with pytest.raises(UserError, match="prefill curves have no speed"):
        compare_sources(source("wholecurve", "prefill"), source("transformers", "prefill"), Targets(speed=[40.0]))


def test_contenders_of_one_name_carry_their_files():
    ours = source("wholecurve", "decode")
    twin = Source("runs/b.csv", "wholecurve", ours.points)
    document = compare_sources(Source("runs/a.csv", "wholecurve", ours.points), twin).to_document()
    assert (document["a"], document["b"]) == ("wholecurve [a.csv]", "wholecurve [b.csv]")
    document = compare_sources(Source("other/b.csv", "wholecurve", ours.points), twin).to_document()
    assert (document["a"], document["b"]) == ("wholecurve [other/b.csv]", "wholecurve [runs/b.csv]")


def test_workloads_of_other_names_are_compared_across_or_where_one_is_not_stated():
    ours = source("wholecurve", "decode")
    chat = Source("chat.csv", "chat", ours.points.assign(workload="chat", contender="chat"))
    code = Source("code.csv", "code", ours.points.assign(workload="code", contender="code"))
    assert compare_sources(ours, chat).decode.direct["ratio"].tolist() == pytest.approx([1.0] * 5)
    with pytest.raises(UserError, match=r"none in common \(--across"):
        compare_sources(chat, code)
    across = compare_sources(chat, code, across=True).decode
    assert any("workload (chat against code)" in warning for warning in across.warnings)


def test_several_shared_workloads_are_chosen_by_name():
    import pandas as pd

    ours = source("wholecurve", "decode")
    both = pd.concat([ours.points, ours.points.assign(workload="chat")])
    two = Source("two.csv", "wholecurve", both)
    with pytest.raises(UserError, match=r"several workloads \(chat, decode\); choose one with --workload"):
        compare_sources(two, Source("b.csv", "b", both.assign(contender="b")))
    chosen = compare_sources(two, Source("b.csv", "b", both.assign(contender="b")), workload="chat")
    assert chosen.decode.a.workload == "chat" and chosen.prefill is None
