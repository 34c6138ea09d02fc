"""Under which conditions: hardware, model, precision, threads, what was sent, prefix cache, client, and the code."""

from wholecurve.card import settings
from wholecurve.card.checks.sides import hit_rates
from wholecurve.card.contenders import reports
from wholecurve.card.facts import RunFacts
from wholecurve.card.protocol import workload_sentences
from wholecurve.card.wording import count, names, span
from wholecurve.runs.provenance import hardware_line


def condition_lines(facts: RunFacts) -> list[tuple[str, str]]:
    """(what, text) for each condition; what a run does not say is written as "not recorded"."""
    lines = [
        ("Machine", _machine(facts)),
        ("Model", _model(facts)),
        (
            "For all contenders",
            settings.listed(settings.shared(reports(facts))) or "no setting is reported alike by all",
        ),
        *workload_sentences(facts.plan),
        ("Prefix cache", _prefix_cache(facts)),
        ("Client", _client(facts)),
    ]
    if prices := _prices(facts):
        lines.append(("Prices", prices))
    return [*lines, ("Software", _software(facts))]


def _machine(facts: RunFacts) -> str:
    machine = facts.provenance.get("hardware")
    if not machine:
        return "not recorded"
    text = hardware_line(machine)
    if machine.get("system"):
        text += f"; {machine['system']}"
    if facts.ceilings:
        text += (
            f"; ceilings measured in this run: {facts.ceilings['read_bytes_per_s'] / 1e9:.1f} GB/s read, "
            f"{facts.ceilings['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s in {facts.ceilings['dtype']}"
        )
    if facts.operated:
        text += f"; {names(facts.operated)}: run by somebody else, on hardware that this record does not know"
    return text


def _model(facts: RunFacts) -> str:
    plan = facts.plan
    text = f"{plan.get('model') or 'as each server calls it'}, {plan.get('dtype', 'precision not recorded')}"
    config = (facts.model or {}).get("config")
    if config and {"num_layers", "hidden_size", "num_kv_heads"} <= config.keys():
        text += f" ({config['num_layers']} layers of {config['hidden_size']}, {config['num_kv_heads']} key-value heads)"
    threads = plan.get("threads")
    return text + (f"; {count(threads, 'thread')}" if threads else "; as many threads as cores")


def _prefix_cache(facts: RunFacts) -> str:
    told = [100 * rate for name in facts.contenders for rate in hit_rates(facts, name).values()]
    measured = f"highest hit rates that were measured: {span(told, 1)} %" if told else "hits were not measured"
    return f"{facts.plan.get('prefix_cache', 'off')}; {measured}"


def _client(facts: RunFacts) -> str:
    if not facts.is_serving:
        return "none: engines are called in their own processes, so there is no server and no network in any number"
    client = facts.plan.get("client") or {}
    processes = client.get("processes", 1)
    return (
        f"one client for all, {processes} process{'es' if processes > 1 else ''}, over HTTP and SSE "
        f"({facts.plan.get('api', 'completions')}); a request is given up after {client.get('timeout_s', 600):g} s; "
        "what it adds to a latency is measured by `wholecurve client prove` (data/client)"
    )


def _prices(facts: RunFacts) -> str:
    rates = {one["name"]: one["usd_per_hour"] for one in facts.plan["contenders"] if one.get("usd_per_hour")}
    return ", ".join(f"{name} {rate:g} USD per hour with all its devices" for name, rate in rates.items())


def _software(facts: RunFacts) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in (facts.provenance.get("packages") or {}).items())
    text = f"Python {facts.provenance.get('python', 'not recorded')}, {packages or 'packages not recorded'}"
    environment = facts.provenance.get("environment") or {}
    return text + (f"; {settings.listed(environment)}" if environment else "")
