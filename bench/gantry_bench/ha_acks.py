"""The client side of `bench/ack_proxy.py`, the proxy between a slave and its master."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.processes import ROOT, run_server, wait_for_line

ACK_PROXY: Final = ROOT / "bench" / "ack_proxy.py"
TIMEOUT_SECONDS: Final = 10.0


class AckProxy(msgspec.Struct, frozen=True):
    """A running proxy: slaves connect to ``port``."""

    port: int
    control_port: int

    def set_delay(self, milliseconds: float) -> None:
        """Delay every following ack by this time."""
        try:
            with socket.create_connection(("127.0.0.1", self.control_port), timeout=TIMEOUT_SECONDS) as control:
                control.sendall(f"{milliseconds}\n".encode())
                answer = control.recv(64)
        except OSError as error:
            raise BenchmarkFailed(f"the ack proxy did not accept a delay: {error}") from error
        if answer != b"ok\n":
            raise BenchmarkFailed(f"the ack proxy refused a delay of {milliseconds} ms; it answered {answer!r}")


@contextmanager
def start_ack_proxy(folder: Path, master_port: int) -> Iterator[AckProxy]:
    """Start a proxy in front of a replication port on this machine, without a delay at first."""
    command = [sys.executable, str(ACK_PROXY), "--master-port", str(master_port)]
    with run_server(command, log=folder / "ack-proxy.log", core=None) as server:
        port, control_port = wait_for_line(server, what="ack proxy").split()
        yield AckProxy(port=int(port), control_port=int(control_port))
