"""Everything that can be known to be wrong before a server starts: each finding is one line, all of them are told."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.runs import provenance
from wholecurve.studies.serving.bench import Bench, ModelFacts
from wholecurve.studies.serving.client.credentials import api_key_from
from wholecurve.studies.serving.client.profiles import profile_of
from wholecurve.studies.serving.demand import longest_tokens
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.plan_parts import RUNNING, ServingContender

# Memory that a server's process takes beside weights and cache: an interpreter with its libraries.
_PROCESS_BYTES = 700 * 2**20
_SPARE_FILES = 200  # of a process, beside its connections
_BYTES = {"float32": 4, "bfloat16": 2}


def make_bench(plan: ServingPlan, out: Path) -> Bench:
    """The bench of a plan after every check that needs no server; UserError holds one line for each finding."""
    findings = list(_findings(plan))
    if findings:
        raise UserError(_joined(findings))
    files, model = _model(plan)
    bench = Bench(plan, files, model, plan.threads or provenance.usable_cores(), out / "logs")
    findings = list(_workload_findings(bench)) or list(_memory_findings(bench))
    if findings:
        raise UserError(_joined(findings))
    return bench


def _joined(findings: list[str]) -> str:
    if len(findings) == 1:
        return findings[0]
    return "\n  ".join([f"{len(findings)} things stand in the way, nothing was started:", *findings])


def _model(plan: ServingPlan):
    if plan.model is None:
        return None, ModelFacts(None, None)
    from wholecurve.models.resolve import resolve

    files = resolve(plan.model)
    return files, ModelFacts.of(read_json(files.hf_folder() / "config.json"))


def _findings(plan: ServingPlan) -> Iterator[str]:
    for contender in plan.contenders:
        for check in (_available, _takes_the_api):
            yield from _line(contender, lambda check=check, contender=contender: check(plan, contender))
    if plan.model is None and plan.workload.prompts == "ids" and plan.workload.kind != "trace":
        yield (
            "workload.prompts: token ids need the vocabulary of a model, and the plan names none; "
            "name it under model, or ask for prompts: text"
        )
    path = getattr(plan.workload, "path", None)
    if path is not None and not os.path.isfile(path):
        yield f"workload.path: {path}: {'a folder' if os.path.isdir(path) else 'no such file'}; a trace is one file"


def _line(contender: ServingContender, check: Callable[[], None]) -> Iterator[str]:
    try:
        check()
    except UserError as error:
        text = str(error)
        yield text if text.startswith("contender ") else f"contender {contender.name}: {text}"


def _available(plan: ServingPlan, contender: ServingContender) -> None:
    """Packages and peers of a server that is started; of a running one, that it answers and has the model."""
    from wholecurve.studies.serving.servers import SERVERS, ManagedServer, Needs, parse_server_options

    recipe = SERVERS[contender.server]
    recipe.require_available()
    if contender.server == RUNNING:
        api_key = api_key_from(contender.api_key_env) if contender.api_key_env else None
        options = parse_server_options(contender.server, contender.options)
        with ManagedServer(
            recipe, None, options, Path(os.devnull), Needs(1, 1, 1), label=contender.name, api_key=api_key
        ):
            pass  # to look at it is enough


def _takes_the_api(plan: ServingPlan, contender: ServingContender) -> None:
    from wholecurve.studies.serving.servers import SERVERS

    recipe, prompts = SERVERS[contender.server], plan.workload.prompts
    if plan.api not in recipe.apis:
        raise UserError(f"server {contender.server} has no API {plan.api}; it has: {', '.join(recipe.apis)}")
    if plan.api == "chat" and prompts != "messages":
        raise UserError(f"api chat takes messages, and the workload's prompts are {prompts}; write prompts: messages")
    if plan.api == "completions" and prompts == "messages":
        raise UserError("api completions takes no messages; write api: chat, or prompts: text")
    profile = contender.profile or recipe.profile
    if prompts == "ids" and not (recipe.takes_token_ids and profile_of(profile).ids_field):
        raise UserError(f"its profile {profile} takes no token ids as a prompt; write prompts: text")


def _workload_findings(bench: Bench) -> Iterator[str]:
    """What only the sessions themselves tell: whether they fit the model, and the capacity that the plan gives."""
    capacity = bench.plan.capacity
    for point in bench.levels:
        where = f"load level {point.load:g}"
        try:
            sessions = bench.prepared(point).sessions
        except UserError as error:
            yield str(error)
            return  # the other levels would say the same
        longest, window = longest_tokens(sessions), bench.model.max_tokens
        if window is not None and longest > window:
            yield f"{where}: a request has {longest} tokens, the model's window holds {window}; plan shorter ones"
            return
        if point.load_kind != "request_rate" and len(sessions) < 2 * point.load:
            yield f"{where}: the workload has {len(sessions)} sessions, at least two for each in flight are needed"
    needed = bench.demand_of_the_load
    yield from _too_many_files(bench, needed.sequences)
    if capacity.sequences is not None and capacity.sequences < needed.sequences:
        yield (
            f"capacity.sequences: {capacity.sequences} requests at once are fewer than the {needed.sequences} of the "
            "largest load, so requests would wait in the server instead of being served"
        )
    if capacity.cache_tokens is not None and capacity.cache_tokens < needed.sequence_tokens:
        yield (
            f"capacity.cache_tokens: {capacity.cache_tokens} tokens do not hold the longest request, "
            f"{needed.sequence_tokens} tokens"
        )


def _too_many_files(bench: Bench, requests: int) -> Iterator[str]:
    """Every request in flight is an open connection, that is an open file, of a process of the client."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = requests // bench.plan.client.processes + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and needed > soft:
        yield (
            f"load: {requests} requests in flight need about {needed} open files in each process of the client, "
            f"{soft} are allowed; run `ulimit -n {needed}` first, or raise client.processes"
        )


def _memory_findings(bench: Bench) -> Iterator[str]:
    """Servers that are up together must fit into memory together."""
    available = provenance.available_memory_bytes()
    started = [contender for contender in bench.plan.contenders if contender.server != RUNNING]
    if available is None or not started or bench.files is None:
        return
    one = _weights_bytes(bench) + bench.cache_bytes + _PROCESS_BYTES
    up = len(started) if bench.plan.servers == "together" else 1
    if up * one > available:
        gib = 2**30
        yield (
            f"servers: {up} servers need about {up * one / gib:.1f} GiB ({one / gib:.1f} GiB each: weights, "
            f"{bench.demand.cache_tokens} tokens of cache, the process), {available / gib:.1f} GiB are free; "
            + ("write servers: one at a time, or lower the load" if up > 1 else "lower the load or capacity")
        )


def _weights_bytes(bench: Bench) -> int:
    folder = bench.files.hf_folder()
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return stored * _BYTES[bench.plan.dtype] // 2  # checkpoints hold two bytes for each weight
