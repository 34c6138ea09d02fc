"""The engine's part of the day on a GPU machine: its steps compiled ahead, its tokens checked, its steps timed.

Timed steps are step studies (`wholecurve step`), one folder each under `steps/`, of a model with the shape of Llama 3.1
8B and random weights: per-user speed and throughput of decode steps with and without drafts and CUDA graphs, and
prefill steps on top of a cached context.
"""

import dataclasses
import gc

import torch

from wholecurve.engine import Engine, SamplingParams
from wholecurve.engine.graphs import GraphedModel, StaticBatch
from wholecurve.engine.speculation import NgramProposer
from wholecurve.kernels.verification import verification
from wholecurve.models import llama
from wholecurve.models.batch import ForwardBatch
from wholecurve.profiling.compile import compile_launch
from wholecurve.profiling.model_launches import distinct_launches, recorded_launches, step_launches
from wholecurve.studies.steps.acceptance import Acceptance
from wholecurve.studies.steps.decode_study import CONCURRENCY, DecodeOptions, cell_name, decode_study, scaled_context
from wholecurve.studies.steps.dummy import dummy_config, dummy_model
from wholecurve.studies.steps.model import load_step_model
from wholecurve.studies.steps.prefill_study import TOKENS, PrefillOptions, prefill_study
from wholecurve.studies.steps.prefill_study import cell_name as prefill_cell_name
from wholecurve.studies.steps.record import StepRecord
from wholecurve.studies.steps.study import Settings, StepStudy

