"""Abuse: how much memory peers can make a server use, and how an honest client is affected.

Exit code 0 when every attack stayed within its budget, the honest client got every answer, no file stayed open, the log
stayed small and without a traceback and, with `--twins`, each twin exceeded the budget; 1 with a line for each
expectation that failed.
"""

import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from abuse import http_attacks
from abuse.scenarios import Scenario, scenarios
from abuse.victim import MIB, Outcome, attack

HTTP: Final = "http"
RUNS: Final = Path(__file__).resolve().parents[3] / ".gantry"
HEADLINES: Final = (
    "attack", "guard", "opened", "closed", "sent", "RSS before", "peak", "after", "may grow", "files", "peak", "after",
    "p99 quiet", "attacked", "errors", "log",
)  # fmt: skip


def run_one(
    scenario: Scenario, directory: Path, *, is_guarded: bool = True, requests: int = 200, quiet_requests: int = 200
) -> Outcome:
    """Run one attack on a server of its own below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    victim = scenario.victim(directory, is_guarded=is_guarded)
    requests = min(requests, scenario.requests_max)
    return asyncio.run(
        attack(scenario.name, victim, scenario.kind, scenario.options, requests=requests, quiet_requests=quiet_requests)
    )


def cost_faults(scenario: Scenario, outcome: Outcome) -> list[str]:
    """Return the costs of the attack that exceed its guard."""
    found = []
    if outcome.growth > scenario.growth_max:
        found.append(f"memory grew by {outcome.growth / MIB:.0f} MiB, allowed are {scenario.growth_max / MIB:.0f}")
    most = scenario.flood_bytes_per_answer_max
    if most is not None and outcome.sent_per_answer > most:
        waited = outcome.sent_per_answer / MIB
        found.append(f"an honest answer waited for {waited:.1f} MiB of the flood, allowed are {most / MIB:.0f}")
    return found


def faults(scenario: Scenario, outcome: Outcome) -> list[str]:
    """Return the failed expectations about an attack."""
    found = [f"the honest client: {error}" for error in outcome.errors]
    found += cost_faults(scenario, outcome)
    if outcome.tracebacks:
        found.append(f"{outcome.tracebacks} tracebacks in the log")
    if outcome.log_bytes > scenario.log_bytes_max:
        found.append(f"{outcome.log_bytes:,} bytes of log, allowed are {scenario.log_bytes_max:,}")
    if outcome.files_after > outcome.files_before + scenario.files_left_max:
        found.append(f"{outcome.files_after} files are open, before the attack there were {outcome.files_before}")
    return found


def p99(times_ms: Sequence[float]) -> float:
    return statistics.quantiles(times_ms, n=100)[98] if len(times_ms) > 1 else 0.0


def row(scenario: Scenario, outcome: Outcome, *, is_guarded: bool) -> list[str]:
    """Return a line of the table."""
    return [
        outcome.name, "on" if is_guarded else "off", str(outcome.opened), str(outcome.closed),
        f"{outcome.sent_bytes / MIB:.0f}", *(f"{one / MIB:.0f}" for one in (
            outcome.rss_before, outcome.rss_peak, outcome.rss_after, scenario.growth_max)),
        str(outcome.files_before), str(outcome.files_peak), str(outcome.files_after),
        f"{p99(outcome.quiet_ms):.1f}", f"{p99(outcome.attacked_ms):.1f}",
        f"{len(outcome.errors)}/{len(outcome.attacked_ms)}", f"{outcome.log_bytes / 1024:.0f}",
    ]  # fmt: skip


def table(rows: Sequence[Sequence[str]], headlines: Sequence[str] = HEADLINES) -> str:
    """Format the table with aligned columns, numbers to the right."""
    widths = [max(len(line[column]) for line in [headlines, *rows]) for column in range(len(headlines))]
    return "\n".join(
        "  ".join(
            word.ljust(width) if number < 2 else word.rjust(width)
            for number, (word, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [headlines, *rows]
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", metavar="NAME[,NAME]", help="These attacks only; --list names them.")
@click.option("--list", "is_listing", is_flag=True, help="Name the attacks and end.")
@click.option(
    "--scale", default=1.0, show_default=True, help="Share of connections and requests; below 1 with small budgets."
)
@click.option(
    "--twins", is_flag=True, help="Run each attack that a setting bounds again without it, which must then cost more."
)
@click.option("--requests", default=300, show_default=True, help="Requests of the honest client beside each attack.")
@click.option("--keep", is_flag=True, help="Keep the stores and the logs even when nothing was found.")
def main(only: str | None, is_listing: bool, scale: float, twins: bool, requests: int, keep: bool) -> None:
    """Attack real brokers and name servers, and show what it costs them and an honest client.

    Each attack gets a fresh server on free ports of 127.0.0.1 with a store below .gantry. Memory and sizes are MiB, the
    log KiB, latencies milliseconds of a client that sends and pulls one after another. The sidecar has a table of its
    own, in which every probe must be answered 200. Fails when memory grows by more than the budget and its slack, when
    the honest client misses an answer or waits for too much of a flood, when files stay open, when the log is flooded
    or has a traceback, or when a twin costs no more than is allowed with its guard.

    \b
    Examples:
      scripts/abuse
      scripts/abuse --only half-frames,non-readers --twins
      scripts/abuse --scale 0.2
    """
    wanted = None if only is None else set(only.split(","))
    known = scenarios(scale)
    if is_listing:
        for scenario in known:
            click.echo(f"{scenario.name:<26}{scenario.about}")
        click.echo(f"{HTTP:<26}half, slow, idle and unread HTTP at a sidecar, whose probes must be answered")
        return
    unknown = (wanted or set()) - {scenario.name for scenario in known} - {HTTP}
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: see --list", param_hint="--only")
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="abuse-", dir=RUNS))
    rows: list[list[str]] = []
    found: list[str] = []
    for scenario in known:
        if wanted is not None and scenario.name not in wanted:
            continue
        click.echo(f"{scenario.name}: {scenario.about}", err=True)
        outcome = run_one(scenario, directory / scenario.name, requests=requests)
        rows.append(row(scenario, outcome, is_guarded=True))
        found += [f"{scenario.name}: {fault}" for fault in faults(scenario, outcome)]
        if twins and scenario.is_guard_optional:
            twin = run_one(scenario, directory / f"{scenario.name}-twin", is_guarded=False, requests=requests)
            rows.append(row(scenario, twin, is_guarded=False))
            if not cost_faults(scenario, twin):
                found.append(
                    f"{scenario.name}: without its guard memory grew by {twin.growth / MIB:.0f} MiB only, and "
                    f"{twin.sent_per_answer / MIB:.1f} MiB were sent for each honest answer"
                )
    if rows:
        click.echo(table(rows))
    if wanted is None or HTTP in wanted:
        click.echo(f"{HTTP}: a sidecar, asked for its probes and its status all the while", err=True)
        reports = http_attacks.run_http(directory / HTTP, connections=max(1, round(600 * min(scale, 1))))
        click.echo("\n" + table([http_attacks.http_row(report) for report in reports], http_attacks.HEADLINES))
        found += [fault for report in reports for fault in http_attacks.http_faults(report)]
    for fault in found:
        click.echo(fault)
    if found or keep:
        click.echo(f"stores and logs: {directory}")
    else:
        shutil.rmtree(directory)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
