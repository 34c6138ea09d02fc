"""Tools and calls in the messages that a chat template gets."""

import json

from wholecurve.engine.server.chat_protocol import Message, ToolCallMessage

# As Hermes and Qwen put it, on which most open models have been trained.
_INTRODUCTION = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def _role(message: Message) -> str:
    """Templates know no developer."""
    return "system" if message.role == "developer" else message.role


def _arguments(call: ToolCallMessage) -> dict:
    return json.loads(call.function.arguments or "{}")


def template_messages(messages: list[Message], tools: list[dict]) -> list[dict]:
    """For a template that presents tools itself: arguments of earlier calls as objects."""
    result = []
    for message in messages:
        entry = {"role": _role(message), "content": message.content or ""}
        if message.name is not None:
            entry["name"] = message.name
        if message.tool_call_id is not None:
            entry["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": _arguments(call)},
                }
                for call in message.tool_calls
            ]
        result.append(entry)
    return result


def plain_messages(messages: list[Message], tools: list[dict]) -> list[dict]:
    """For a template that knows no tools: they are told in the system message, calls and results in plain text."""
    result = []
    for message in messages:
        content = message.content or ""
        if message.tool_calls:
            calls = "\n".join(
                "<tool_call>\n"
                + json.dumps({"name": call.function.name, "arguments": _arguments(call)}, ensure_ascii=False)
                + "\n</tool_call>"
                for call in message.tool_calls
            )
            content = f"{content}\n{calls}" if content else calls
        if message.role == "tool":
            result.append({"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"})
        else:
            result.append({"role": _role(message), "content": content})
    if tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        introduction = _INTRODUCTION.format(tools=listed)
        if result[0]["role"] == "system":
            before = f"{result[0]['content']}\n\n" if result[0]["content"] else ""
            result[0] = {"role": "system", "content": before + introduction}
        else:
            result.insert(0, {"role": "system", "content": introduction})
    return result
