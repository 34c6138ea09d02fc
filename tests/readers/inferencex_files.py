"""Rows of InferenceX for its tests, and what reading them gives."""

import json
from pathlib import Path

import pytest

from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.found import Notes
from wholecurve.readers.inferencex import files as inferencex

DATA = Path(__file__).parents[1] / "data" / "readers" / "inferencex"
SHARED = Path(__file__).parents[2].parent / "shared" / "samples"
FILES = sorted(DATA.glob("*.json"))

# One GPU count of everything, so that a wrong denominator shows in the number itself.
ROW = {
    "hw": "h100",
    "framework": "vllm",
    "precision": "fp8",
    "conc": 8,
    "tp": 4,
    "median_tpot": 0.02,
    "tput_per_gpu": 75.0,
    "output_tput_per_gpu": 25.0,
    "input_tput_per_gpu": 50.0,
}
POOLS = {
    **{name: value for name, value in ROW.items() if name != "tp"},
    "disagg": True,
    "num_prefill_gpu": 4,
    "num_decode_gpu": 12,
    # 1200 tok/s of output on 12 decode GPUs, 800 of input on 4 prefill GPUs, 2000 on 16.
    "output_tput_per_gpu": 100.0,
    "input_tput_per_gpu": 200.0,
    "tput_per_gpu": 125.0,
}


def read(path):
    content = read_content(path)
    assert inferencex.recognises(content)
    return inferencex.read(content, Notes(dropped=list(content.skipped)))


def rows(tmp_path, *rows):
    path = tmp_path / "agg_bmk.json"
    path.write_text(json.dumps(rows))
    return read(path)


def point(tmp_path, row=ROW, **changed):
    return rows(tmp_path, {k: v for k, v in {**row, **changed}.items() if v != "absent"}).points.iloc[0]


def refusal(tmp_path, row=ROW, **changed):
    with pytest.raises(UserError) as caught:
        point(tmp_path, row, **changed)
    return str(caught.value)


def sentences(found):
    document = found.to_document()
    return "\n".join(document["converted"] + document["not_converted"] + document["dropped"])
