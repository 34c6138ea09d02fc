"""Every stored file of another tool: it reads as said here or is refused for the reason said here, whole and cut off.

The files are not part of the project; without them the readers are tested on small files of their own.
"""

from fnmatch import fnmatch
from pathlib import Path

import pytest
from fuzzing import assert_sound, truncations

from wholecurve.errors import UserError
from wholecurve.files_report import shown_curves
from wholecurve.readers import read_file

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
FILES = sorted(path for path in SAMPLES.rglob("*") if path.is_file())

# Pattern of the file, then the format and the number of points.
READ = {
    "guidellm/llm-d_guidellm_report_v2.json": ("GuideLLM", 2),
    "inference-perf/*.yaml": ("inference-perf", 1),
    "inferencex/agentic_golden_agg.json": ("InferenceX", 1),
    "inferencex/api_rows_h100_dynamo_disagg_mtp_1k8k_nonmonotone.json": ("InferenceX", 5),
    "inferencex/api_rows_mi300x_sglang_fp8_1k1k.json": ("InferenceX", 5),
    "inferencex/api_rows_missing_output_tput.json": ("InferenceX", 2),
    "inferencex/api_rows_with_power.json": ("InferenceX", 4),
    "inferencex/glm47_gaudi3_summary.json": ("InferenceX", 8),
    "inferencex/glm47_conc128.json": ("vLLM bench serve", 1),
    "inferencex/glm5_fp8_*.json": ("vLLM bench serve", 1),
    "llama.cpp/*prefill-ubatch.jsonl": ("llama-bench", 12),
    "llama.cpp/*curve-*.jsonl": ("llama-bench", 27),
    "llama.cpp/*_ok.log": ("llama-bench", 2),
    "llm-d/br_v0_1_example.yaml": ("llm-d benchmark report", 1),
    "llmperf/*_summary.json": ("LLMPerf", 1),
    "sglang/*_online_output.jsonl": ("SGLang bench_serving", 7),
    "ugly_synthetic/curve_[cd]*.json": ("InferenceX", 3),
    "ugly_synthetic/curve_single_point.json": ("InferenceX", 1),
    "ugly_synthetic/infx_missing_hw_rate.json": ("InferenceX", 1),
    "vllm/anyscale_*.json": ("vLLM bench serve", 1),
    "vllm/er0080_bench_serve_v0.25.1.json": ("vLLM bench serve", 1),
    "vllm/er0080_sweep_*_run=[01].json": ("vLLM bench serve", 1),
    "vllm/er0080_sweep_*_summary.json": ("vLLM bench serve", 2),
}
# Pattern of the file, then field and reason as the refusal says them.
REFUSED = {
    "PROVENANCE.md": "plain text, not a result file",
    "aiperf/*_partial.json": "input_config is missing; the load stands nowhere else",
    "aiperf/*_record_*.jsonl": "no record names the load",
    "curves_from_issues/*.csv": "column contender, decode_speed_tok_per_s, output_throughput_tok_per_s, gpus is",
    "genai-perf/nim_*.json": "no known format has the fields concurrency, ttft_ms, itl_ms, throughput_tok_s",
    "llama.cpp/*_ubatch_summary.csv": "column contender, concurrency, decode_speed_tok_per_s",
    "llama.cpp/*_mtp*.json": "no known format has the fields model, gguf, toolbox, mode",
    "sglang/*_offline_output.jsonl": "max_concurrency is null and request_rate is infinite",
    "sglang/dlora_console_negative_tpot.txt": "218257 generated tokens are 103837 when tokenised again",
    "ugly_synthetic/curve_negative_and_zero.json": "row 1: median_intvty is 0; a finite number above 0",
    "ugly_synthetic/empty.json": "the file is empty",
    "ugly_synthetic/empty_list.json": "without any result in it",
    "ugly_synthetic/latency_seconds_vs_ms.csv": "column contender, concurrency",
    "ugly_synthetic/vllm_detailed_with_failed_ttft0.json": "request_throughput is 5.18081, but completed / duration",
    "ugly_synthetic/vllm_osl1_no_tpot.json": "output_throughput is 82.893, but total_output_tokens / duration",
    "ugly_synthetic/vllm_spec_decode_chunks.json": "output_throughput is 82.893, but total_output_tokens / duration",
    "ugly_synthetic/vllm_truncated.json": "not valid JSON",
    "vllm/pr5895_console_ttft_zero.txt": "median TTFT is 0.00 ms with 1000 completed requests",
}

if not FILES:
    pytest.skip("the stored files of other tools are not here", allow_module_level=True)


def name(path):
    return str(path.relative_to(SAMPLES))


def said(path, table):
    return next((expected for pattern, expected in table.items() if fnmatch(name(path), pattern)), None)


def test_every_file_has_one_expectation():
    for path in FILES:
        assert (said(path, READ) is None) != (said(path, REFUSED) is None), name(path)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_reads_or_is_refused_with_its_reason(path, record_property):
    try:
        found = read_file(path)
    except UserError as error:
        record_property("sample", f"{name(path)} | refused | {str(error).removeprefix(str(path)).strip(':, ')}")
        assert said(path, REFUSED) is not None and said(path, REFUSED) in str(error)
        assert str(error).startswith(str(path)) and "\n" not in str(error)
        return
    gates = sorted({w.split(":")[0] for curve in shown_curves(found.points) for w in curve.warnings})
    record_property("sample", f"{name(path)} | {found.format} | {len(found.points)} points | {', '.join(gates)}")
    assert (found.format, len(found.points)) == said(path, READ)
    assert not found.notes.dropped


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_that_is_cut_off_gives_no_wrong_number(path, tmp_path):
    try:
        whole = read_file(path).points
    except UserError:
        whole = None
    cut = tmp_path / path.name
    for beginning in truncations(path):
        cut.write_bytes(beginning)
        if whole is None:
            with pytest.raises(UserError):
                read_file(cut)
        else:
            assert_sound(read_file, cut, whole)
