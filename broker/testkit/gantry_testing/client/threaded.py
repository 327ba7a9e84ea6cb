"""A fake cluster on an event loop in a thread of its own, for tests that have no loop."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, final

from gantry_testing.client.cluster import FakeCluster

T = TypeVar("T")


@final
class ThreadedCluster:
    """A running `FakeCluster` that other threads and processes may talk to. Use it inside `with`.

    Its data belongs to its own thread: look at it freely, change it through `run`.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-cluster")

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.cluster.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.cluster.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 10.0) -> T:
        """What `work` returns, run on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)
