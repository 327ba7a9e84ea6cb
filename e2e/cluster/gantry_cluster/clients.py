"""Clients of a group: a load with its checker in a pod, and the command `gantry` outside of the cluster.

A load in a pod is controlled through the API server, as `kubectl exec` does it, or through the runtime of the pod's
node where a test stops that server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Final, final

from gantry_histories.judges import judge_packed

from gantry_cluster.commands import run
from gantry_cluster.errors import ClusterError
from gantry_cluster.paths import ROOT
from gantry_cluster.pods import Namespace
from gantry_remoting import join_address

HISTORIES_FOLDER: Final = ROOT / ".gantry" / "histories"
"""The folder for histories about which the judges disagree."""

ERROR_CHARACTERS_MAX: Final = 4_000
"""How much of the end of a load's error output is shown when it has ended."""


@final
class PodLoad:
    """A running `gantry_histories.in_pod` or `steady` in a pod. These define the messages in both directions."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] = TemporaryFile("w+")  # noqa: SIM115  # closed by `__exit__`
        """What the load prints on its error output. A pipe that is not read would stop it once it is full."""

    def __enter__(self) -> PodLoad:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        self._receive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._started_process()
        process.kill()
        process.communicate()
        self._errors.close()

    def mark(self, name: str) -> None:
        """Mark the time at which a fault is injected into the group."""
        self._request({"mark": name})

    def report(self, more: int) -> dict[str, Any]:
        """Wait for ``more`` further acknowledgements. Return the interruption that clients saw since the mark."""
        return self._request({"report": more})

    def finish(self, *epochs: tuple[int, int]) -> dict[str, Any]:
        """Stop, read everything and check. ``epochs`` are newer masters' epochs and their start positions in the
        log.

        The second judge, Porcupine, reads the same history here, outside of the pod, and must agree.
        """
        answer = self._request({"finish": epochs})
        packed = answer.pop("recording", None)
        if packed is not None:
            answer["findings"] += [str(finding) for finding in judge_packed(packed, HISTORIES_FOLDER)]
        return answer

    def _started_process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "used outside of its context"
        return self._process

    def _request(self, document: Mapping[str, Any]) -> dict[str, Any]:
        entry: IO[str] | None = self._started_process().stdin
        assert entry is not None, "expected a pipe for its input"
        entry.write(json.dumps(document) + "\n")
        entry.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        """Read one line. The load ends by itself if nothing is acknowledged for too long, so this cannot block for
        ever."""
        process = self._started_process()
        assert process.stdout is not None, "expected a pipe for its output"
        line = process.stdout.readline()
        if not line:
            process.wait()
            self._errors.seek(0)
            raise ClusterError(f"the load has ended: {self._errors.read()[-ERROR_CHARACTERS_MAX:].strip()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run_gantry_outside(address: str, *words: str) -> str:
    """Run `gantry` on this machine, outside of the cluster, against the name server at an address."""
    return run(ROOT / ".venv" / "bin" / "gantry", *words, "--namesrv", address)


def external_address(namespace: Namespace, service: str) -> str:
    """Return the address at which a Service of type NodePort is reached from outside. Any node forwards it."""
    found = namespace.cluster.api.get(f"{namespace.path('services')}/{service}")
    [port] = found["spec"]["ports"]
    node = namespace.cluster.api.items("/api/v1/nodes")[0]
    [address] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    return join_address(address, port["nodePort"])
