"""Process 1 of a container: keeps one server running, stops it on a signal, and reaps orphaned processes.

    SIGTERM, SIGINT    the server gets SIGTERM and is waited for without a limit; its exit code is passed on
                       (killed by signal N: 128 + N)
    server exits       it is restarted, as `ProcessLifecycle` decides with `pod_restart_policy`
    server is stalled  it is killed, and so restarts; a server that is stopping is never killed
    arguments change   the server gets SIGTERM, and restarts at once with the new ones
    alive port         connections are accepted and closed, which shows that this loop runs

It is small and does nothing else, since only kubelet restarts it. It has no thread and no event loop: one ``select``
over the alive port and over the pipe into which signals are written, so that no signal can be missed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final, final

from gantry_cli.pod.member import NotReadyError
from gantry_cli.processes import Phase, ProcessLifecycle, RestartPolicy, exit_text, restart_text, server_command

TICK_S: Final = 1.0
"""The longest time between two turns of the loop, in seconds."""
EXIT_USAGE: Final = 2
"""The exit code of a server with wrong settings, which is not restarted since that would not help."""
IMMEDIATE_RESTARTS_MAX: Final = 5
DELAY_S_MAX: Final = 16.0
SHORT_RUNS_MAX: Final = 12
"""After how many consecutive runs under a minute the container ends, so that kubelet's back-off applies."""
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def pod_restart_policy() -> RestartPolicy:
    """Return the policy of a server in a container: restart at once, and with a delay only after several crashes.

    Kubelet would wait from the second crash on: 10 s at first, and twice as long each time. A broker that finds its
    write buffers again loses nothing in a crash, so the wait would be the only damage.
    """
    return RestartPolicy(
        immediate_restarts_max=IMMEDIATE_RESTARTS_MAX,
        delay_s_max=DELAY_S_MAX,
        short_runs_max=SHORT_RUNS_MAX,
        final_codes=frozenset({EXIT_USAGE}),
    )


def never() -> bool:
    """Return False: the default of ``PodServer`` conditions."""
    return False


