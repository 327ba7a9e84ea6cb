"""A proxy in front of a master's replication port that only delays acks. A program, not a module.

    python bench/ack_proxy.py --master-port 10912          prints "PORT CONTROL_PORT" when it listens

    master ---- log ----> slave       forwarded at once, from socket to socket inside the kernel
    master <--- acks ---- slave       each read held for the delay, in order; up to `HELD_MAX` at once

So it adds latency without limiting the bandwidth: acks are delayed concurrently, not one after the other. The delay is
0 at first; a line with milliseconds on a connection to the control port changes it for later acks. Sleeping threads are
used instead of an event loop, whose timers have a resolution of a millisecond: a fifth of the measured delay.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, final

PIPE_BYTES: Final = 1 << 20
ACK_BYTES: Final = 1 << 16
HELD_MAX: Final = 1 << 16
"""The maximum number of reads that are delayed at once; more wait in the socket."""
DELAY_MS_MAX: Final = 60_000.0


@final
class Delay:
    """The delay of every ack, shared by all connections. An int is read and written atomically."""

    def __init__(self) -> None:
        self.ns = 0

    def set_ms(self, text: str) -> None:
        """Set the delay. Raises ValueError out of bounds."""
        milliseconds = float(text)
        if not 0 <= milliseconds <= DELAY_MS_MAX:
            raise ValueError(f"the delay must be from 0 to {DELAY_MS_MAX:.0f} ms, not {text}")
        self.ns = int(milliseconds * 1_000_000)


@final
class Link:
    """One slave and the master: one thread forwards the log, one receives acks, one sends them on."""

    def __init__(self, slave: socket.socket, master: socket.socket, delay: Delay) -> None:
        self._slave = slave
        self._master = master
        self._delay = delay
        self._held: queue.Queue[tuple[int, bytes]] = queue.Queue(HELD_MAX)
        for end in (slave, master):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for work in (self._forward_log, self._receive_acks, self._send_acks):
            threading.Thread(target=self._until_closed, args=(work,), daemon=True).start()

    def _until_closed(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            work()
        # If one side closes its connection, the other connection is closed, too.
        for end in (self._slave, self._master):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _forward_log(self) -> None:
        read_end, write_end = os.pipe()
        try:
            while count := os.splice(self._master.fileno(), write_end, PIPE_BYTES):
                while count:
                    count -= os.splice(read_end, self._slave.fileno(), count)
        finally:
            os.close(read_end)
            os.close(write_end)

    def _receive_acks(self) -> None:
        while data := self._slave.recv(ACK_BYTES):
            self._held.put((time.monotonic_ns() + self._delay.ns, data))
        self._held.put((0, b""))

    def _send_acks(self) -> None:
        while True:
            due_ns, data = self._held.get()
            if not data:
                return
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            self._master.sendall(data)


def listen() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def accept_slaves(listener: socket.socket, master_port: int, delay: Delay) -> None:
    """Give each slave a connection of its own to the master; if that fails, the slave's connection is closed."""
    while True:
        slave, _ = listener.accept()
        try:
            master = socket.create_connection(("127.0.0.1", master_port))
        except OSError:
            slave.close()
            continue
        Link(slave, master, delay).start()


def accept_delays(listener: socket.socket, delay: Delay) -> None:
    """Read one line with a delay from each connection."""
    while True:
        control, _ = listener.accept()
        with control, contextlib.suppress(OSError):
            control.settimeout(1)
            try:
                delay.set_ms(control.recv(64).decode(errors="replace"))
                control.sendall(b"ok\n")
            except ValueError:
                control.sendall(b"no\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--master-port", type=int, required=True, metavar="PORT")
    master_port = parser.parse_args().master_port
    delay, slaves, controls = Delay(), listen(), listen()
    for work, arguments in ((accept_slaves, (slaves, master_port, delay)), (accept_delays, (controls, delay))):
        threading.Thread(target=work, args=arguments, daemon=True).start()
    print(slaves.getsockname()[1], controls.getsockname()[1], flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    # Blocked in all threads, the signals are received by sigwait; otherwise they would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())
