"""A TCP proxy that shows each frame to an observer and forwards it, unchanged unless it has a `rewrite`.

Usually it listens on another loopback address with the same port as the server behind it. A broker that advertises
that address therefore sends its clients through the proxy without a single byte being rewritten.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from gantry_interop.frames import Splitter, WireFrame

READ_BYTES = 65536


@dataclass
class Link:
    """One proxied connection: its client, its service, and the requests without an answer."""

    number: int
    party: str
    service: str
    pending: dict[tuple[bool, int], WireFrame] = field(default_factory=dict)


Observer = Callable[[Link, bool, WireFrame], None]
"""Called with every frame: its link, whether it travels towards the server, and the frame."""


Rewrite = Callable[[Link, bool, WireFrame], bytes]
"""Returns the bytes to send in a frame's place; no bytes at all drop the frame."""


class Proxy:
    """Proxies any number of servers; `party` names the client of new connections.

    With a `rewrite` it falsifies frames, so that a test can verify that the checks detect it.
    """

    def __init__(self, observer: Observer, rewrite: Rewrite | None = None) -> None:
        self.party = "unknown"
        self._observer = observer
        self._rewrite = rewrite
        self._numbers = itertools.count(1)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            sockets, threads = list(self._sockets), list(self._threads)
        for opened in sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for thread in threads:
            thread.join(5)

    def serve(self, service: str, listen: tuple[str, int], server: tuple[str, int]) -> None:
        """Listen at `listen` and forward connections to `server`."""
        listener = socket.create_server(listen, family=socket.AF_INET6 if ":" in listen[0] else socket.AF_INET)
        self._keep(listener)
        self._spawn(self._accept, service, listener, server)

    def _keep(self, opened: socket.socket) -> None:
        with self._lock:
            self._sockets.append(opened)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self, service: str, listener: socket.socket, server: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                behind = socket.create_connection(server, 5)
            except OSError:
                client.close()
                continue
            behind.settimeout(None)
            for end in (client, behind):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._keep(end)
            link = Link(next(self._numbers), self.party, service)
            self._spawn(self._pump, link, True, client, behind)
            self._spawn(self._pump, link, False, behind, client)

    def _pump(self, link: Link, to_server: bool, source: socket.socket, target: socket.socket) -> None:
        splitter = Splitter()
        try:
            while data := source.recv(READ_BYTES):
                for frame in splitter.feed(data):
                    with self._lock:
                        self._observer(link, to_server, frame)
                    if self._rewrite is not None:
                        target.sendall(self._rewrite(link, to_server, frame))
                if self._rewrite is None:
                    target.sendall(data)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
