"""The checks can fail: a proxy between a client and a correct broker loses, alters or misplaces messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gantry_interop import drivers, peers, versions
from gantry_interop.frames import WireFrame
from gantry_interop.processes import Nursery
from gantry_interop.proxy import Link, Proxy

from gantry_wire.frame import FRAME_HEAD

pytestmark = pytest.mark.needs_java

COUNT = 300
DROPPED_TIMEOUT_MS = 10_000
"""How long a driver waits for messages that the proxy has dropped."""
PROXY_ADDRESS = "127.0.0.2"
SEND, PULL, END = 310, 11, 37
BODY_POSITION = 88
"""The position of the body in a record with IPv4 hosts, after the body's length."""


@dataclass
class FaultyProxyRule:
    """A proxy rule that changes nothing until it gets a fault."""

    fault: Callable[[WireFrame, WireFrame], bytes] | None = None
    lost: int = 0
    pending: dict[tuple[int, int], WireFrame] = field(default_factory=dict)

    def rewrite(self, link: Link, to_server: bool, frame: WireFrame) -> bytes:
        """Falsify answers to known requests, and apply faults of one-way requests to those."""
        if to_server:
            if not frame.is_oneway:
                self.pending[(link.number, frame.opaque)] = frame
            elif self.fault is lose and frame.code == SEND and frame.opaque % 50 == 0:
                self.lost += 1
                return b""
            elif self.fault in (commit_all, commit_none) and frame.code == END:
                return self.fault(frame, frame)  # it has no answer
            return frame.raw
        request = self.pending.pop((link.number, frame.opaque), None)
        if self.fault is None or request is None or not frame.is_response:
            return frame.raw
        return self.fault(request, frame)


def lose(request: WireFrame, answer: WireFrame) -> bytes:
    """Leave answers unchanged; only one-way sends are lost."""
    return answer.raw


def commit_all(request: WireFrame, answer: WireFrame) -> bytes:
    """Turn every rollback into a commit, also in the answer to a transaction check."""
    length, header_length = FRAME_HEAD.unpack_from(answer.raw)
    rest = answer.raw[FRAME_HEAD.size :].replace(b'"commitOrRollback":"12"', b'"commitOrRollback":"8"')
    shorter = len(answer.raw) - FRAME_HEAD.size - len(rest)
    return FRAME_HEAD.pack(length - shorter, header_length - shorter) + rest


def commit_none(request: WireFrame, answer: WireFrame) -> bytes:
    """Drop every commit, also after repeated checks of the broker."""
    return b"" if b'"commitOrRollback":"8"' in answer.raw else answer.raw


def alter(request: WireFrame, answer: WireFrame) -> bytes:
    """Flip one bit of the first message of every pull answer."""
    if request.code != PULL or answer.code != 0:
        return answer.raw
    position = len(answer.raw) - len(answer.body) + BODY_POSITION + 20
    return answer.raw[:position] + bytes([answer.raw[position] ^ 1]) + answer.raw[position + 1 :]


def misplace(request: WireFrame, answer: WireFrame) -> bytes:
    """Change the last digit of the queue offset in the answer to a send."""
    if request.code != SEND:
        return answer.raw
    offset_field = f'"queueOffset":"{answer.fields["queueOffset"]}"'.encode()
    assert answer.raw.count(offset_field) == 1
    return answer.raw.replace(offset_field, offset_field[:-2] + (b'1"' if offset_field[-2:-1] == b"0" else b'0"'))


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


@pytest.mark.verify
@pytest.mark.parametrize(
    ("scenario", "fault", "broken"),
    [
        pytest.param("sync", None, [], id="no fault"),
        pytest.param("oneway", lose, ["nothing is lost"], id="lost"),
        pytest.param("sync", alter, ["nothing is altered", "nothing is lost", "no queue has a hole"], id="altered"),
        pytest.param(
            "transactions",
            commit_all,
            ["a message that is rolled back is never delivered"],
            id="rollbacks committed",
            marks=pytest.mark.slow,
        ),
        pytest.param("transactions", commit_none, ["nothing is lost"], id="commits lost", marks=pytest.mark.slow),
        pytest.param("sync", misplace, ["messages are at the place of the broker's answer"], id="misplaced"),
    ],
)
def test_falsified_answer_is_detected(
    scenario: str,
    fault: Callable[[WireFrame, WireFrame], bytes] | None,
    broken: list[str],
    rule: FaultyProxyRule,
    stage: tuple[peers.Peer, Nursery, Path],
) -> None:
    """A message that is lost, altered or not at its answered place fails exactly the checks for that."""
    peer, nursery, directory = stage
    rule.fault = fault
    options = drivers.DriverOptions(
        name_server=peer.address,
        count=COUNT,
        retry_count=COUNT // 5,
        seed=5,
        levels=peers.SHORT_DELAY_LEVELS,
        run=fault.__name__ if fault is not None else "correct",
        scenario_seconds_max=120,
        extra=("--patience-ms", str(DROPPED_TIMEOUT_MS if fault in (lose, alter, commit_none) else 30_000)),
    )

    (verdict,) = drivers.run_scenarios(nursery, versions.PEER, (scenario,), options, directory / "home")

    assert verdict.kept == (broken == [])
    found = " ".join(verdict.broken)
    assert [text for text in broken if text not in found] == []
    assert len(verdict.broken) == len(broken)
    if fault is lose:
        assert verdict.lost == rule.lost > 0
    if fault is alter:
        assert verdict.altered > 0
