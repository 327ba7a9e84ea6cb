"""Clients of a group: a load with its judge in a pod, and the command `gantry` outside of the cluster.

A load in a pod is spoken to through the API server, as `kubectl exec` does it, or, where a test takes that server away,
through the runtime of the pod's node.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, final

from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError
from gantry_cluster.places import ROOT
from gantry_cluster.pods import Namespace


@final
class PodLoad:
    """`gantry_histories.in_pod` in a pod; its own words say what it hears and says."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> PodLoad:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running()
        process.kill()
        process.communicate()

    def mark(self, name: str) -> None:
        """Something is about to be done to the group."""
        self._say({"mark": name})

    def report(self, more: int) -> dict[str, Any]:
        """After so many further acknowledgements: what clients have noticed since the mark."""
        return self._say({"report": more})

    def finish(self, *epochs: tuple[int, int]) -> dict[str, Any]:
        """Stop, read everything, judge. ``epochs``: newer masters' reigns, and where in the log each begins."""
        return self._say({"finish": epochs})

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "entered before it is used"
        return self._process

    def _say(self, document: Mapping[str, Any]) -> dict[str, Any]:
        entry: IO[str] | None = self._running().stdin
        assert entry is not None, "it was started with a pipe"
        entry.write(json.dumps(document) + "\n")
        entry.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        """One line. It ends by itself when nothing is acknowledged for too long, so this does."""
        process = self._running()
        assert process.stdout is not None, "it was started with a pipe"
        line = process.stdout.readline()
        if not line:
            raise ClusterError(f"the load has ended: {process.communicate()[1].strip()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def outside_gantry(address: str, *words: str) -> str:
    """Run `gantry` on this machine, which is outside of the cluster, as a client of what is at an address."""
    return run(ROOT / ".venv" / "bin" / "gantry", *words, "--namesrv", address)


def external_address(space: Namespace, service: str) -> str:
    """Where a Service of type NodePort is reached from outside: any node takes it."""
    found = space.cluster.api.get(f"{space.path('services')}/{service}")
    [port] = found["spec"]["ports"]
    node = space.cluster.api.items("/api/v1/nodes")[0]
    [address] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    return f"{address}:{port['nodePort']}"
