"""transformers with static batches: a batch is generated to its end before the next one starts."""

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from wholecurve.studies.contenders.base import Clock, Contender, ContenderSettings
from wholecurve.studies.request import Request
from wholecurve.trace import RequestTrace


class _RowLengths(StoppingCriteria):
    """Stops each row at its own length and notes when each step's tokens were there."""

    def __init__(self, prompt_width: int, output_tokens: list[int], clock: Clock):
        self.prompt_width, self.clock = prompt_width, clock
        self.output_tokens = torch.tensor(output_tokens)
        self.step_times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        self.step_times.append(self.clock())
        return input_ids.shape[1] - self.prompt_width >= self.output_tokens


class TransformersContender(Contender):
    """`model.generate` on padded batches of `concurrency` requests."""

    def __init__(self, settings: ContenderSettings):
        torch.set_num_threads(settings.threads)
        transformers.utils.logging.set_verbosity_error()
        dtype = getattr(torch, settings.dtype)
        self.model = AutoModelForCausalLM.from_pretrained(
            settings.hf_folder,
            dtype=dtype,
            local_files_only=True,
            attn_implementation=settings.options.get("attention", "sdpa"),
        ).eval()
        # Sampling defaults of the checkpoint and its end-of-sequence tokens play no part here.
        self.model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)

    def describe(self) -> dict:
        return {
            "version": transformers.__version__,
            "torch": torch.__version__,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(self.model.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "attention": self.model.config._attn_implementation,
            "batching": "static",
            "prefix_cache": False,
        }

    @torch.inference_mode()
    def _generate(self, batch: list[Request], clock: Clock) -> tuple[list[list[int]], list[float]]:
        """Token ids of each row and the time of each step."""
        width = max(len(request.prompt_ids) for request in batch)
        # Padding goes to the left, so that every row's newest token is in the last column.
        input_ids = torch.tensor([[0] * (width - len(r.prompt_ids)) + r.prompt_ids for r in batch])
        mask = torch.tensor([[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in batch])
        lengths = [request.output_tokens for request in batch]
        rows = _RowLengths(width, lengths, clock)
        output = self.model.generate(
            input_ids,
            attention_mask=mask,
            max_new_tokens=max(lengths),
            stopping_criteria=StoppingCriteriaList([rows]),
        )
        return [row[width : width + n].tolist() for row, n in zip(output, lengths)], rows.step_times

    def run_closed_loop(self, requests: list[Request], concurrency: int) -> tuple[list[RequestTrace], dict]:
        clock = Clock()
        traces: list[RequestTrace] = []
        tokens: dict[str, list[int]] = {}
        # A slot frees when its request has its last token; the next request of that slot waits for the batch to end.
        free_at = [0.0] * concurrency
        for start in range(0, len(requests), concurrency):
            batch = requests[start : start + concurrency]
            rows, times = self._generate(batch, clock)
            for request, row, scheduled in zip(batch, rows, sorted(free_at)):
                arrivals = times[: request.output_tokens]
                tokens[request.request_id] = row
                traces.append(
                    RequestTrace(
                        request=request.request_id,
                        prompt_tokens=len(request.prompt_ids),
                        cached_tokens=0,
                        scheduled_s=scheduled,
                        sent_s=scheduled,
                        arrivals_s=arrivals,
                        arrival_tokens=[1] * len(arrivals),
                        finished_s=arrivals[-1],
                    )
                )
            free_at = [trace.finished_s for trace in traces[-len(batch) :]]
        return traces, tokens
