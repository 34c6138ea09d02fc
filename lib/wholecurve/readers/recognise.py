"""Whose file is it? Every format looks at the content; the first that knows its own fields reads it."""

from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.readers.content import Content, read_content
from wholecurve.readers.found import Found, Notes
from wholecurve.readers.plain import REQUIRED, read_plain

# Modules of this room in the order in which they are asked; each has recognises(content) and read(content, notes).
FORMATS = (
    "canonical",
    "serving.sglang",
    "serving.sglang_batch",
    "serving.vllm",
    "serving.console",
    "inferencex.files",
    "llama_cpp.batched_bench",
    "llama_cpp.bench",
    "guidellm.report",
    "aiperf.summary",
    "aiperf.aggregate",
    "aiperf.records",
    "llmperf",
    "llm_d.report",
    "llm_d.inference_perf",
)


class NoResult(UserError):
    """A file that holds text of people or programs; in a folder of results it is no failed result."""


def read_file(path: str | Path) -> Found:
    """The points of one result file of a known tool, or of a plain CSV or Parquet table.

    Raises UserError, naming file, row and field, when the format is unknown, nothing in it gives a point, or it is
    cut off; NoResult, one of them, for plain text.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return Found(path, "plain table", read_plain(path), Notes())
    content = read_content(path)
    for reader in _readers():
        if reader.recognises(content):
            notes = Notes(dropped=list(content.skipped))
            return reader.read(content, notes)
    if content.kind == "csv":
        return Found(path, "plain table", read_plain(path), Notes())
    if content.kind == "text":
        raise NoResult(
            f"{path}: plain text, not a result file; save the tool's JSON (for example with --save-result or "
            "--output-file)"
        )
    raise UserError(f"{path}: {_unknown(content)}")


def _readers() -> list:
    from importlib import import_module

    return [import_module(f"wholecurve.readers.{name}") for name in FORMATS]


def _unknown(content: Content) -> str:
    names = list(content.first.fields)
    if not names:
        return f"{content.kind} without any result in it; a list or object of results is needed"
    shown = ", ".join(map(str, names[:8])) + (" …" if len(names) > 8 else "")
    return (
        f"no known format has the fields {shown}; a plain table has {', '.join(REQUIRED)}, and its latencies name "
        "their statistic (ttft_p50_ms)"
    )
