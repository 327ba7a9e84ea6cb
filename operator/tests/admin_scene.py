"""A real broker and its sidecar as processes, with clients for both: for the tests of the sidecar.

A `Child` is any process of a test, a `BrokerChild` or `SidecarChild` one with its addresses and files. `broker_process`
and `sidecar_process` run one during a context.
"""

from __future__ import annotations

import asyncio
import io
import os
import queue
import signal
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute, Mount, Route

from gantry_admin.__main__ import parser, settings_of
from gantry_admin.app import make_app
from gantry_admin.sidecar import Sidecar
from gantry_operator.sidecars import HttpSidecars
from gantry_remoting import RemotingError
from gantry_status.layout import COPY, COPY_BYTES, COPY_FIELDS, HEADER_BYTES
from gantry_status.order_client import order_once
from gantry_status.orders import HaStatus, StatusRequest
from gantry_testing.local import Dialogue, local_conf
from gantry_testing.tree import PYTHON_PATH
from gantry_wire.codes import ResponseCode

ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT: Final = os.environ | {"PYTHONPATH": f"{PYTHON_PATH}:{ROOT}/operator/tests"}
TOKEN: Final = "the-token-that-may-change-0123456789"
READ_TOKEN: Final = "the-token-that-may-read-0123456789"
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For requests in plain text. Without it each would load all authorities of the machine, which takes longer."""
READY_S: Final = 180.0
"""A machine that is busy with other things starts a process slowly."""
ANSWER_S: Final = 60.0
"""The limit for one reply."""


def wait_for(predicate: Callable[[], bool], what: str, deadline_s: float = 180.0) -> None:
    """Wait until the condition holds; on a busy machine that takes long. Raises TimeoutError with ``what``."""
    end = time.monotonic() + deadline_s
    while not predicate():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen: {what}")
        time.sleep(0.05)


@final
class Child:
    """A process of a Python module that prints one line, which contains ``ready``, when it is ready."""

    def __init__(self, module: str, arguments: list[str], ready: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        self.errors: list[str] = []
        """The lines that it wrote to standard error."""

        lines: queue.Queue[str] = queue.Queue()
        assert self.process.stdout is not None and self.process.stderr is not None, "piped"
        self._threads = [
            threading.Thread(target=self._keep, args=(self.process.stdout, lines.put), daemon=True),
            threading.Thread(target=self._keep, args=(self.process.stderr, self.errors.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.line, deadline = "", time.monotonic() + READY_S
        while not self.line and time.monotonic() < deadline and (self.process.poll() is None or not lines.empty()):
            with suppress(queue.Empty):
                self.line = lines.get(timeout=0.1)
        if ready not in self.line:
            self.end()
            raise AssertionError(f"{module} did not start: {self.line} {''.join(self.errors)[-2000:]}")

    @staticmethod
    def _keep(stream: object, put: Callable[[str], None]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            put(line)

    @property
    def log(self) -> str:
        """The text that it wrote to standard error."""
        return "".join(self.errors)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """End the process in any state, even if it is stopped."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(60)
        for thread in self._threads:
            thread.join(10)
        assert self.process.stdout is not None and self.process.stderr is not None, "piped"
        self.process.stdout.close()
        self.process.stderr.close()


@final
class BrokerChild:
    """A broker process on a store. ``program`` is another module that is a broker, with its own options in front."""

    def __init__(self, store: Path, *program: str, **conf: str) -> None:
        self.store = store
        """The folder of the store."""

        pairs = local_conf(store, **conf)
        self.address = f"127.0.0.1:{pairs['listenPort']}"
        """The address for clients."""

        self.replication_address = f"127.0.0.1:{pairs['haListenPort']}"
        options = [part for key, value in pairs.items() for part in ("-o", f"{key}={value}")]
        module, *first = program or ("gantry_broker",)
        self.child = Child(module, [*first, *options], "broker listening on")

    @property
    def status_page(self) -> Path:
        return self.store / "status"

    @property
    def control_socket(self) -> Path:
        return self.store / "control.sock"

    @property
    def log_end(self) -> int:
        """The end of its log now, as the broker reports it."""
        status = order_once(str(self.control_socket), StatusRequest())
        assert isinstance(status, HaStatus), "expected a status"
        assert status.wrote is not None, "the broker does not report the end of its log"
        return status.wrote

    def send(self, count: int, *, body: bytes = b"x" * 1000, **fields: str) -> list[dict[str, str]]:
        """Send this number of messages, which must all be acknowledged; return the fields of the replies."""

        async def send_all() -> list[dict[str, str]]:
            dialogue = await Dialogue.open(self.address)
            try:
                return [await dialogue.send_ok(body, **fields) for _ in range(count)]
            finally:
                await dialogue.close()

        return asyncio.run(send_all())


