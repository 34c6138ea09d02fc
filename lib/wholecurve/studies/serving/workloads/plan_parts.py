"""The workloads that a serving plan can name: lengths, documents, agent sessions, or a recorded trace.

All lengths are in tokens and all times in seconds. A range ``[low, high]`` is drawn uniformly, both ends included;
equal ends fix the value. A heavy tail is written ``{median, sigma, low, high}``: log-normal, held within [low, high].
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from wholecurve.studies.plan_parts import Positive, Strict

Form = Literal["ids", "text", "messages"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _rising(ends: list[float]) -> list[float]:
    if ends[0] > ends[1]:
        raise ValueError(f"the range [{ends[0]:g}, {ends[1]:g}] runs backwards")
    return ends


Two = Field(min_length=2, max_length=2)
CountRange = Annotated[list[Positive], Two, AfterValidator(_rising)]
SecondsRange = Annotated[list[Seconds], Two, AfterValidator(_rising)]


class HeavyTail(Strict):
    """A log-normal amount: half of the draws lie below ``median``, and what falls outside [low, high] takes the end."""

    median: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    sigma: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]  # standard deviation of the logarithm
    low: Seconds = 0.0
    high: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"low {self.low:g}, median {self.median:g}, high {self.high:g} must rise in this order")
        return self


class HeavyTailTokens(HeavyTail):
    """A log-normal count of tokens."""

    low: Positive = 1
    high: Positive


def _written_as(amount: object) -> str:
    return "heavy_tail" if isinstance(amount, dict | HeavyTail) else "range"


Tokens = Annotated[
    Annotated[CountRange, Tag("range")] | Annotated[HeavyTailTokens, Tag("heavy_tail")], Discriminator(_written_as)
]
Delay = Annotated[
    Annotated[SecondsRange, Tag("range")] | Annotated[HeavyTail, Tag("heavy_tail")], Discriminator(_written_as)
]


AT_ONCE = Field(default_factory=lambda: [0.0, 0.0])


def most(amount: Tokens | Delay) -> float:
    """The largest value that an amount can take."""
    return amount[1] if isinstance(amount, list) else amount.high


def least(amount: Tokens | Delay) -> float:
    """The smallest value that an amount can take."""
    return amount[0] if isinstance(amount, list) else amount.low


class CommonPlan(Strict):
    """What all workloads have in common.

    ``prompts`` go as token ids, as one text, or as chat messages. Ids have exactly the planned lengths. Text and
    messages are words of the model's own tokenizer where one is at hand, and common English words where none is; the
    server then counts what it makes of them, template and special tokens included.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    prompts: Form = "ids"


class LengthsPlan(CommonPlan):
    """Single requests of drawn lengths, each with a prompt of its own.

    With ``shared_prefix_tokens`` the prompts of a group begin alike; requests go to the ``prefix_groups`` in turn.
    ``prompt_tokens`` counts the prefix.
    """

    kind: Literal["lengths"] = "lengths"
    prompt_tokens: Tokens
    output_tokens: Tokens
    shared_prefix_tokens: Annotated[int, Field(ge=0)] = 0
    prefix_groups: Positive = 1

    @model_validator(mode="after")
    def _prefix_is_shorter(self) -> Self:
        if self.shared_prefix_tokens and self.shared_prefix_tokens >= least(self.prompt_tokens):
            raise ValueError(
                f"shared_prefix_tokens: {self.shared_prefix_tokens} leave no token of its own to a prompt of "
                f"{least(self.prompt_tokens):g}"
            )
        if self.prefix_groups > 1 and not self.shared_prefix_tokens:
            raise ValueError("prefix_groups: there are groups only where shared_prefix_tokens is above 0")
        return self

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request that the plan allows."""
        return math.floor(most(self.prompt_tokens)) + math.floor(most(self.output_tokens))


class DocumentsPlan(CommonPlan):
    """Questions about long documents: a session is one document, and its questions follow one another.

    Each prompt is the document and one question; earlier answers are not in it. The lengths of documents are drawn from
    ``document_tokens``, or taken in turn from ``document_sizes``.
    """

    kind: Literal["documents"] = "documents"
    document_tokens: Tokens | None = None
    document_sizes: Annotated[list[Positive], Field(min_length=1)] | None = None
    questions_per_document: Positive = 1
    question_tokens: Tokens
    answer_tokens: Tokens

    @model_validator(mode="after")
    def _one_kind_of_length(self) -> Self:
        if (self.document_tokens is None) == (self.document_sizes is None):
            raise ValueError("document_tokens, document_sizes: exactly one of them must be there")
        return self

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request that the plan allows."""
        document = max(self.document_sizes) if self.document_sizes else most(self.document_tokens)
        return sum(map(math.floor, (document, most(self.question_tokens), most(self.answer_tokens))))