def nothing() -> None:
    """Do nothing: the default of ``PodServer.keep``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodServer:
    """The server that a ``PodSupervisor`` keeps running."""

    name: str
    """The name of the server, for messages."""

    command: Callable[[], list[str]]
    """Returns the arguments of a start; called before each one. Raises ``NotReadyError``."""

    is_changed: Callable[[], bool] = never
    """Whether the arguments have changed since the start. Called often."""

    keep: Callable[[], None] = nothing
    """Does other work of the pod, such as renewing its certificate. Called often; must not wait."""

    is_stalled: Callable[[], bool] = never
    """Whether the process lives but is stalled. Called often."""

    alive: tuple[str, int] | None = None
    """The address of the alive port, None for none; an empty host is all addresses of both families."""


@final
class PodSupervisor:
    """Keeps one server running until a signal ends it. For the main thread only."""

    def __init__(self, server: PodServer) -> None:
        self._server = server
        self._life = ProcessLifecycle(pod_restart_policy())
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self._last_message = ""

    def run(self) -> int:
        """Run the server until SIGTERM, or until a restart is pointless. Return the exit code for this process."""
        wakeup_reader, wakeup_writer = socket.socketpair()
        wakeup_writer.setblocking(False)
        wakeup_reader.setblocking(False)
        signal.set_wakeup_fd(wakeup_writer.fileno(), warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, self._handle_signal)
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.callback(signal.set_wakeup_fd, -1)
            for one in (wakeup_reader, wakeup_writer):
                stack.callback(one.close)
            selector.register(wakeup_reader, selectors.EVENT_READ, self._drain_wakeups)
            if self._server.alive is not None:
                listener = stack.enter_context(_probe_socket(self._server.alive))
                selector.register(listener, selectors.EVENT_READ, self._accept_probe)
            self._life.request_start(time.monotonic())
            while True:
                code = self._step()
                if code is not None:
                    return code
                for key, _ in selector.select(self._pause_s()):
                    key.data(key.fileobj)

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        if number in _STOP_SIGNALS:
            self._is_ending = True

    def _step(self) -> int | None:
        """Do the work that is due. Return the exit code of this process when it must end, else None."""
        life = self._life
        if self._is_ending and life.request_stop():
            self._terminate()
        code = self._reap()
        if code is not None:
            self._record_end(code)
        if life.phase in (Phase.STOPPED, Phase.FAILED):
            return 0 if code is None else code if code >= 0 else 128 - code
        if life.phase is Phase.WAITING and time.monotonic() >= life.start_at_s:
            self._start()
        self._server.keep()
        if life.phase is not Phase.RUNNING:
            return None
        if self._server.is_changed():
            life.request_restart()
            self._terminate()
        elif self._server.is_stalled():
            assert self._process is not None, "the server runs"
            self._print(f"the {self._server.name} is stalled; killing it")
            os.kill(self._process.pid, signal.SIGKILL)
        return None

    def _start(self) -> None:
        try:
            words = self._server.command()
        except NotReadyError as reason:
            self._print_once(f"not ready: {reason}")
            self._life.postpone_start(time.monotonic(), TICK_S)
            return
        self._last_message = ""
        self._process = subprocess.Popen(server_command(*words), stdin=subprocess.DEVNULL)
        self._life.record_start(time.monotonic())

    def _terminate(self) -> None:
        """Send SIGTERM to the server.

        ``Popen.send_signal`` would poll a process that has just ended, and ``_reap`` would never learn of its end.
        """
        assert self._process is not None, "the server runs"
        os.kill(self._process.pid, signal.SIGTERM)

    def _reap(self) -> int | None:
        """Reap all ended processes. Return the server's exit code if it is among them; -N if signal N killed it."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if self._process is not None and pid == self._process.pid:
                found = os.waitstatus_to_exitcode(status)
                self._process.returncode = found  # so that Popen does not wait for it again
                self._process = None

    def _record_end(self, code: int) -> None:
        """Record the server's end, and print what happens next unless it was stopped for good."""
        name, how = self._server.name, exit_text(code)
        delay = self._life.record_exit(code, time.monotonic())
        if delay is not None:
            recent = self._life.policy.recent
            rule = f"crash {recent} within a minute; the first {IMMEDIATE_RESTARTS_MAX} restart at once"
            self._print(f"the {name} {how}; {restart_text(delay)} ({rule})")
        elif self._life.phase is Phase.WAITING:
            self._print(f"the {name} has ended; restarting it with new arguments")
        elif self._life.phase is Phase.FAILED and code == EXIT_USAGE:
            self._print(f"the {name} {how}: its settings are wrong; not restarting it")
        elif self._life.phase is Phase.FAILED:
            self._print(f"the {name} {how} repeatedly; ending the container so that kubelet restarts it")

    def _pause_s(self) -> float:
        if self._life.phase is not Phase.WAITING:
            return TICK_S
        return min(TICK_S, max(0.0, self._life.start_at_s - time.monotonic()))

    def _drain_wakeups(self, wakeup_reader: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while wakeup_reader.recv(4096):
                pass

    def _accept_probe(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            listener.accept()[0].close()

    def _print_once(self, text: str) -> None:
        if text != self._last_message:
            self._print(text)
        self._last_message = text

    def _print(self, text: str) -> None:
        print(f"gantry pod: {text}", file=sys.stderr, flush=True)


def _probe_socket(address: tuple[str, int]) -> socket.socket:
    """Return the socket of the alive port: a kubelet connects to the pod's address, which may be of either family."""
    is_dual = not address[0] and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    listener = socket.create_server(address, family=family, dualstack_ipv6=is_dual, backlog=16)
    listener.setblocking(False)
    return listener
