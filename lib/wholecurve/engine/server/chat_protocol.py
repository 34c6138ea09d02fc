"""What clients may send to /v1/chat/completions."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from wholecurve.engine.server.protocol import MOST_LOGPROBS, SamplingFields, Strict

# What a template is given by the server itself.
_RESERVED = {"messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "conversation"}


class Function(Strict):
    """A function that the model may call. strict: arguments of forced calls always match the schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


@dataclass(frozen=True)
class ForcedTool:
    """The function that the model has to call."""

    name: str


class CalledFunction(Strict):
    name: str
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, value: str) -> str:
        try:
            is_object = isinstance(json.loads(value or "{}"), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError("it must be the text of a JSON object")
        return value


class ToolCallMessage(BaseModel):
    """A call that the model made earlier; clients send it back as they got it, with fields of their own."""

    model_config = ConfigDict(extra="ignore", strict=True)
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Strict):
    """One message. Fields of an answer that a client sends back with nothing in them are allowed."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    name: str | None = None
    tool_calls: list[ToolCallMessage] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list | None = None

    @field_validator("content")
    @classmethod
    def _text(cls, value: Any) -> str | None:
        """Text parts are joined; there is nothing here that could look at pictures or listen."""
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError("it must be a string or a list of text parts")
        texts = []
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                raise ValueError(f"parts must be of type text with a text; got {str(kind)[:40]!r}")
            texts.append(part["text"])
        return "".join(texts)

    @model_validator(mode="after")
    def _complete(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: only in messages of the assistant, not of {self.role}")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: missing")
        return self


class JsonSchema(Strict):
    name: str
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema", default_factory=dict)]


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema: it goes with type json_schema, and that type needs it")
        return self


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(default_factory=list)]
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: Annotated[dict[str, Any], Field(default_factory=dict)]

    @field_validator("tool_choice")
    @classmethod
    def _choice(cls, value: Any) -> str | ForcedTool | None:
        if value in ("auto", "none", "required"):
            return value
        name = value.get("function") if isinstance(value, dict) and value.keys() == {"type", "function"} else None
        if not isinstance(name, dict) or name.keys() != {"name"} or not isinstance(name["name"], str):
            raise ValueError('it must be auto, none, required, or {"type": "function", "function": {"name": …}}')
        return ForcedTool(name["name"])

    @model_validator(mode="after")
    def _consistent(self) -> "ChatRequest":
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ValueError("tools: two functions have one name")
        if self.tool_choice not in (None, "none", "auto") and not names:
            raise ValueError("tool_choice: only with tools")
        if isinstance(self.tool_choice, ForcedTool) and self.tool_choice.name not in names:
            raise ValueError(f"tool_choice: no tool is called {self.tool_choice.name!r}")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens: it differs from max_completion_tokens; give one of them")
        if reserved := _RESERVED & self.chat_template_kwargs.keys():
            raise ValueError(f"chat_template_kwargs: {min(reserved)} is not the client's to give")
        if self.response_format and self.response_format.type != "text" and self.tools and self.tool_choice != "none":
            raise ValueError("response_format: not together with tools, unless tool_choice is none")
        return self
