"""The checks of codecs, namespaces, optional fields, settings, offsets and IPv6 can fail too.

A proxy between a client and a correct broker has one fault: it mislabels compressed bodies, cuts namespaces
off, refuses an unknown field, hides a change, loses a reset, or clears the IPv6 flags of hosts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gantry_interop import drivers, peers, versions
from gantry_interop.frames import WireFrame
from gantry_interop.processes import Nursery
from gantry_interop.proxy import Link, Proxy

from gantry_testing.ports import free_ports

pytestmark = [pytest.mark.needs_java, pytest.mark.slow]

PROXY_ADDRESS = "127.0.0.2"
QUERY, TOPIC, VIEW, RESET, SEND = 12, 17, 33, 222, 310
PULLS = (11, 361)
SYS_FLAG = 36
"""The position of the flags in a record."""
ZSTD, ZLIB, KINDS = 0x200, 0x300, 0x700
V6_HOSTS = 0x30
NAMESPACE = "MQ_INST_one%"
INVALID_PARAMETER = 29


@dataclass
class FaultyProxyRule:
    """A proxy rule that changes nothing until it gets faults of requests and answers."""

    on_request: Callable[[WireFrame], bytes] | None = None
    on_answer: Callable[[WireFrame, WireFrame], bytes] | None = None
    pending: dict[tuple[int, int], WireFrame] = field(default_factory=dict)

    def rewrite(self, link: Link, to_server: bool, frame: WireFrame) -> bytes:
        if to_server:
            if not frame.is_oneway and not frame.is_response:
                self.pending[(link.number, frame.opaque)] = frame
            return frame.raw if self.on_request is None or frame.is_response else self.on_request(frame)
        request = self.pending.pop((link.number, frame.opaque), None) if frame.is_response else None
        if self.on_answer is None or request is None:
            return frame.raw
        return self.on_answer(request, frame)


def rebuilt(frame: WireFrame, body: bytes | None = None, **changed: Any) -> bytes:
    """Return the frame with another body, or other parts of its header."""
    header_end = 8 + int.from_bytes(frame.raw[5:8], "big")
    header = json.dumps({**json.loads(frame.raw[8:header_end]), **changed}).encode()
    data = frame.body if body is None else body
    return struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data


def with_flags(frame: WireFrame, change: Callable[[int], int]) -> bytes:
    """Return an answer in which every record has other flags."""
    body, position = bytearray(frame.body), 0
    while position < len(body):
        (flags,) = struct.unpack_from(">i", body, position + SYS_FLAG)
        struct.pack_into(">i", body, position + SYS_FLAG, change(flags))
        position += int.from_bytes(body[position : position + 4], "big")
    return rebuilt(frame, bytes(body))


def mislabel(request: WireFrame, answer: WireFrame) -> bytes:
    """Label bodies compressed with ZSTD as ZLIB."""
    if request.code not in PULLS or answer.code != 0:
        return answer.raw
    return with_flags(answer, lambda flags: flags & ~KINDS | ZLIB if flags & KINDS == ZSTD else flags)


def clear_v6_flags(request: WireFrame, answer: WireFrame) -> bytes:
    """Clear the IPv6 flags of records in answers; the ids stay correct."""
    if request.code not in (QUERY, VIEW) or answer.code != 0:
        return answer.raw
    return with_flags(answer, lambda flags: flags & ~V6_HOSTS)


def remove_namespace(frame: WireFrame) -> bytes:
    """Send messages of a namespace to the topic with the same name without it."""
    topic = frame.fields.get("b", "")
    if frame.code != SEND or not topic.startswith(NAMESPACE) or topic.endswith("_halves"):
        return frame.raw
    return rebuilt(frame, extFields={**frame.fields, "b": topic.removeprefix(NAMESPACE)})


def refuse_unknown(request: WireFrame, answer: WireFrame) -> bytes:
    """Refuse one kind of request because of an unknown field."""
    if request.code != QUERY or "aFieldOfTomorrow" not in request.fields:
        return answer.raw
    return rebuilt(answer, b"", code=INVALID_PARAMETER, remark="what is aFieldOfTomorrow?")


def keep_permissions(frame: WireFrame) -> bytes:
    """Turn a change of permissions into no change."""
    if frame.code != TOPIC:
        return frame.raw
    return rebuilt(frame, extFields={**frame.fields, "perm": "6"})


def reset_to_the_end(frame: WireFrame) -> bytes:
    """Reset the group to the end, for every requested time."""
    if frame.code != RESET:
        return frame.raw
    return rebuilt(frame, extFields={**frame.fields, "timestamp": "-1"})


def driver_options(name_server: str, run: str) -> drivers.DriverOptions:
    return drivers.DriverOptions(
        name_server=name_server,
        count=120,
        retry_count=60,
        seed=5,
        levels=peers.SHORT_DELAY_LEVELS,
        run=run,
        scenario_seconds_max=400,
        extra=("--patience-ms", "25000"),  # a retry topic is found at the next rebalance, every 20 s
    )


@pytest.fixture(scope="module")
def rule() -> FaultyProxyRule:
    return FaultyProxyRule()


@pytest.fixture(scope="module")
def stage(
    rule: FaultyProxyRule, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[peers.Peer, Nursery, Path]]:
    directory = tmp_path_factory.mktemp("sabotage")
    layout = peers.Layout(directory / "peer", advertised_host=PROXY_ADDRESS)
    with Nursery(directory / "logs") as nursery, Proxy(lambda *seen: None, rule.rewrite) as proxy:
        peer = peers.start("gantry", nursery, layout)
        proxy.serve("broker", (PROXY_ADDRESS, layout.broker_port), (layout.listen_host, layout.broker_port))
        yield peer, nursery, directory


@pytest.mark.parametrize(
    ("scenario", "on_request", "on_answer", "broken"),
    [
        pytest.param("codecs", None, mislabel, "nothing is lost", id="mislabelled"),
        pytest.param("namespaces", remove_namespace, None, "nothing is altered", id="namespaces cut off"),
        pytest.param("headers", None, refuse_unknown, "no request is refused for its fields", id="fields refused"),
        pytest.param(
            "settings", keep_permissions, None, "no producer sends to a topic that is only read", id="settings lost"
        ),
        pytest.param(
            "offsets", reset_to_the_end, None, "messages after the time of the reset are redelivered", id="resets lost"
        ),
    ],
)
def test_falsified_client_traffic_is_detected(
    scenario: str,
    on_request: Callable[[WireFrame], bytes] | None,
    on_answer: Callable[[WireFrame, WireFrame], bytes] | None,
    broken: str,
    rule: FaultyProxyRule,
    stage: tuple[peers.Peer, Nursery, Path],
) -> None:
    """Without a fault every check holds; with a fault its check fails."""
    peer, nursery, directory = stage
    for faults, run in (((None, None), f"correct{scenario}"), ((on_request, on_answer), f"fault{scenario}")):
        rule.on_request, rule.on_answer = faults
        (verdict,) = drivers.run_scenarios(
            nursery, versions.PEER, (scenario,), driver_options(peer.address, run), directory / f"home-{run}"
        )
        if faults == (None, None):
            assert verdict.broken == []
        else:
            assert broken in " ".join(verdict.broken), verdict.broken


def test_falsified_hosts_are_detected(rule: FaultyProxyRule, tmp_path: Path) -> None:
    """The name server's answers lead to the proxy, since there is only one IPv6 loopback address."""
    layout = peers.Layout(tmp_path / "peer", "::1", "::1")
    names, broker = free_ports(2)

    def route_to_proxy(request: WireFrame, answer: WireFrame) -> bytes:
        place, other = f"[::1]:{layout.broker_port}".encode(), f"[::1]:{broker}".encode()
        return rebuilt(answer, answer.body.replace(place, other)) if place in answer.body else answer.raw

    rule.on_request = None
    router = FaultyProxyRule(on_answer=route_to_proxy)
    with Nursery(tmp_path / "logs") as nursery, Proxy(lambda *_: None, router.rewrite) as one:
        peers.start("gantry", nursery, layout)
        with Proxy(lambda *_: None, rule.rewrite) as other:
            one.serve("names", ("::1", names), ("::1", layout.name_server_port))
            other.serve("broker", ("::1", broker), ("::1", layout.broker_port))
            for fault, run in ((None, "correct"), (clear_v6_flags, "fault")):
                rule.on_answer = fault
                options = driver_options(f"[::1]:{names}", run)
                (verdict,) = drivers.run_scenarios(nursery, versions.PEER, ("ipv6",), options, tmp_path / f"home-{run}")
                if fault is None:
                    assert verdict.broken == []
                else:
                    assert "each is found by its ids and its key" in " ".join(verdict.broken), verdict.broken
