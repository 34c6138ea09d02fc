"""From messages and texts to token ids."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

from jinja2.exceptions import TemplateError

from wholecurve.engine.server.api_error import bad_request
from wholecurve.engine.server.chat_protocol import ChatRequest
from wholecurve.engine.server.settings import ServerSettings
from wholecurve.engine.server.tool_prompt import plain_messages, template_messages

_LONG_TEXT = 20_000  # characters; from here on tokenising takes longer than a step should wait for


class PromptEncoder:
    """Tokenises, and puts chats through the model's template. Long texts are tokenised on a thread of their own.

    tokenizer: nobody else's, because a tokenizer that truncates changes its state while it encodes.
    """

    def __init__(self, tokenizer, settings: ServerSettings):
        self._tokenizer, self._settings = tokenizer, settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._most_characters = settings.context_tokens * max(map(len, tokenizer.get_vocab()))

    @property
    def has_template(self) -> bool:
        """Whether chats can be served."""
        return bool(self._tokenizer.chat_template)

    @property
    def template(self) -> str:
        """The source of the chat template, all of them where there are several."""
        template = self._tokenizer.chat_template or ""
        return template if isinstance(template, str) else "\n".join(template.values())

    @property
    def knows_tools(self) -> bool:
        """Whether the template itself presents tools to the model."""
        return re.search(r"\btools\b", self.template) is not None

    async def encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        """Token ids of a text. ApiError 400 where it cannot fit into the context, which costs no tokenising."""
        if len(text) > self._most_characters:
            context = self._settings.context_tokens
            raise bad_request(
                f"{param}: {len(text)} characters are more than {context} tokens, the context, can hold",
                param,
                "context_length_exceeded",
            )

        def encode() -> list[int]:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

        if len(text) < _LONG_TEXT:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._thread, encode)

    def decode(self, token_ids: list[int]) -> str:
        """The text of a prompt of token ids, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    async def encode_chat(self, request: ChatRequest) -> list[int]:
        """Token ids of a conversation, ready for the answer. ApiError 400 for one that the template refuses."""
        if not self.has_template:
            raise bad_request(
                "the model has no chat template; start the server with --chat-template, or use completions"
            )
        tools = [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in request.tools]
        if request.tool_choice == "none":
            tools = []
        build = template_messages if self.knows_tools else plain_messages
        messages = build(request.messages, tools)
        options = {"tools": tools} if tools and self.knows_tools else {}
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options, **request.chat_template_kwargs
            )
        except (TemplateError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise bad_request(f"messages: the chat template refuses them ({reason})", "messages") from None
        return await self.encode(text, False, "messages")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)
