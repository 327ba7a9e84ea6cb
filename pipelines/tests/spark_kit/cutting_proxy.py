"""A TCP proxy that cuts connections: after a number of response bytes, and every connection from then on."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self, final


@final
class CuttingProxy:
    """A proxy in front of `target` until `bytes_max` bytes came from there; used in a `with` block."""

    def __init__(self, target: str, bytes_max: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._left = bytes_max
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.cuts = 0
        """The number of connections that were cut or refused."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            self._end(one)
        for thread in self._threads:
            thread.join(30)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._left <= 0:
                    self.cuts += 1
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._start(self._forward, client, server, False)
                self._start(self._forward, server, client, True)

    def _forward(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(16_384):
                if is_counted:
                    with self._lock:
                        data = data[: max(self._left, 0)]
                        self._left -= len(data) or 1
                        if self._left <= 0:
                            self.cuts += 1
                target.sendall(data)
                if is_counted and self._left <= 0:
                    break
        self._end(source)
        self._end(target)

    @staticmethod
    def _end(one: socket.socket) -> None:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
