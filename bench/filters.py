"""`make bench-filter`: how many messages per second one core evaluates with an SQL92 filter.

Two figures for each filter. *Evaluations* are verdicts on parsed properties, which is also the input of RocketMQ's
evaluator. *Records* are verdicts on records as they are stored in the log: the broker finds the properties that the
filter names, and evaluates them. Both are counted per second of CPU time of this process, so that other work on the
machine does not count. Each filter evaluates the same 512 messages again and again. The goal is for evaluations of each
of the first five filters, which accept some of them; the largest allowed filter, which accepts none, has no goal.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec
from gantry_bench.machine import Machine, OtherWork, describe_machine
from gantry_bench.measurement import Goal
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.table import print_goals
from rich.console import Console
from rich.table import Table

from gantry_wire.message import StoredMessage, encode_record, stored_properties
from gantry_wire.properties import format_properties
from gantry_wire.sql92 import EXPRESSION_TOKENS_MAX, SqlFilter

RESULTS: Final = Path(__file__).resolve().parent / "results"
EVALUATIONS_MIN: Final = 200_000
MESSAGES: Final = 512
REGIONS: Final = ("eu", "ch", "us", "jp")
KINDS: Final = ("urgent", "plain", "testing")
LARGEST: Final = "the largest"
FILTERS: Final = {
    "a text": "region = 'eu'",
    "a number": "price > 100",
    "three conditions": "price BETWEEN 10 AND 500 AND region = 'eu'",
    "a list": "region IN ('eu', 'ch', 'no', 'uk', 'is') AND kind IS NOT NULL",
    "eight conditions": (
        "(region = 'eu' OR region = 'ch') AND price >= 9.5 AND NOT (kind STARTSWITH 'test') AND TAGS <> 'old' "
        "AND (vip = TRUE OR price > 250 OR kind IN ('urgent', 'late'))"
    ),
    LARGEST: " OR ".join(["price < 0"] * (EXPRESSION_TOKENS_MAX // 4)),
}


class Rate(msgspec.Struct, frozen=True):
    """The figures of one filter."""

    name: str
    words: int
    taken: float
    """The share of the messages that the filter accepts."""
    evaluations_per_second: float
    records_per_second: float


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    others_cores: float
    rates: list[Rate]
    goals: list[Goal]


def messages() -> Iterator[Mapping[str, str]]:
    """Yield properties as producers send them and the broker extends them."""
    for number in range(MESSAGES):
        wanted = {
            "KEYS": f"order-{number}", "WAIT": "true", "price": str(number * 7 % 600),
            "region": REGIONS[number % 4], "kind": KINDS[number % 3], "vip": "true" if number % 5 == 0 else "false",
            "UNIQ_KEY": f"7F00000100002A139A7B7DF6F0E1{number:04X}", "TAGS": "old" if number % 7 == 0 else "new",
            "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
        }  # fmt: skip
        yield {name: value for name, value in wanted.items() if number % 11 or name != "kind"}


def measure_rate(judge: Callable[[], int], seconds: float, repetitions: int) -> float:
    """Return verdicts per second of CPU time, as a median of repetitions; ``judge`` gives 512 verdicts per call."""
    judge()
    rates = []
    for _ in range(repetitions):
        count, began = 0, time.process_time()
        while (used := time.process_time() - began) < seconds:
            judge()
            count += MESSAGES
        rates.append(count / used)
    return statistics.median(rates)


def measure(seconds: float, repetitions: int) -> list[Rate]:
    """Measure every filter, one after the other."""
    parsed = list(messages())
    records = [
        encode_record(
            StoredMessage(topic="orders", queue_id=0, body=bytes(128), properties_bytes=format_properties(one).encode())
        )
        for one in parsed
    ]
    rates = []
    for name, expression in FILTERS.items():
        sql = SqlFilter(expression)
        accepts, encoded = sql.accepts, sql.accepts_encoded
        taken = sum(map(accepts, parsed))
        if taken != sum(encoded(stored_properties(record, 0) or "") for record in records):
            raise click.ClickException(f"both evaluations disagree on {expression!r}")
        rates.append(
            Rate(
                name=name,
                words=sql.weight,
                taken=taken / MESSAGES,
                evaluations_per_second=measure_rate(
                    lambda judge=accepts: sum(map(judge, parsed)),  # type: ignore[misc]
                    seconds,
                    repetitions,
                ),
                records_per_second=measure_rate(
                    lambda judge=encoded: sum(judge(stored_properties(record, 0) or "") for record in records),  # type: ignore[misc]
                    seconds,
                    repetitions,
                ),
            )
        )
    return rates


def goals_of(rates: list[Rate]) -> list[Goal]:
    """Return the goals for the measured rates."""
    return [
        Goal(
            text=f"evaluations per second and core, {one.name}",
            limit=EVALUATIONS_MIN,
            measured=one.evaluations_per_second,
            unit="/s",
            is_floor=True,
        )
        for one in rates
        if one.name != LARGEST
    ]


def print_rates(console: Console, rates: list[Rate]) -> None:
    """Print the table of the benchmark page."""
    table = Table(title="Filters in SQL92, per second and core", title_justify="left")
    for heading in ("filter", "words", "accepted", "evaluations", "records"):
        table.add_column(heading, justify="left" if heading == "filter" else "right")
    for one in rates:
        table.add_row(
            one.name, str(one.words), f"{one.taken:.0%}",
            f"{one.evaluations_per_second:,.0f}", f"{one.records_per_second:,.0f}",
        )  # fmt: skip
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Run for a second to check the benchmark itself; the figures mean little.")
@ASSERT_GOALS
def main(quick: bool, assert_goals: bool) -> None:
    """Measure how many messages per second one core evaluates with filters over properties."""
    console = Console()
    started_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with OtherWork() as others:
        rates = measure(0.02 if quick else 1.0, 3 if quick else 5)
    goals = goals_of(rates)
    print_rates(console, rates)
    print_goals(console, goals)
    if others.cores > 0.1:
        console.print(f"Other processes used {others.cores:.1f} cores meanwhile.")
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"filter-{started_at.replace(':', '').replace('-', '')}.json"
    results = Results(
        started_at=started_at, machine=describe_machine(), others_cores=others.cores, rates=rates, goals=goals
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    console.print(f"results: {path}", soft_wrap=True, highlight=False)
    if assert_goals and not all(goal.is_met for goal in goals):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
