"""The command `run.py sdk`, and the part of docs/compatibility.md that is written from its recorded results.

A recorded run replaces only the results of its own servers, SDKs and flows, so that long runs can be recorded one by
one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from gantry_interop import java, sdk, sdk_programs, sdk_servers, versions
from gantry_interop.admin import page, plan, verdicts
from gantry_interop.errors import harness_errors
from gantry_interop.paths import INTEROP, new_run_directory
from gantry_interop.processes import Nursery
from gantry_interop.sdk import FlowResult

RESULTS: Final = INTEROP / "gantry_interop" / "sdk_results.json"
MESSAGES: Final = 20
NAMES: Final = {"java": "Java", "go": "Go", "python": "Python", "node": "Node.js", "rust": "Rust"}
SERVERS: Final = {
    "gantry": "Gantry",
    "apache": "RocketMQ",
    "gantry-apache": "Gantry's proxy and RocketMQ's broker",
    f"gantry-apache-{versions.PREVIOUS}": f"Gantry's proxy and RocketMQ's broker {versions.PREVIOUS}",
    "apache-gantry": "RocketMQ's proxy and Gantry's broker",
}
NO_DIFFERENCE: Final = "None: with each SDK, both servers pass the same flows, without duplicates.\n"

_SECTION: Final = """\
## SDKs of RocketMQ 5

Unmodified SDKs of RocketMQ 5 send and consume through Gantry's [proxy](proxy.md), and through the proxy of Apache
RocketMQ {version}, each in front of its own broker. The bodies are hashed. A flow passes if every message arrives, none
is altered, and none arrives that must not: one that a filter excludes, that was recalled, or that was rolled back.
Duplicates are allowed, and listed below the table. The numbers are the messages that were sent; bold ones are of a flow
that does not pass with Gantry. In place of a number is what an SDK lacks.

{table}
| flow | what it checks |
|---|---|
| `normal` | a simple consumer gets all messages, with their keys |
| `tag`, `sql` | a simple consumer with a filter gets exactly its messages |
| `push` | a push consumer fails an eighth of the messages once, and gets them again |
| `fifo` | 16 message groups arrive in order |
| `transaction` | half of the messages are committed; the producer is asked about a fifth of them |
| `delay` | no message arrives before its time |
| `recall` | half of the messages are recalled before they are due |
| `priority` | messages of higher priority arrive first |
| `invisible` | a message whose invisible time is changed comes back, as its second delivery |
| `dead-letters` | messages that always fail are delivered three times, and are then in the dead letters, unaltered |
| `fifo-dead-letters` | the same for messages of message groups |

The SDK for Rust has simple consumers only. Its program receives message groups with one, and never acknowledges the
messages that always fail.

`e2e/interop/run.py sdk` runs the programs in `e2e/interop/sdk`; with `--total 100000` each flow has its share of
100,000 messages for each SDK.

The same programs run with the other servers. The cells show how many flows pass, and the messages that were sent.

{others}
Differences between the servers:

{differences}"""


CAUSES: Final = {
    ("broker", "transaction"): """\
