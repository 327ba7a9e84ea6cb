"""RocketMQ 5 SDKs through Gantry's gRPC proxy, in front of Apache's broker and of Gantry's.

    servers (peers) <- proxy <- the SDK's program under `e2e/interop/sdk/<language>`

Each program runs its flows with hashed bodies and prints one JSON line for each. The Python SDK has a virtual
environment of its own, since it pins packages that Gantry does not use; the Java SDK has a Maven project of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gantry_client.session import Session
from gantry_interop import java, peers
from gantry_interop.errors import InteropError
from gantry_interop.paths import INTEROP
from gantry_interop.processes import Nursery, wait_until
from gantry_testing.ports import free_port_run
from gantry_wire.codes import RequestCode
from gantry_wire.commands.admin import CreateTopic, SubscriptionGroupConfig

LANGUAGES: Final = ("python", "java")
SDK: Final = INTEROP / "sdk"
KINDS: Final = ("normal", "fifo", "delay", "transaction", "priority")
FLOWS: Final = ("normal", "tag", "sql", "push", "fifo", "transaction")
"""Flows of every SDK with every broker; those below need a broker with timers, or exist in one program only."""
TIMER_FLOWS: Final = ("delay", "recall")
ONLY: Final = {"python": ("invisible", "priority"), "java": ("dead-letters",)}
ORDERED: Final = frozenset({"fifo", "dead-letters"})
DEAD_LETTER_RETRIES: Final = 2
RUN_SECONDS_MAX: Final = 1_800
BUILD_SECONDS_MAX: Final = 900
READY_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True)
class FlowResult:
    """The verdict of one flow of one SDK."""

    language: str
    peer: str
    flow: str
    is_ok: bool
    text: str
    """The line that the program printed."""


def run_sdk(
    nursery: Nursery, peer: str, languages: Sequence[str], flows: Sequence[str], messages: int, directory: Path
) -> list[FlowResult]:
    """Start servers of one kind and a proxy, and run the programs of these SDKs. Raises InteropError."""
    settings = {"timerWheelEnable": "true", "recallMessageEnable": "true"} if peers.is_apache(peer) else {}
    started = peers.start(peer, nursery, peers.Layout(directory / peer, settings=settings))
    port = free_port_run(2)
    arguments = ["-n", started.address, "--listen", f"127.0.0.1:{port}", "--http-listen", f"127.0.0.1:{port + 1}"]
    proxy = nursery.start("proxy", [sys.executable, "-m", "gantry_proxy", *arguments], os.environ)
    wait_until("the proxy's port", lambda: _is_listening(port), READY_SECONDS_MAX, proxy)
    results: list[FlowResult] = []
    for language in languages:
        suffix = f"_{language}"
        wanted = flows or (*FLOWS, *ONLY[language], *(TIMER_FLOWS if peers.is_apache(peer) else ()))
        asyncio.run(prepare(started.address, suffix, wanted))
        results += run_program(language, peer, f"127.0.0.1:{port}", suffix, messages, wanted, directory)
    return results


def run_program(
    language: str, peer: str, endpoints: str, suffix: str, messages: int, flows: Sequence[str], directory: Path
) -> list[FlowResult]:
    """Run one SDK's program through the proxy at these endpoints; the topics and groups must exist."""
    command = python_command() if language == "python" else java_command(directory)
    done = subprocess.run(
        [*command, endpoints, suffix, str(messages), *flows],
        capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    verdicts: list[dict[str, Any]] = [json.loads(line) for line in lines]
    results = [
        FlowResult(language, peer, one["flow"], bool(one["ok"]), line)
        for one, line in zip(verdicts, lines, strict=True)
    ]
    missing = [flow for flow in flows if flow not in {one.flow for one in results}]
    return results + [FlowResult(language, peer, flow, False, done.stderr[-500:]) for flow in missing]


def python_command() -> list[str]:
    """Return the command of the Python SDK's program, whose environment is created at the first use."""
    environment = INTEROP / "target" / "sdk-python"
    python = environment / "bin" / "python"
    requirements = SDK / "python" / "requirements.txt"
    stamp = environment / "installed.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        _build([sys.executable, "-m", "venv", "--clear", str(environment)])
        _build([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)])
        stamp.write_text(requirements.read_text())
    return [str(python), str(SDK / "python" / "sdk_flows.py")]


def java_command(directory: Path) -> list[str]:
    """Return the command of the Java SDK's program, which Maven builds if its sources are newer."""
    project, target = SDK / "java", INTEROP / "target" / "sdk-java"
    sources = [project / "pom.xml", *(project / "src").rglob("*.java")]
    listing = target / "class-path.txt"
    if not listing.exists() or any(one.stat().st_mtime > listing.stat().st_mtime for one in sources):
        _build([java.find_program("mvn", "install Maven (package `maven`)"), "-B", "-q", "-f", str(project / "pom.xml"),
                "process-classes"])  # fmt: skip
    program = java.find_program("java", "install a Java 17 runtime (package `openjdk-17-jre-headless`)")
    class_path = f"{target / 'classes'}:{listing.read_text().strip()}"
    return [program, "-Xmx256m", f"-Duser.home={directory}", "-cp", class_path, "gantry.interop.sdk.SdkFlows"]


def _build(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise InteropError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")


async def prepare(name_server: str, suffix: str, flows: Sequence[str]) -> None:
    """Create the topics with their types, and the groups of the flows."""
    session = Session(name_server)
    await session.start()
    try:
        for broker in (await session.name_servers.cluster()).broker_addr_table.values():
            address = broker.broker_addrs[0]
            for kind in KINDS:
                topic = CreateTopic(
                    topic=f"sdk-{kind}{suffix}", default_topic=peers.AUTO_CREATE_TOPIC, read_queue_nums=4,
                    write_queue_nums=4, perm=6, topic_filter_type="SINGLE_TAG", order=False,
                    attributes=f"+message.type={kind.upper()}",
                )  # fmt: skip
                await session.calls.request_success(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
            for flow in flows:
                group = SubscriptionGroupConfig(
                    group_name=f"sdk-{flow}{suffix}", consume_message_orderly=flow in ORDERED,
                    retry_max_times=DEAD_LETTER_RETRIES if flow == "dead-letters" else 16,
                )  # fmt: skip
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await session.calls.request_success(address, code, None, group)
        while await session.name_servers.route(f"sdk-{KINDS[-1]}{suffix}") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    finally:
        await session.close()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