class SubagentsPlan(Strict):
    """Agents that a turn sets off: they run beside one another, each with a context of its own.

    The turn after it waits for all of them and finds one result of each in its prompt.
    """

    probability: Annotated[float, Field(gt=0, le=1)]  # that a turn which is not the last one sets some off
    fan_out: CountRange
    turns: CountRange
    first_prompt_tokens: Tokens


class AgentsPlan(CommonPlan):
    """Sessions of turns whose context grows, as those of a coding agent do.

    The first prompt is ``system_tokens`` that all sessions share and ``first_prompt_tokens`` of its own. Every further
    prompt is the one before it, the reply to it, and then the result of a tool (share ``tool_share`` of the turns,
    after ``tool_s``) or the next words of the user (after ``think_s``). The reply in it is synthesised from the seed
    with the planned length, and the live one is dropped: so every contender gets the same prompts. A session ends
    before its planned last turn where the context is full.

    ``tools`` are OpenAI function definitions, or "coding" for those of ``tools.py``; they need ``prompts: messages``,
    where tool turns then take the form of tool calls. ``tool_choice`` "none" keeps servers from parsing forced-length
    text as calls (vLLM answers 400 to "auto" unless it was started for it).
    """

    kind: Literal["agents"] = "agents"
    turns: CountRange
    system_tokens: Annotated[int, Field(ge=0)] = 0
    first_prompt_tokens: Tokens
    reply_tokens: Tokens
    tool_result_tokens: Tokens
    user_tokens: Tokens
    tool_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    think_s: Delay = AT_ONCE
    tool_s: Delay = AT_ONCE
    tools: Literal["coding"] | Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    tool_choice: Literal["none", "auto"] = "none"
    subagents: SubagentsPlan | None = None

    @field_validator("tools")
    @classmethod
    def _tools_are_functions(cls, tools: object) -> object:
        for i, tool in enumerate(tools if isinstance(tools, list) else []):
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise ValueError(f"tool {i} must be {{type: function, function: {{name: …, parameters: …}}}}")
        return tools

    @model_validator(mode="after")
    def _tools_need_messages(self) -> Self:
        if self.tools and self.prompts != "messages":
            raise ValueError(
                f"tools: definitions are part of a chat request and need prompts: messages, not {self.prompts}"
            )
        return self

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest *first* turn; how far later ones grow, only the model's window bounds."""
        first = most(self.first_prompt_tokens)
        if self.subagents:
            first = max(first, most(self.subagents.first_prompt_tokens))
        return self.system_tokens + math.floor(first) + math.floor(most(self.reply_tokens))


class TracePlan(CommonPlan):
    """Sessions of a recorded trace: its lengths, what its prompts share, its waits and its arrivals.

    ``format`` "auto" recognises the file by its content; see ``traces/``. ``speed_up`` divides arrivals and waits alike
    (an open load's own rate divides arrivals alone). ``window_s`` keeps the sessions that arrive in [from, to) of the
    recording, ``first`` the first so many of them. ``misfits``: a session with a request beyond the model's window, or
    one without prompt or reply, is refused by name, or dropped, counted and named. ``block_tokens`` says how many
    tokens a hash stands for, where the format's own number (512 in Mooncake's files) is not right.

    Contents are synthesised wherever the trace holds lengths or hashes alone. Recorded text gets a short mark in front,
    a different one in every level and repeat, so that no cache knows it from an earlier one.
    """

    kind: Literal["trace"] = "trace"
    path: Annotated[str, Field(min_length=1)]
    format: Literal["auto", "wholecurve", "mooncake", "azure", "burstgpt", "sharegpt", "bailian", "weka"] = "auto"
    speed_up: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    first: Positive | None = None
    window_s: SecondsRange | None = None
    misfits: Literal["refuse", "drop"] = "refuse"
    block_tokens: Positive | None = None

    @field_validator("window_s")
    @classmethod
    def _window_has_a_length(cls, window: list[float] | None) -> list[float] | None:
        if window is not None and window[0] == window[1]:
            raise ValueError(f"the window [{window[0]:g}, {window[1]:g}) is empty")
        return window

    @property
    def longest_tokens(self) -> None:
        """None: only the trace tells."""
        return None


WorkloadPlan = Annotated[LengthsPlan | DocumentsPlan | AgentsPlan | TracePlan, Field(discriminator="kind")]
