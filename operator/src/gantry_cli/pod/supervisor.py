"""Process 1 of a container: it keeps one server running, ends it when asked to, and reaps processes without a parent.

    SIGTERM, SIGINT   the server is asked to end, however long it takes; its exit code is ours (killed by N: 128 + N)
    the server dies   it is started again, as `ProcessLife` decides with `pod_restart_policy`
    it stands still   it is killed, and so starts again; while it is asked to end nobody hurries it
    a change          what it was started with is no longer so: it is asked to end, and started again at once
    a connection      to the alive port is taken and closed: whoever asks learns that this loop turns

It is small and does nothing else, since nothing starts it again but kubelet. It has no thread and no event loop: one
``select`` over the alive port and over the pipe into which signals are written, so that none can be missed.
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

from gantry_cli.pod.member import NotYet
from gantry_cli.processes import Phase, ProcessLife, RestartPolicy, exit_text, restart_text, server_command

TICK_S: Final = 1.0
EXIT_USAGE: Final = 2
"""Of a server whose settings are wrong: starting it again would mend nothing."""
AT_ONCE_MAX: Final = 5
DELAY_S_MAX: Final = 16.0
SHORT_LIVES_MAX: Final = 12
"""Lives of less than a minute in a row, after which the container ends and kubelet backs off in its way."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def pod_restart_policy() -> RestartPolicy:
    """Return the policy of a server in a container: at once, and only after several deaths more slowly.

    Kubelet would wait 15 s from the second crash on, and longer each time. A broker that finds its write buffers again
    loses nothing by a crash, so that wait would be the only damage.
    """
    return RestartPolicy(
        at_once_max=AT_ONCE_MAX,
        delay_s_max=DELAY_S_MAX,
        short_lives_max=SHORT_LIVES_MAX,
        final_codes=frozenset({EXIT_USAGE}),
    )


def unchanged() -> bool:
    """Of a server that is never started again for what it was started with."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodServer:
    """What is kept running."""

    name: str
    command: Callable[[], list[str]]
    """The words that start it, asked before each start. Raises ``NotYet``."""

    is_changed: Callable[[], bool] = unchanged
    """Whether these words would be others by now."""

    is_still: Callable[[], bool] = unchanged
    """Whether it lives and will do nothing any more. Asked often."""

    alive: tuple[str, int] | None = None
    """Where to say that we are alive."""


@final
class PodSupervisor:
    """Keeps one server running, until it is told to end. For the main thread only."""

    def __init__(self, charge: PodServer) -> None:
        self._charge = charge
        self._life = ProcessLife(pod_restart_policy())
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self._said = ""

    def run(self) -> int:
        """Until SIGTERM, or until starting it again makes no sense. The exit code for this process."""
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        for number in (*_ENDING, signal.SIGCHLD):
            signal.signal(number, self._came)
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.callback(signal.set_wakeup_fd, -1)
            for one in (woken, wakes):
                stack.callback(one.close)
            selector.register(woken, selectors.EVENT_READ, self._drain)
            if self._charge.alive is not None:
                listener = stack.enter_context(socket.create_server(self._charge.alive, backlog=16))
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, self._greet)
            self._life.want(time.monotonic())
            while True:
                code = self._turn()
                if code is not None:
                    return code
                for key, _ in selector.select(self._pause_s()):
                    key.data(key.fileobj)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if number in _ENDING:
            self._is_ending = True

    def _turn(self) -> int | None:
        """Do what is due now. Returns the exit code of this process if that is the end."""
        life = self._life
        if self._is_ending and life.unwant():
            self._ask_to_end()
        code = self._reap()
        if code is not None:
            self._record_end(code)
        if life.phase in (Phase.STOPPED, Phase.FAILED):
            return 0 if code is None else code if code >= 0 else 128 - code
        if life.phase is Phase.WAITING and time.monotonic() >= life.start_at_s:
            self._start()
        elif life.phase is Phase.RUNNING and self._charge.is_changed():
            life.renew()
            self._ask_to_end()
        elif life.phase is Phase.RUNNING and self._charge.is_still():
            assert self._process is not None, "it runs"
            self._say(f"the {self._charge.name} lives and stands still: it is killed")
            os.kill(self._process.pid, signal.SIGKILL)
        return None

    def _start(self) -> None:
        try:
            words = self._charge.command()
        except NotYet as reason:
            self._say_once(f"not yet: {reason}")
            self._life.postpone(time.monotonic(), TICK_S)
            return
        self._said = ""
        self._process = subprocess.Popen(server_command(*words), stdin=subprocess.DEVNULL)
        self._life.started(time.monotonic())

    def _ask_to_end(self) -> None:
        """Send SIGTERM.

        ``Popen.send_signal`` would poll a process that has just ended, and ``_reap`` would never learn of its end.
        """
        assert self._process is not None, "it runs"
        os.kill(self._process.pid, signal.SIGTERM)

    def _reap(self) -> int | None:
        """Wait for all processes that have ended. Returns the server's exit code if it was one, -N if N killed it."""
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
                self._process.returncode = found  # or its own wait would look for it once more
                self._process = None

    def _record_end(self, code: int) -> None:
        """Say what comes after the server's end, unless it was asked to end for good."""
        name, how = self._charge.name, exit_text(code)
        delay = self._life.ended(code, time.monotonic())
        if delay is not None:
            recent = self._life.policy.recent
            self._say(
                f"the {name} {how}; {restart_text(delay)} (death {recent} of a minute, {AT_ONCE_MAX} are at once)"
            )
        elif self._life.phase is Phase.WAITING:
            self._say(f"the {name} has ended, and starts with what is new")
        elif self._life.phase is Phase.FAILED and code == EXIT_USAGE:
            self._say(f"the {name} {how}: its settings are wrong, and it is not started again")
        elif self._life.phase is Phase.FAILED:
            self._say(f"the {name} {how} again and again: it is left to kubelet")

    def _pause_s(self) -> float:
        if self._life.phase is not Phase.WAITING:
            return TICK_S
        return min(TICK_S, max(0.0, self._life.start_at_s - time.monotonic()))

    def _drain(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while woken.recv(4096):
                pass

    def _greet(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            listener.accept()[0].close()

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._say(text)
        self._said = text

    def _say(self, text: str) -> None:
        print(f"gantry pod: {text}", file=sys.stderr, flush=True)