@final
class SidecarChild:
    """A sidecar beside a broker."""

    def __init__(
        self, store: Path, *arguments: str, listen: str = "127.0.0.1:0", program: str = "gantry_admin"
    ) -> None:
        """``program`` is another module that is a sidecar."""
        options = ["--page", f"{store}/status", "--control", f"{store}/control.sock", "--store", str(store)]
        if "--listen" not in arguments:
            options += ["--listen", listen]
            if "--log-listen" not in arguments:  # by default the next port, which another test may have
                options += ["--log-listen", f"{listen.rpartition(':')[0]}:0"]
        self.child = Child(program, [*options, *arguments], "sidecar listening on")
        words = self.child.line.split()
        self.address, self.log_address = words[3].rstrip(","), words[-1]
        """The main address, and that of the port that serves only ranges of the log, with sendfile."""

        self.url = f"http://{self.address}"

    def get(self, path: str, *, token: str | None = None, at_log_port: bool = False, **more: str) -> httpx.Response:
        """Send one GET on a new connection; ``more`` are headers, with underscores in place of dashes."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        base = f"http://{self.log_address}" if at_log_port else self.url
        return httpx.get(base + path, headers=headers, timeout=ANSWER_S, verify=NO_TLS)

    def post(self, path: str, document: object, *, token: str | None = None) -> httpx.Response:
        """Send one order to the sidecar."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.post(self.url + path, json=document, headers=headers, timeout=ANSWER_S, verify=NO_TLS)

    def wait_ready(self) -> None:
        wait_for(lambda: self.get("/readyz").status_code == 200, "the broker is ready")


@contextmanager
def broker_process(store: Path, *program: str, **conf: str) -> Iterator[BrokerChild]:
    """Run a broker process during the context."""
    broker = BrokerChild(store, *program, **conf)
    try:
        yield broker
    finally:
        broker.child.end()


@contextmanager
def sidecar_process(
    store: Path, *arguments: str, listen: str = "127.0.0.1:0", program: str = "gantry_admin"
) -> Iterator[SidecarChild]:
    """Run a sidecar process during the context, beside the broker with this store."""
    sidecar = SidecarChild(store, *arguments, listen=listen, program=program)
    try:
        yield sidecar
    finally:
        sidecar.child.end()


@final
class Load:
    """Sends messages one after the other in a thread during the context, or until an error other than SYSTEM_BUSY."""

    def __init__(self, broker: BrokerChild, body: bytes = b"x" * 1000) -> None:
        self.acknowledged = 0
        """The number of acknowledged messages."""

        self.fault = ""
        """The error that has ended the sends; empty while there is none."""
        self._broker = broker
        self._body = body
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_for_progress(self) -> None:
        """Wait until another send is acknowledged, or a send has failed."""
        before = self.acknowledged
        wait_for(lambda: self.acknowledged > before or bool(self.fault), "another send is acknowledged")

    def _run(self) -> None:
        async def send() -> None:
            dialogue = await Dialogue.open(self._broker.address)
            try:
                while not self._stop.is_set():
                    reply = await dialogue.send(self._body)
                    if reply.code == ResponseCode.SYSTEM_BUSY:
                        continue  # it was stopped in the middle of an append, which then took long; clients try again
                    assert reply.code == 0, f"code {reply.code}: {reply.remark}"
                    self.acknowledged += 1
            finally:
                await dialogue.close()

        try:
            asyncio.run(send())
        except (OSError, AssertionError, RemotingError, TimeoutError) as error:
            self.fault = f"{type(error).__name__}: {error}"


def sidecars_with_long_timeouts() -> HttpSidecars:
    """Return the operator's client of sidecars with longer timeouts, because a busy machine answers slowly."""
    return HttpSidecars(status_timeout_s=12.0, order_timeout_s=60.0)


def app_of(folder: Path, *options: str) -> FastAPI:
    """Return the application of a sidecar without a broker."""
    paths = ["--page", str(folder / "p"), "--control", str(folder / "c"), "--store", str(folder)]
    return make_app(Sidecar(settings_of(parser().parse_args([*paths, *options]))))


def endpoints(routes: list[BaseRoute]) -> set[tuple[str, str]]:
    """Return method and path of each endpoint. All files that are served from a folder count as one."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        if isinstance(route, Mount):
            found.add(("GET", f"{route.path}/"))
        elif isinstance(route, Route):
            found |= {(method, route.path) for method in route.methods or () if method != "HEAD"}
        else:
            inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
            assert inner is not None, f"unknown kind of route: {route!r}"
            found |= endpoints(inner)
    return found


def bundle_entries(data: bytes) -> dict[str, bytes]:
    """Return the files in a diagnostics bundle by their names in it."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entries = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None, f"not a file: {member.name}"
            entries[member.name.removeprefix("gantry-bundle/")] = file.read()
    return entries


def read_page_without_checksum(page: bytes) -> dict[str, int]:
    """Return the log positions of the newest copy of a status page, without a check of its checksum."""
    names = [name for name, code in COPY_FIELDS if not code.endswith("x")]
    copies = [
        dict(zip(names, COPY.unpack_from(page, start), strict=True))
        for start in (HEADER_BYTES, HEADER_BYTES + COPY_BYTES)
    ]
    newest = max(copies, key=lambda copy: copy["sequence"])
    return {name: newest[name] for name in ("wrote", "committed", "flushed", "confirmed")}


def write_token_files(folder: Path) -> list[str]:
    """Write files with a token that may change and one that may only read; return the sidecar's options for them."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "tokens").write_text(f"# may change\noperator:{TOKEN}\n")
    (folder / "read-tokens").write_text(f"spark:{READ_TOKEN}\n")
    return ["--token-file", str(folder / "tokens"), "--read-token-file", str(folder / "read-tokens")]