CHECKS, PROBLEMS = "engine_checks.jsonl", "engine_problems.jsonl"
BLOCK_SIZE = 16
DRAFTS = (Acceptance(0, 0.0, "conditional"), Acceptance(3, 0.75, "conditional"))
SHARED_CONTEXTS = 8  # of the longest context: that of every request would take hundreds of GiB


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a day, or its rehearsal, runs. model: a dummy by name; checked: the one that answers requests."""

    model: str
    checked: str
    dtype: str
    concurrency: tuple[int, ...]
    tokens: tuple[int, ...]
    chunk: int
    cached: int
    device: str
    settings: Settings
    new_tokens: int


REAL = Sizes(
    "llama-8b",
    "smollm2-135m",
    "bfloat16",
    CONCURRENCY,
    TOKENS,
    4096,
    8192,
    "cuda",
    Settings(samples=25, seconds=3.0),
    48,
)
REHEARSED = Sizes(
    "tiny", "tiny", "float32", (1, 3), (16, 40), 16, 32, "cpu", Settings(samples=3, seconds=0.1, memory_bytes=2**26), 8
)


def sizes_of(rehearse):
    """The Sizes of a day or of its rehearsal."""
    return REHEARSED if rehearse else REAL


def compile_jobs():
    """Names of steps to compile ahead, for `compile_step`."""
    return [f"decode with {one.drafts} drafts" for one in DRAFTS] + ["prefill"]


def compile_step(name, target, rehearse):
    """Compile every kernel of a step for a target, in a worker process; nothing is run."""
    sizes = sizes_of(rehearse)
    model = dummy_model(dummy_config(sizes.model), getattr(torch, sizes.dtype), "meta")
    sequences, width = max(sizes.concurrency), 129
    caches = [spec.allocate(sequences * width, BLOCK_SIZE, model.dtype, model.device) for spec in model.cache_specs]
    drafts = {f"decode with {one.drafts} drafts": one.drafts for one in DRAFTS}.get(name)
    if drafts is None:
        launches = step_launches(llama, model, meta_chunks(sizes, width), caches, target)
    else:
        batch = StaticBatch(sequences, 1 + drafts, (width,), model.device).forward_batch()
        launches = step_launches(llama, model, batch, caches, target)
        launches += verification_launches(model, sequences, drafts)
    for launch in distinct_launches(launches):
        compile_launch(launch, target)


def meta_chunks(sizes, width):
    """A batch of two chunks on the meta device."""
    static, count = StaticBatch(2, sizes.chunk, (width,), torch.device("meta")), sizes.chunk
    batch = static.forward_batch()
    return ForwardBatch(
        token_ids=batch.token_ids,
        positions=batch.positions,
        logits_rows=batch.logits_rows[:2],
        cu_q=torch.tensor([0, count, 2 * count]),
        context_lens=batch.context_lens,
        groups=batch.groups,
        num_decodes=0,
        max_q=count,
    )


def verification_launches(model, requests, drafts):
    """The launches that verify the drafts of a decode step, on the meta device."""
    whole = torch.empty(requests, dtype=torch.int64, device="meta")
    with recorded_launches() as found:
        verification(
            torch.empty(requests, drafts, dtype=torch.int64, device="meta"),
            torch.empty(requests, 1 + drafts, model.config.vocab_size, dtype=model.dtype, device="meta"),
            torch.empty(requests, device="meta"),
            whole,
            whole,
            form="triton",
            acceptance_rates=torch.empty(requests, drafts, device="meta"),
        )
    return found


def check_engine(day):
    """Greedy tokens of an engine with graphs, and of one that speculates, against those of the plain engine."""
    sizes, have = sizes_of(day.rehearse), {row["case"] for row in day.lines(CHECKS)}
    variants = {"graphs": {}, "speculation": {"speculation": 4}, "graphs, speculation": {"speculation": 4}}
    missing = [name for name in variants if name not in have]
    if not missing or day.late("checks of the engine"):
        return
    rows = []
    try:
        # float32: with bfloat16 a product of another number of rows would turn near ties of random weights
        model = dummy_model(dummy_config(sizes.checked), torch.float32, sizes.device)
        expected = answers(model, sizes.new_tokens)
        for name in missing:
            rows.append({"case": name, **compared(model, name, variants[name], expected, sizes.new_tokens)})
    except Exception as error:  # a broken engine must not end the day
        rows.append({"case": "engine", "problem": f"{type(error).__name__}: {str(error)[:300]}"})
    day.append(CHECKS, rows)
    bad = [row for row in rows if row["problem"]]
    day.say(f"engine: {len(rows)} variants checked, {len(bad)} wrong")


def compared(model, name, options, expected, new_tokens):
    """What is wrong with the tokens of one variant of the engine, "" where nothing is."""
    if name.startswith("graphs"):
        model = GraphedModel(model, debug=True)
    drafts = options.get("speculation")
    proposer = NgramProposer(drafts, min_match=1) if drafts else None
    try:
        found = answers(model, new_tokens, speculation=proposer)
    except Exception as error:  # the other variants are still checked
        return {"problem": f"{type(error).__name__}: {str(error)[:300]}"}
    steps = {"replayed_steps": model.num_replayed} if isinstance(model, GraphedModel) else {}
    if steps and not model.num_replayed:
        return {"problem": "no step was replayed in a graph", **steps}
    for request, (of_plain, tokens) in enumerate(zip(expected, found, strict=True)):
        if of_plain != tokens:
            place = next(i for i, pair in enumerate(zip(of_plain, tokens)) if pair[0] != pair[1])
            return {"problem": f"request {request} has another token at place {place}", **steps}
    return {"problem": "", **steps}


def answers(model, new_tokens, **options):
    """Greedy tokens of some requests of different lengths, half of them with a repeated text to draft from."""
    generator = torch.Generator().manual_seed(0)
    prompts = []
    for index, length in enumerate((3, 17, 40, 64, 90, 120)):
        prompt = torch.randint(0, model.config.vocab_size, (length,), generator=generator).tolist()
        prompts.append(prompt if index % 2 else (prompt * 3)[: 2 * length])
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return Engine(model, cache_tokens=4096, max_sequences=8, check=True, **options).generate(prompts, params)


def time_engine(day, device):
    """Every cell that is not there yet, as far as the budget goes. device: a Device with measured ceilings."""
    sizes, loaded = sizes_of(day.rehearse), []

    def model(graphs):
        if not loaded:
            options = dict(dtype=sizes.dtype, device=sizes.device, form="torch", threads=1)  # the GPU has its own
            loaded.append(load_step_model(dummy=sizes.model, **options))
        return dataclasses.replace(loaded[0], graphs=graphs)

    for folder, cell, run in cells(sizes, known_ceilings(device, sizes)):
        record = StepRecord(day.folder / "steps" / folder)
        if record.has(cell) or day.late(f"{cell} of {folder}"):
            continue
        try:
            run(model, record.folder)
            row = next(row for row in record.rows() if name_of(row) == cell)
            times = row["note"] if row["step_median_ms"] is None else f"{row['step_median_ms']:.3f} ms"
            day.say(f"{folder} {cell}: {times}")
        except Exception as error:  # out of memory, for instance: the day goes on
            problem = f"{type(error).__name__}: {str(error)[:300]}"
            day.append(PROBLEMS, [{"study": folder, "cell": cell, "problem": problem}])
            day.say(f"{folder} {cell}: {problem}")
        gc.collect()


def known_ceilings(device, sizes):
    """The measured ceilings of a Device as step studies take them."""
    read = device.ceiling("memory_bytes_per_s", ("measured read",))
    gemm = device.ceiling("bfloat16_flops_per_s", ("measured GEMM",))
    source = "measured (cpu)" if sizes.device == "cpu" else "measured (gpu)"
    rates = {"read_bytes_per_s": read.value, "gemm_flops_per_s": gemm.value}
    return {"source": source, "dtype": "bfloat16", **rates, "trials": "see device.json"}


def cells(sizes, ceilings):
    """(study folder, cell, run(model, folder)) in the order of the day: what is most worth knowing comes first."""
    settings = dataclasses.replace(sizes.settings, known_ceilings=ceilings)
    on_gpu = sizes.device == "cuda"
    found, scaled = [], {}
    for contexts in (None, SHARED_CONTEXTS):
        for graphs in (True, False) if on_gpu else (False,):
            for acceptance in DRAFTS:
                where = "own-context" if contexts is None else f"{contexts}-long-contexts"
                how = "graphs" if graphs else "eager"
                folder = f"decode-{where}-{acceptance.drafts}-drafts-{how}"
                options = DecodeOptions(acceptance, sizes.concurrency, contexts=contexts)
                for requests in sizes.concurrency:
                    run = decode_cell(options, settings, graphs, requests, scaled)
                    found.append((folder, cell_name(requests, 1), run))
        if contexts is None:
            for tokens in sizes.tokens:
                options = PrefillOptions((tokens,), sizes.chunk, sizes.cached)
                run = prefill_cell(options, settings)
                found.append(("prefill", prefill_cell_name(tokens, 1), run))
    return found


def decode_cell(options, settings, graphs, requests, scaled):
    """A function that measures one decode cell. scaled: contexts that are known, by the number of different ones."""

    def run(model, folder):
        one = model(graphs)
        if options.contexts not in scaled:
            # what the largest cell with the most drafts can hold, so that all studies have one context
            most = dataclasses.replace(options, acceptance=DRAFTS[-1])
            scaled[options.contexts] = scaled_context(StepStudy(one, settings, folder), most)
        context, notes = scaled[options.contexts]
        decode_study(one, dataclasses.replace(options, concurrency=(requests,), context=context), settings, folder)
        if notes:
            StepRecord(folder).write("scaling", notes)

    return run


def prefill_cell(options, settings):
    """A function that measures one prefill cell."""

    def run(model, folder):
        prefill_study(model(False), options, settings, folder)

    return run


def name_of(row):
    """The cell of a row."""
    if row["kind"] == "decode":
        return cell_name(row["requests"], row["repeat"])
    return prefill_cell_name(row["new_tokens"], row["repeat"])
