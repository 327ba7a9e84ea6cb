"""Records golden frames: frames that Java clients and Apache's servers really write, one per file.

A proxy is between every client and every server. Tours (`Tour.java`, `AdminTour.java`) make each client send every kind
of request, with JSON and with binary headers; the first frame of every kind is kept. A kind is the pair of peers, the
direction, the form of the header, the request code, the answer's code, whether an answer is expected, and a variant for
requests with several forms (`variant_of`).

Frames are not edited. Answers with a configuration contain the path of the run's directory, which is in `/tmp`, and not
in the clone, so that no path of a user gets into the frames.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gantry_interop import java, peers, versions
from gantry_interop.errors import InteropError
from gantry_interop.frames import REQUEST_NAMES, WireFrame
from gantry_interop.paths import ROOT
from gantry_interop.processes import Nursery, wait_until
from gantry_interop.proxy import Link, Proxy

GOLDEN = ROOT / "broker" / "tests" / "golden" / versions.PEER
FRAME_BYTES_MAX = 64 * 1024
TOUR_SECONDS_MAX = 240.0
SLAVE_SECONDS_MAX = 240.0
"""A slave copies settings for the first time a minute after its start."""
PROXY_HOST = "127.0.0.2"
SLAVE_CODES = {21, 43, 45, 201, 402}
BINARY_HEADERS = {"rocketmq.serialize.type": "ROCKETMQ"}
PULL_COMMITS, PULL_WAITS, PULL_LITE = 0x1, 0x2, 0x10
VERSION_ONE_SENDS = {"org.apache.rocketmq.client.sendSmartMsg": "false"}

TOOLS, BROKER, SLAVE = (f"{party}-{versions.PEER}" for party in ("tools", "broker", "slave"))
PARTIES = {
    **{f"client-{client}": f"the {client} client" for client in java.CLIENT_MODULES},
    TOOLS: f"the {versions.PEER} admin client (mqadmin's)",
    BROKER: f"an Apache {versions.PEER} broker",
    SLAVE: f"an Apache {versions.PEER} slave broker",
}


@dataclass(frozen=True)
class Kind:
    """The properties that distinguish a frame from all others that were kept."""

    party: str
    """The client of the connection, one of `PARTIES`."""
    service: str
    """The server behind the proxy: `name server` or `broker`."""
    serialization: str
    to_server: bool
    request_code: int
    response_code: int | None
    oneway: bool
    variant: str

    @property
    def towards_server(self) -> bool:
        """Return whether the request of this exchange goes to the server, as nearly all do."""
        return self.to_server == (self.response_code is None)

    @property
    def name(self) -> str:
        request = f"{self.request_code:04d}-{REQUEST_NAMES.get(self.request_code, 'unnamed')}"
        role = "oneway" if self.oneway else "request"
        if self.response_code is not None:
            role = f"reply-{self.response_code}"
        party = self.party if self.towards_server else f"to-{self.party}"
        parts = [request, *([self.variant] if self.variant else []), role, party, self.serialization]
        return ".".join(parts).replace(" ", "-")

    def sentence(self) -> str:
        """Return a sentence about how this frame was captured."""
        party, service = PARTIES[self.party], f"Apache's {versions.PEER} {self.service}"
        title = f"{REQUEST_NAMES.get(self.request_code, 'request').replace('-', ' ')} ({self.request_code})"
        variant = f", {self.variant.replace('-', ' ')}" if self.variant else ""
        source, target = (party, service) if self.to_server else (service, party)
        if self.response_code is not None:
            sentence_start = f"Answered {self.response_code} by {source} to {target} for {title}{variant}"
        else:
            sentence_start = (
                f"Sent by {source} to {target}{' without waiting' if self.oneway else ''}: {title}{variant}"
            )
        return f"{sentence_start}; taken off the wire by the recording proxy, header in {self.serialization}."


@dataclass
class Recorder:
    """Keeps the first frame of each kind, in `kept`."""

    kept: dict[Kind, WireFrame] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, link: Link, to_server: bool, frame: WireFrame) -> None:
        """Observe one frame that passes the proxy."""
        if frame.language == "PYTHON" or link.party not in PARTIES:
            return
        request = frame
        if frame.is_response:
            found = link.pending.pop((not to_server, frame.opaque), None)
            if found is None:
                return
            request = found
        elif not frame.is_oneway:
            link.pending[(to_server, frame.opaque)] = frame
        kind = Kind(
            party=link.party,
            service=link.service,
            serialization=frame.serialization,
            to_server=to_server,
            request_code=request.code,
            response_code=frame.code if frame.is_response else None,
            oneway=frame.is_oneway and not frame.is_response,
            variant=variant_of(request),
        )
        if len(frame.raw) <= FRAME_BYTES_MAX:
            with self.lock:
                self.kept.setdefault(kind, frame)

    def request_codes(self, party: str) -> set[int]:
        """Return the codes of the requests answered for one party so far."""
        with self.lock:
            return {kind.request_code for kind in self.kept if kind.party == party and kind.response_code is not None}


def variant_of(request: WireFrame) -> str:
    """Return the variant of a request, for the few codes with very different contents."""
    if request.code in (10, 310, 320):
        fields = request.fields
        properties = fields.get("properties" if request.code == 10 else "i", "")
        flags = int(fields.get("sysFlag" if request.code == 10 else "f", "0"))
        if "TRAN_MSG\x01true" in properties:
            return "half-message"
        if "DELAY\x01" in properties:
            return "delayed"
        if flags & 1:
            return "compressed-body"
        return "" if "KEYS\x01" in properties or request.code == 320 else "without-keys"
    if request.code == 34:
        return "of-consumers" if b'"groupName"' in request.body.partition(b"producerDataSet")[0] else "of-producers"
    if request.code in (11, 361):
        flags = int(request.fields.get("sysFlag", "0"))
        words = [
            *(["lite"] if flags & PULL_LITE and request.code == 11 else []),
            *(["commits"] if flags & PULL_COMMITS else []),
            *(["waits"] if flags & PULL_WAITS else []),
            *(["by-tag"] if request.fields.get("subscription", "*") not in ("*", "") else []),
        ]
        return "-".join(words)
    if request.code == 14:
        return "zero-if-not-found" if request.fields.get("setZeroIfNotFound") == "true" else ""
    return ""


@dataclass
class Session:
    """One recorded peer, all of whose clients use the proxy."""

    directory: Path
    recorder: Recorder
    nursery: Nursery
    proxy: Proxy
    layout: peers.Layout

    @property
    def name_server(self) -> str:
        return f"{PROXY_HOST}:{self.layout.name_server_port}"

    @property
    def broker(self) -> str:
        return f"{PROXY_HOST}:{self.layout.broker_port}"

    def run_tour(self, client: str, name: str, scenario: str, properties: dict[str, str]) -> None:
        """Run the tour of one client version."""
        self.proxy.party = f"client-{client}"
        program = java.Program(java.CLIENT_MODULES[client], "dev.gantry.interop.Tour", properties=properties)
        arguments = [scenario, "--namesrv", self.name_server, "--run", name.replace(".", "_")]
        self._run(f"tour-{name}", program, arguments)

    def run_admin_tour(self) -> None:
        """Run the tour of the admin client."""
        self.proxy.party = TOOLS
        program = java.Program(java.REFERENCE, "dev.gantry.interop.AdminTour")
        self._run("tour-admin", program, [self.name_server, self.broker, "InteropCluster", "json"])

    def attach_slave(self) -> None:
        """Attach a slave until it has requested every table (`SLAVE_CODES`)."""
        self.proxy.party = SLAVE
        layout = peers.Layout(
            self.directory / "slave",
            name_server_override=self.name_server,
            settings={"brokerId": "1", "brokerRole": "SLAVE"},
        )
        child = peers.start_broker("apache", self.nursery, layout, name="slave")
        wait_until(
            "the slave's copying of topics, offsets and groups",
            lambda: self.recorder.request_codes(SLAVE) >= SLAVE_CODES,
            SLAVE_SECONDS_MAX,
            child,
        )
        child.stop()

    def _run(self, name: str, program: java.Program, arguments: list[str]) -> None:
        home = self.directory / name
        child = self.nursery.run(name, program.command(home, arguments), java.environment(home), TOUR_SECONDS_MAX)
        if child.process.returncode != 0:
            raise InteropError(f"{name} failed; see {child.log}:\n{child.tail()}")


@contextlib.contextmanager
def start_recorded_peer(directory: Path, recorder: Recorder, properties: dict[str, str]) -> Iterator[Session]:
    """Start an Apache name server and broker whose clients all use the proxy.

    Open transactions are checked soon, pop needs the timer wheel, and a broker that may skip a registration asks the
    name server first whether it can.
    """
    layout = peers.Layout(
        directory / "peer",
        advertised_host=PROXY_HOST,
        name_server_seen_by_broker_host=PROXY_HOST,
        settings={
            "transactionCheckInterval": "1000",
            "transactionTimeOut": "1000",
            "timerWheelEnable": "true",
            "forceRegister": "false",
        },
        properties=properties,
    )
    with Proxy(recorder.observe) as proxy, Nursery(directory / "logs") as nursery:
        proxy.party = BROKER
        for service, port in (
            ("name server", layout.name_server_port),
            ("broker", layout.broker_port),
            ("broker", layout.broker_port - 2),
        ):
            proxy.serve(service, (PROXY_HOST, port), (layout.listen_host, port))
        peer = peers.start("apache", nursery, layout)
        yield Session(directory, recorder, nursery, proxy, layout)
        peer.broker.stop()


def record(report: Callable[[str], None]) -> Recorder:
    """Run every tour. Raises if one fails."""
    recorder = Recorder()
    directory = Path(tempfile.mkdtemp(prefix="gantry-golden-", dir="/tmp"))
    report(f"logs in {directory}")
    with start_recorded_peer(directory / "json", recorder, {}) as session:
        for client in java.CLIENT_MODULES:
            for name, scenario, properties in (
                ("json", "all", {}),
                ("binary", "all", BINARY_HEADERS),
                ("v1", "send", VERSION_ONE_SENDS),
            ):
                report(f"client {client}, {name}")
                session.run_tour(client, f"{name}-{client}", scenario, properties)
        report("admin client")
        session.run_admin_tour()
        report("slave")
        session.attach_slave()
    with start_recorded_peer(directory / "binary", recorder, BINARY_HEADERS) as session:
        for client in java.CLIENT_MODULES:
            report(f"client {client}, binary on both sides")
            session.run_tour(client, f"both-{client}", "all", BINARY_HEADERS)
    shutil.rmtree(directory)
    return recorder


def write(recorder: Recorder, golden: Path = GOLDEN) -> int:
    """Replace the golden frames by the recorded ones; return their number."""
    golden.mkdir(parents=True, exist_ok=True)
    for old in golden.glob("*.bin"):
        old.unlink()
    index = []
    for kind, frame in sorted(recorder.kept.items(), key=lambda item: item[0].name):
        (golden / f"{kind.name}.bin").write_bytes(frame.raw)
        index.append(
            {
                "name": kind.name,
                "code": frame.code,
                "request_code": kind.request_code,
                "response_code": kind.response_code,
                "direction": f"{kind.party} to {kind.service}" if kind.to_server else f"{kind.service} to {kind.party}",
                "client": kind.party,
                "serialization": kind.serialization,
                "oneway": kind.oneway,
                "variant": kind.variant,
                "sha256": hashlib.sha256(frame.raw).hexdigest(),
                "captured": kind.sentence(),
            }
        )
    (golden / "frames.json").write_text(json.dumps(index, indent=1) + "\n")
    return len(index)
