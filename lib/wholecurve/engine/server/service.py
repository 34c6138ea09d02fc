"""What the endpoints share: the engine's loop, the tokenizer, the limits, the metrics."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from wholecurve.engine.sampling import SamplingParams
from wholecurve.engine.server.answer import Answer, Choice, CollectedAnswer, Format
from wholecurve.engine.server.api_error import ApiError, bad_request
from wholecurve.engine.server.event_stream import StreamedAnswer
from wholecurve.engine.server.loop import EngineLoop, Submission
from wholecurve.engine.server.metrics import ServerMetrics
from wholecurve.engine.server.prompts import PromptEncoder
from wholecurve.engine.server.protocol import SamplingFields
from wholecurve.engine.server.settings import ServerSettings
from wholecurve.engine.server.token_text import TokenTexts
from wholecurve.engine.server.tools import tool_format
from wholecurve.errors import UserError


class Service:
    """One model behind the API. tokenizer: a copy of its own, the engine has another. about: for its metrics."""

    def __init__(self, engine, tokenizer, settings: ServerSettings, about: Mapping[str, str] | None = None):
        self.settings, self._engine = settings, engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self.engine_loop = EngineLoop(engine, settings.max_running, settings.max_queued)
        self.metrics = ServerMetrics(settings.model_name, about)
        self.encoder = PromptEncoder(tokenizer, settings)
        self.token_texts = TokenTexts(tokenizer)
        self.tool_format = tool_format(settings.tool_format, self.encoder.template)

    def check_model(self, name: str) -> None:
        """ApiError 404 for a model that is not here."""
        if name != self.settings.model_name:
            message = f"the model {name!r} does not exist here; this server has {self.settings.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar of a request, away from the engine's steps. ApiError 400 for one that is wrong."""
        if params.grammar is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.prepare, params)
        except UserError as error:
            raise bad_request(str(error), code="invalid_value") from None

    def close(self) -> None:
        """End the threads of tokenising and compiling."""
        self._thread.shutdown(wait=False)
        self.encoder.close()

    def empty_prompt(self) -> ApiError:
        """400 for a text without tokens."""
        return bad_request("prompt: it has no tokens", "prompt", "invalid_value")

    def answer(
        self,
        request: SamplingFields,
        answer_id: str,
        prompts: list[tuple[list[int], SamplingParams]],
        style: Format,
        arrival_s: float,
    ) -> Answer:
        """Submit one engine request per choice. prompts: token ids and parameters of each choice."""
        if request.stream:
            limit = self.settings.max_stream_bytes
            answer = StreamedAnswer(self.engine_loop, self.metrics, style, arrival_s, limit)
        else:
            answer = CollectedAnswer(self.engine_loop, self.metrics, style, arrival_s)
        submissions = []
        for index, (token_ids, params) in enumerate(prompts):
            choice = Choice(answer, index, f"{answer_id}-{index}", token_ids)
            answer.choices.append(choice)
            submissions.append(
                Submission(choice.request_id, token_ids, params, choice, request.priority, request.cache_salt)
            )
        answer.submit(submissions)
        return answer
