"""The whole operator inside of `kopf run`, in a thread of the test: Kopf's own runner starts and stops it.

    Kopf starts     the operator acquires its Lease, lists all resources, and only then registers handlers
    Kopf watches    and reports events to the operator's groups
    Kopf stops      the operator ends in order, and releases its Lease

It is the operator that a pod runs, with its options, its Lease and its rights. Two things differ: Kopf runs the
operator and not vice versa, and losing the Lease ends the operator instead of the process, which is that of the test.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, final

import kopf
from kopf.testing import KopfRunner

from gantry_operator.handlers import kopf_connection, kopf_settings, register_handlers
from gantry_operator.kubernetes_api import configuration
from gantry_operator.main import JsonFormatter
from gantry_operator.process import Collaborators, Operator
from gantry_operator.settings import OperatorSettings
from gantry_operator.sidecars import HttpSidecars, Sidecars
from gantry_operator.watched_resources import WatchedResources

END_S_MAX: Final = 180.0
BEGIN_S_MAX: Final = 180.0
"""The limits for a start and an end of the operator."""


@final
class HostedOperator:
    """One operator, and the registry through which Kopf starts and stops it. Owned by the loop of Kopf's thread."""

    def __init__(
        self,
        settings: OperatorSettings,
        sidecars: Callable[[], AbstractAsyncContextManager[Sidecars]] = HttpSidecars,
    ) -> None:
        self.registry: Final = kopf.OperatorRegistry()
        self.operator: Final = Operator(
            settings, Collaborators(watch=self._watch, sidecars=sidecars, on_lost=self._lost)
        )
        self.is_lost = False
        """Whether the operator has lost its Lease."""

        self._settings: Final = settings
        self._began: Final = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        kopf.on.startup(registry=self.registry, id="begin")(self._begin)
        kopf.on.cleanup(registry=self.registry, id="end")(self._end)

    async def _begin(self, **_: Any) -> None:
        """Start the operator; return when it is the leader and has listed all resources, before Kopf starts watches."""
        running = self._running = asyncio.create_task(self.operator.run(), name="gantry-operator")
        began = asyncio.create_task(self._began.wait())
        try:
            await asyncio.wait([running, began], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.operator.stop()
            raise
        finally:
            began.cancel()
        if running.done():
            raise kopf.PermanentError("the operator has ended before it began") from running.exception()

    async def _watch(self, resources: WatchedResources, stopped: asyncio.Event) -> None:
        settings = self._settings
        register_handlers(
            self.registry, resources, lambda: kopf_connection(configuration(settings.kubeconfig, settings.context))
        )
        self._began.set()
        await stopped.wait()

    async def _end(self, **_: Any) -> None:
        """Stop the operator; Kopf ends with its exception."""
        self.operator.stop()
        if self._running is not None:
            await self._running

    def _lost(self) -> None:
        self.is_lost = True
        self.operator.stop()


@final
class KopfRun:
    """One `kopf run`, with the output of Kopf and the log of the operator."""

    def __init__(self, hosted: HostedOperator, runner: KopfRunner) -> None:
        self.hosted: Final = hosted
        self.runner: Final = runner
        self.lines: Final[list[dict[str, Any]]] = []
        """The log lines of the operator."""

    def logged(self, message: str) -> list[dict[str, Any]]:
        """Return the log lines with this message."""
        return [line for line in self.lines if line["message"] == message]

    def wait_for_log(self, message: str, seconds: float = BEGIN_S_MAX) -> None:
        """Wait for a log line with this message."""
        deadline = time.monotonic() + seconds
        while not self.logged(message):
            assert not self.runner.future.done(), self.runner.output[-3000:]
            assert time.monotonic() < deadline, (message, self.lines[-20:])
            time.sleep(0.02)

    def check_orderly_end(self) -> None:
        """Check an orderly end: by itself, with the Lease released, and without unexpected errors."""
        assert self.runner.exit_code == 0, self.runner.output[-3000:]
        assert self.runner.future.result().exception is None
        assert not self.hosted.is_lost
        assert "Traceback" not in self.runner.output, self.runner.output[-6000:]
        bad = [line for line in self.lines if line["level"] in ("error", "critical")]
        assert bad == []
        assert self.logged("released leadership")


@final
class _Lines(logging.Handler):
    """Keeps log records as the log of a pod has them."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        super().__init__()
        self._lines: Final = lines
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(json.loads(self.format(record)))


@contextmanager
def run_in_kopf(
    settings: OperatorSettings,
    sidecars: Callable[[], AbstractAsyncContextManager[Sidecars]] = HttpSidecars,
) -> Iterator[KopfRun]:
    """Run `kopf run` during the context, with the operator as the leader. Kopf's output includes what is printed."""
    hosted = HostedOperator(settings, sidecars)
    spaces = [word for name in settings.namespaces for word in ("--namespace", name)] or ["--all-namespaces"]
    words = ["run", "--standalone", *spaces]
    runner = KopfRunner(words, registry=hosted.registry, settings=kopf_settings(), timeout=END_S_MAX)
    run = KopfRun(hosted, runner)
    handler = _Lines(run.lines)
    ours = logging.getLogger("gantry_operator")
    with _restored_logging():
        ours.addHandler(handler)
        try:
            with runner:
                run.wait_for_log("acquired leadership")
                yield run
        finally:
            ours.removeHandler(handler)


@contextmanager
def _restored_logging() -> Iterator[None]:
    """Restore the logging of the process, which Kopf's command configures."""
    root, loop = logging.getLogger(), logging.getLogger("asyncio")
    before = root.handlers[:], root.level, loop.handlers[:], loop.propagate
    try:
        yield
    finally:
        root.handlers[:], loop.handlers[:] = before[0], before[2]
        root.setLevel(before[1])
        loop.propagate = before[3]