RocketMQ's broker records the end of a transaction up to 3 s later (`transactionOpBatchInterval`), and stores one
message for each commit. Brokers of this run ask for the outcome after 1 s instead of 6 s, and again each second instead
of every 30 s, so they also ask about transactions that have ended, and every commit in an answer is one more message.
""",
}
"""Why a flow has duplicates with a part of RocketMQ, its broker or its proxy, according to its source."""


@click.command("sdk")
@click.option(
    "--servers",
    default="gantry,apache",
    show_default=True,
    help=f"Proxy and broker, of {', '.join(sdk_servers.KINDS)}.",
)
@click.option("--languages", default=",".join(sdk.LANGUAGES), show_default=True, help="Which SDKs run.")
@click.option("--messages", type=click.IntRange(1), default=MESSAGES, show_default=True, help="Messages of each flow.")
@click.option("--total", type=click.IntRange(1), help="Messages of all flows together, of which each has its share.")
@click.option("--record", is_flag=True, help="Store the results, and write docs/compatibility.md from them.")
@click.argument("flows", nargs=-1)
def sdk_command(
    servers: str, languages: str, messages: int, total: int | None, record: bool, flows: tuple[str, ...]
) -> None:
    """Run SDKs of RocketMQ 5 through gRPC proxies, and verify every message."""
    directory, results = new_run_directory("sdk"), list[FlowResult]()
    kinds = _chosen(servers.split(","), sdk_servers.KINDS, "servers")
    chosen = _chosen(languages.split(","), sdk.LANGUAGES, "language")
    shares = sdk.shares(total) if total else dict.fromkeys(sdk.FLOWS, messages)
    counts = {one: shares[one] for one in _chosen(flows or sdk.FLOWS, sdk.FLOWS, "flow")}
    with harness_errors(Console(stderr=True)):
        if set(kinds) != {"gantry"}:
            java.build()
        for kind in kinds:
            with Nursery(directory / kind / "logs") as nursery:
                for one in sdk.run_sdks(nursery, kind, chosen, counts, directory / kind):
                    click.echo(one.line())
                    results.append(one)
    if record:
        write(merge(read(), results))
        page.write(verdicts.read(), len(plan.ALL), build_section(read()))
    sys.exit(0 if all(one.is_ok for one in results) else 1)


def _chosen(words: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    for word in words:
        if word not in known:
            raise click.BadParameter(f"unknown {what} {word!r}; expected one of {', '.join(known)}")
    return list(words)


def read(path: Path = RESULTS) -> list[FlowResult]:
    """Return the results of the last recorded run of each flow."""
    return [FlowResult(**one) for one in json.loads(path.read_text())] if path.exists() else []


def write(results: Sequence[FlowResult], path: Path = RESULTS) -> None:
    """Record results, without their times, which depend on the machine."""
    rows = [json.dumps(asdict(one) | {"seconds": 0.0}) for one in results]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def merge(before: Sequence[FlowResult], new: Sequence[FlowResult]) -> list[FlowResult]:
    """Return all results in the order of servers, SDKs and flows; a new one replaces that of the same flow."""
    merged = {(one.servers, one.language, one.flow): one for one in (*before, *new)}
    order = (sdk_servers.KINDS, sdk.LANGUAGES, sdk.FLOWS)
    return sorted(merged.values(), key=lambda one: _rank(order, (one.servers, one.language, one.flow)))


def _rank(order: Sequence[Sequence[str]], key: Sequence[str]) -> list[int]:
    return [names.index(name) for names, name in zip(order, key, strict=True)]


def build_section(results: Sequence[FlowResult]) -> str:
    """Return the part of docs/compatibility.md about SDKs."""
    found = {(one.servers, one.language, one.flow): one for one in results}
    names = [f"{NAMES[language]} {sdk_programs.version_of(language)}" for language in sdk.LANGUAGES]
    lines = [f"| flow | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for flow in sdk.FLOWS:
        cells = [_cell(found.get(("gantry", language, flow))) for language in sdk.LANGUAGES]
        lines.append(f"| `{flow}` | {' | '.join(cells)} |")
    return _SECTION.format(
        version=versions.PEER, table="\n".join(lines) + "\n", others=_others_table(found, names),
        differences=_list_differences([one for one in found.values() if _difference(one)]),
    )  # fmt: skip


def _cell(result: FlowResult | None) -> str:
    if result is None:
        return "not run"
    if result.absent:
        return result.absent
    return f"{result.messages:,}" if result.is_ok else f"**{result.messages:,}**"


def _others_table(found: Mapping[tuple[str, str, str], FlowResult], names: Sequence[str]) -> str:
    """Return a table of the servers other than Gantry's: how many flows pass with each SDK."""
    lines = [f"| servers | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for servers in sdk_servers.KINDS[1:]:
        cells = [
            _summary([one for one in found.values() if (one.servers, one.language) == (servers, language)])
            for language in sdk.LANGUAGES
        ]
        lines.append(f"| {SERVERS[servers]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _summary(results: Sequence[FlowResult]) -> str:
    performed = [one for one in results if not one.absent]
    passed = sum(one.is_ok for one in performed)
    messages = sum(one.messages for one in performed)
    return f"{passed} of {len(performed)}, {messages:,}" if performed else "not run"


def _list_differences(results: Sequence[FlowResult]) -> str:
    """Return a list of the differences, and the known causes below it."""
    causes = {_cause(one): None for one in results if _cause(one)}
    lines = "".join(f"- {_difference(one)}\n" for one in results) or NO_DIFFERENCE
    return lines + "".join(f"\n{text}" for text in causes)


def _difference(result: FlowResult) -> str:
    where = f"{NAMES[result.language]}, `{result.flow}`, with {SERVERS[result.servers]}"
    if not result.is_ok:
        return f"{where}: {result.received:,} of {result.expected:,} messages. {result.note}"
    if result.copies > result.received:
        return f"{where}: duplicates, {result.copies:,} deliveries of {result.received:,} messages."
    return ""


def _cause(result: FlowResult) -> str:
    """Return why RocketMQ's part of the servers causes these duplicates; empty without any or without a known cause."""
    if not result.is_ok or result.copies <= result.received:
        return ""
    proxy, _, broker = result.servers.partition("-")
    parts = {"proxy": proxy, "broker": broker or proxy}
    known = (CAUSES.get((part, result.flow), "") for part, kind in parts.items() if kind.startswith("apache"))
    return next(filter(None, known), "")
