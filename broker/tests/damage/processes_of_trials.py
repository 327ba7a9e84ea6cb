"""Builds templates, and runs and judges trials, in forked processes with a deadline, to protect the run itself."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, final


class ProcessEnd(NamedTuple):
    """How a forked process has ended."""

    code: int
    """The exit code; negative for a signal."""
    is_late: bool
    """Whether it was killed at its deadline."""


class Work(NamedTuple):
    """The work of one process, and the file for its output."""

    name: str
    """The name by which the end of the process is reported."""
    run: Callable[[], None]
    output: Path


@final
class ForkPool:
    """Runs at most ``jobs`` forked processes at a time.

    The parent has one thread and no event loop, so a fork copies no lock.
    """

    def __init__(self, jobs: int, timeout_s: float) -> None:
        self._jobs: Final = jobs
        self._timeout_s: Final = timeout_s

    def run(self, chains: Iterator[Iterator[Work]], on_end: Callable[[str, ProcessEnd], None]) -> None:
        """Run all chains; the next work of a chain is requested when the previous one has ended."""
        with selectors.DefaultSelector() as selector:
            running: dict[int, tuple[int, Work, Iterator[Work], float]] = {}
            is_over = False
            while running or not is_over:
                while len(running) < self._jobs and not is_over:
                    chain = next(chains, None)
                    if chain is None:
                        is_over = True
                        break
                    self._begin(chain, running, selector)
                self._wait(running, selector, on_end)

    def _begin(
        self, chain: Iterator[Work], running: dict[int, tuple[int, Work, Iterator[Work], float]],
        selector: selectors.BaseSelector,
    ) -> None:  # fmt: skip
        """Start the next work of a chain, if it has one."""
        work = next(chain, None)
        if work is None:
            return
        process = fork(work)
        watch = os.pidfd_open(process)
        selector.register(watch, selectors.EVENT_READ)
        running[watch] = (process, work, chain, time.monotonic() + self._timeout_s)

    def _wait(
        self, running: dict[int, tuple[int, Work, Iterator[Work], float]], selector: selectors.BaseSelector,
        on_end: Callable[[str, ProcessEnd], None],
    ) -> None:  # fmt: skip
        """Wait until a process ends or its deadline is over, and start the next work of its chain."""
        if not running:
            return
        rest = min(end for _, _, _, end in running.values()) - time.monotonic()
        ready = {key.fd for key, _ in selector.select(max(0.0, rest))}
        now = time.monotonic()
        for watch, (process, work, chain, end) in list(running.items()):
            is_late = watch not in ready and now >= end
            if watch not in ready and not is_late:
                continue
            if is_late:
                os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            selector.unregister(watch)
            os.close(watch)
            del running[watch]
            on_end(work.name, ProcessEnd(os.waitstatus_to_exitcode(status), is_late))
            self._begin(chain, running, selector)


def fork(work: Work) -> int:
    """Fork a process that does this and ends; return its pid. An exception is code 1, with a traceback as output."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        output = os.open(work.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        work.run()
        code = 0
    except BaseException:  # noqa: BLE001 - the child must never return into its parent's code
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run_all(works: Sequence[Work], jobs: int, timeout_s: float) -> list[str]:
    """Run works that must not fail; return their failures."""
    failed: list[str] = []

    def ended(name: str, how: ProcessEnd) -> None:
        if how.code or how.is_late:
            failed.append(f"{name}: {how}")

    ForkPool(jobs, timeout_s).run((iter([work]) for work in works), ended)
    return failed
