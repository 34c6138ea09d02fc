"""Calls of tools in what a model writes: found while it is written, and forced by a grammar where they are required."""

import json
import re
import secrets
from dataclasses import dataclass

from wholecurve.engine.sampling import GrammarSpec
from wholecurve.engine.server.chat_protocol import ForcedTool, Tool
from wholecurve.errors import UserError

_MOST_WHITESPACE = 8  # characters in a row between the parts of forced arguments; small models would never stop


@dataclass(frozen=True)
class ToolCall:
    """One call: its number in the answer, a name, and arguments as the text of a JSON object."""

    number: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes calls: JSON between two markers. Without markers the whole answer is the call."""

    begin: str
    end: str
    arguments_key: str


TOOL_FORMATS = {
    "hermes": ToolFormat("<tool_call>", "</tool_call>", "arguments"),  # Hermes, Qwen, SmolLM
    "json": ToolFormat("", "", "parameters"),  # Llama 3
}


def tool_format(name: str | None, template: str) -> ToolFormat:
    """The format by name, or the one that a chat template speaks of."""
    if name is None:
        is_json = "<tool_call>" not in template and re.search(r'"parameters":', template) is not None
        name = "json" if is_json else "hermes"
    if name not in TOOL_FORMATS:
        raise UserError(f"tool format {name!r}; there is {', '.join(TOOL_FORMATS)}")
    return TOOL_FORMATS[name]


def tool_grammar(
    tools: list[Tool], choice: str | ForcedTool | None, is_parallel: bool, style: ToolFormat
) -> GrammarSpec | None:
    """What the answer must look like: calls and nothing else where they are required, free text with well-formed calls
    where functions are strict, None where anything goes.
    """
    if choice in (None, "auto", "none"):
        strict = [tool for tool in tools if tool.function.strict]
        if choice == "none" or not strict or not style.begin:
            return None
        form = {
            "type": "triggered_tags",
            "triggers": [style.begin],
            "tags": [_tag(tool, style) for tool in tools],
            "stop_after_first": not is_parallel,
        }
        return GrammarSpec.structural_tag({"type": "structural_tag", "format": form})
    names = [choice.name] if isinstance(choice, ForcedTool) else [tool.function.name for tool in tools]
    form = {
        "type": "tags_with_separator",
        "tags": [_tag(tool, style) for tool in tools if tool.function.name in names],
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": not is_parallel or isinstance(choice, ForcedTool) or not style.begin,
    }
    return GrammarSpec.structural_tag({"type": "structural_tag", "format": form})


def _tag(tool: Tool, style: ToolFormat) -> dict:
    schema = tool.function.parameters or {"type": "object"}
    name = json.dumps(tool.function.name)
    return {
        "type": "tag",
        "begin": (style.begin and style.begin + "\n") + f'{{"name": {name}, "{style.arguments_key}": ',
        "content": {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MOST_WHITESPACE},
        "end": "}" + (style.end and "\n" + style.end),
    }


class ToolParser:
    """Splits an answer into text and calls while it comes. Cost is linear in the answer.

    Text that turns out not to be a call of a known function is given as text, markers and all.
    """

    def __init__(self, style: ToolFormat, names: set[str]):
        self._style, self._names = style, names
        self._held: list[str] = []  # after a begin marker, or all there is when the whole answer may be a call
        self._tail = ""  # what may become a begin marker, or whitespace before one; inside, the end of what is held
        self._is_inside = not style.begin
        self.num_calls = 0

    def push(self, text: str) -> list[str | ToolCall]:
        """What is certain with these characters, in order."""
        parts: list[str | ToolCall] = []
        while True:
            if not self._style.begin:
                self._held.append(text)
                return parts
            text = self._tail + text
            self._tail = ""
            marker = self._style.end if self._is_inside else self._style.begin
            found = text.find(marker)
            if found < 0:
                keep = _possible(text, marker, not self._is_inside)
                if self._is_inside:
                    self._held.append(text[: len(text) - keep])
                else:
                    parts += self._text(text[: len(text) - keep])
                self._tail = text[len(text) - keep :]
                return parts
            before, text = text[:found], text[found + len(marker) :]
            if self._is_inside:
                parts += self._calls("".join(self._held) + before, self._style.end)
                self._held = []
            else:
                parts += self._text(before.rstrip())
            self._is_inside = not self._is_inside

    def finish(self) -> list[str | ToolCall]:
        """What is left at the end of the answer. A call that is only missing its end marker counts."""
        rest = "".join(self._held) + self._tail
        self._held, self._tail = [], ""
        if self._is_inside:
            return self._calls(rest, "")
        return self._text(rest)

    def _text(self, text: str) -> list[str]:
        return [text] if text and not (self.num_calls and text.isspace()) else []

    def _calls(self, content: str, end: str) -> list[str | ToolCall]:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        entries = found if isinstance(found, list) else [found]
        calls = [self._call(self.num_calls + i, entry) for i, entry in enumerate(entries)]
        if not calls or None in calls:
            return self._text(self._style.begin + content + end)
        self.num_calls += len(calls)
        return calls

    def _call(self, number: int, entry: object) -> ToolCall | None:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments = entry.get("arguments", entry.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        return ToolCall(number, f"call_{secrets.token_hex(12)}", name, json.dumps(arguments, ensure_ascii=False))


def _possible(text: str, marker: str, with_space: bool) -> int:
    """Characters at the end of `text` that may belong to a marker that has not come yet, or be the space before it."""
    for length in range(min(len(marker) - 1, len(text)), -1, -1):
        if text.endswith(marker[:length]):
            rest = text[: len(text) - length]
            return length + (len(rest) - len(rest.rstrip()) if with_space else 0)
    raise AssertionError("the empty prefix always matches")
