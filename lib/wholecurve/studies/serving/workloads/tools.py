"""Tool definitions as a coding agent sends them, and calls that fit them."""

from typing import Any

CODING_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "description": what} for key, (kind, what) in properties.items()},
                "required": list(properties),
            },
        },
    }
    for name, description, properties in (
        (
            "read_file",
            "Read lines of a file in the workspace.",
            {
                "path": ("string", "Path of the file, from the root of the workspace."),
                "first_line": ("integer", "The first line to read, from 1."),
                "last_line": ("integer", "The last line to read."),
            },
        ),
        (
            "search_text",
            "Search the workspace for a regular expression; returns matching lines with file and line number.",
            {
                "pattern": ("string", "The regular expression."),
                "folder": ("string", "Search below this folder only."),
            },
        ),
        (
            "edit_file",
            "Replace a passage of a file. The passage must be there exactly once.",
            {
                "path": ("string", "Path of the file, from the root of the workspace."),
                "old_text": ("string", "The passage to replace, with its blanks and line ends."),
                "new_text": ("string", "What takes its place."),
            },
        ),
        (
            "run_command",
            "Run a shell command in the workspace and return its output and exit status.",
            {
                "command": ("string", "The command line."),
                "timeout_s": ("number", "Stop it after so many seconds."),
            },
        ),
    )
]


def argument_names(tool: dict[str, Any]) -> list[str]:
    """The parameters that a call has to give and that take any text."""
    parameters = tool["function"].get("parameters") or {}
    properties = parameters.get("properties", {})
    return [
        name
        for name in parameters.get("required", [])
        if _kind(parameters, name) == "string" and "enum" not in properties.get(name, {})
    ]


def call_arguments(tool: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """Arguments of a call: ``texts`` by parameter, and for each other required one a plain value of its kind."""
    parameters = tool["function"].get("parameters") or {}
    plain = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    arguments = {}
    for name in parameters.get("required", []):
        choices = parameters.get("properties", {}).get(name, {}).get("enum")
        arguments[name] = texts.get(name, choices[0] if choices else plain.get(_kind(parameters, name), ""))
    return arguments


def _kind(parameters: dict[str, Any], name: str) -> str:
    return parameters.get("properties", {}).get(name, {}).get("type", "string")
