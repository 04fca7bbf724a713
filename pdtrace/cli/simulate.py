"""`pdtrace simulate`: telemetry of a simulated P/D cluster, and the right answers beside it.

Owns options and what is printed. The cluster is pdtrace.simulate's.
"""

from __future__ import annotations

import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Final

import click

from pdtrace.cli.output import print_json

DIALECTS: Final = ("native", "dynamo", "vllm", "sglang")
WALK: Final = "walk"


@click.command("simulate")
@click.option("--scenario", required=True, metavar="NAME", help=f"A scenario, or {WALK}: all of them in turn.")
@click.option("--requests", type=click.IntRange(min=2), help="How many; each scenario has its own default.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Arrivals a second; the cluster's speed goes with it."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same files to the byte.")
@click.option("--endpoint", metavar="URL", help="Send to this OTLP/HTTP endpoint, such as http://127.0.0.1:4318.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a folder, or a file if the name has a suffix.")
@click.option("--dialect", type=click.Choice(DIALECTS), default="native", show_default=True, help="Whose words.")
@click.option("--mode", type=click.Choice(["sequential", "overlapped"]), help="How P and D are called.")
@click.option("--arrivals", type=click.Choice(["mooncake", "azure"]), help="Times, lengths, prefixes of a recording.")
@click.option("--realtime", is_flag=True, help="Tell each request when it ends; without it, as fast as possible.")
@click.option("--loop", is_flag=True, help="Begin again with the next seed when it is over, until Ctrl-C.")
@click.option("--run", "label", help="Label of the run; request ids begin with it.")
@click.option("--truth", type=click.Path(path_type=Path, dir_okay=False), help="Write the right answers here.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout, an object a run.")
def command(
    scenario: str,
    requests: int | None,
    rate: float | None,
    seed: int,
    endpoint: str | None,
    out: Path | None,
    dialect: str,
    mode: str | None,
    arrivals: str | None,
    realtime: bool,
    loop: bool,
    label: str | None,
    truth: Path | None,
    as_json: bool,
) -> None:
    """Play a scenario: healthy for its first half, then its one cause sets in.

    Writes ground_truth.json beside --out (with --endpoint: in the working folder, unless it loops or walks).
    """
    from pdtrace.simulate.scenarios import SCENARIOS

    if scenario != WALK and scenario not in SCENARIOS:
        raise click.UsageError(f"--scenario: {scenario!r} is not known; one of {', '.join(SCENARIOS)}, {WALK}")
    if (endpoint is None) == (out is None):
        raise click.UsageError("give --endpoint URL or --out PATH, one of them")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise click.UsageError(f"--endpoint: {endpoint!r} is no URL; it looks like http://127.0.0.1:4318")
    if out is not None and (loop or realtime):
        raise click.UsageError("--loop and --realtime go with --endpoint: a file has no present")
    names = list(SCENARIOS) if scenario == WALK else [scenario]
    if len(names) > 1 and out is not None and out.suffix:
        raise click.UsageError(f"--scenario {WALK} writes a folder for each scenario; give --out a name without suffix")
    if truth is None and endpoint is not None and len(names) == 1 and not loop:
        truth = Path("ground_truth.json")
    if realtime or loop:  # whoever starts a live load ends it so; what was told is then handed on, as with Ctrl-C
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    turn = 0
    try:
        while True:
            for name in names:
                told = _play(
                    name,
                    requests=requests,
                    rate=rate,
                    seed=seed + turn,
                    endpoint=endpoint,
                    out=out / name if out is not None and len(names) > 1 else out,
                    dialect=dialect,
                    mode=mode or "",
                    arrivals=arrivals or "",
                    realtime=realtime,
                    label=label,
                    truth=truth,
                )
                _print(told, as_json)
                sys.stdout.flush()
            turn += 1
            if not loop:
                return
    except KeyboardInterrupt:
        if not realtime and not loop:
            raise


def _play(
    name: str,
    *,
    requests: int | None,
    rate: float | None,
    seed: int,
    endpoint: str | None,
    out: Path | None,
    dialect: str,
    mode: str,
    arrivals: str,
    realtime: bool,
    label: str | None,
    truth: Path | None,
) -> dict[str, Any]:
    """One run; returns what was sent."""
    from pdtrace.simulate.emit import MODES, FileSink, OtlpSink, make_emitter
    from pdtrace.simulate.engine import START_NS
    from pdtrace.simulate.play import CountedSink, Player, truth_path
    from pdtrace.simulate.scenarios import SCENARIOS, Run, ready
    from pdtrace.simulate.truth import TruthFile, ttfts_without_cause

    scenario = SCENARIOS[name]
    if not mode and scenario.cluster.policy.mode not in MODES[dialect]:
        mode = MODES[dialect][0]
    if mode and mode not in MODES[dialect]:
        raise click.UsageError(f"--mode {mode}: systems that speak {dialect} call P and D {MODES[dialect][0]}")
    live = endpoint is not None
    start_ns = START_NS
    if live:
        length_s = 0.0 if realtime else (requests or scenario.requests) / (rate or scenario.workload.rate_per_s)
        start_ns = time.time_ns() - round(length_s * 1e9)
    # Ids come from seed and label: what is sent to a service twice must not be one and the same request.
    run_label = label or (f"{name}-{seed}-{start_ns // 10**9}" if live else f"{name}-{seed}")
    asked = {"seed": seed, "requests": requests, "rate_per_s": rate, "arrivals": arrivals, "mode": mode}
    where = truth if truth is not None else truth_path(out) if out is not None else None
    without_cause: dict[int, int] | None = None
    if where is not None and scenario.cause:
        without_cause = ttfts_without_cause(ready(scenario, start_ns=start_ns, with_cause=False, **asked))  # type: ignore[arg-type]
    sink = CountedSink(FileSink(out) if out is not None else OtlpSink(endpoint or ""))
    if where is not None:
        where.parent.mkdir(parents=True, exist_ok=True)
    started_s = time.perf_counter()

    player = Player(
        # Ids are drawn by run: scenarios of one seed, told one after the other, must not share a trace.
        lambda run: make_emitter(dialect, sink, run.simulation.facts, zlib.crc32(run_label.encode())),
        lambda run: None if where is None else TruthFile(where, run, {"dialect": dialect}, without_cause),
        realtime,
    )
    run: Run = ready(scenario, start_ns=start_ns, run=run_label, on_worker_change=player.changes, **asked)  # type: ignore[arg-type]
    ledger = player.play(run)
    if sink.failure and not realtime:
        raise click.ClickException(sink.failure)
    return {
        "scenario": name,
        "cause": scenario.cause or None,
        "stage": run.stage or None,
        "affected": scenario.affected or None,
        "seed": seed,
        "run": run_label,
        "dialect": dialect,
        "mode": run.simulation.policy.mode,
        "start_ns": start_ns,
        "onset_ns": run.onset_ns if scenario.cause else None,
        "requests": sum(ledger.values()),
        "ledger": ledger,
        "bodies": sink.bodies,
        "body_bytes": sink.body_bytes,
        "records": sink.records_written,
        "undelivered": sink.undelivered,
        "sent_to": endpoint or str(out),
        "ground_truth": None if where is None else str(where),
        "seconds": round(time.perf_counter() - started_s, 3),
    }


def _print(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in told["ledger"].items())
    print(f"{told['scenario']} (seed {told['seed']}): {told['requests']} requests to {told['sent_to']}: {outcomes}")
    if told["cause"]:
        print(f"  cause: {told['cause']}; it shows in {told['stage'] or 'no stage'}")
    if told["undelivered"]:
        print(f"  {told['undelivered']} request bodies could not be delivered")
    if told["ground_truth"]:
        print(f"  right answers: {told['ground_truth']}")
