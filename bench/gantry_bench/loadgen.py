"""Builds the load generator if its sources changed, and runs it.

It is written in Go because a generator in Python would be slower than the measured broker. The static binary is in
`bench/loadgen/bin`, with a digest of its sources. A run is bounded twice: by the load generator's own limits and by a
timeout here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import OtherWork, read_available_bytes, touch_memory
from gantry_bench.measurement import JAVA, Mode, Report, Sender, read_report

SOURCES: Final = Path(__file__).resolve().parent.parent / "loadgen"
BUILD_TIMEOUT_SECONDS: Final = 300
GRACE_SECONDS: Final = 30


class Timing(msgspec.Struct, frozen=True):
    """The duration of every run."""

    warm_up_ms: int
    duration_ms: int


class Target(msgspec.Struct, frozen=True):
    """The server that a load is sent to."""

    address: str
    process_id: int
    is_echo: bool
    """Whether it is an echo server, which returns requests unchanged, and not a broker."""
    broker_name: str = "broker-a"
    account: tuple[str, str] | None = None
    """Access key and secret, made for the run, to sign every request with."""


class Run(msgspec.Struct, frozen=True):
    """A report with the CPU use of other processes during the run, in cores."""

    report: Report
    other_cores: float


def source_digest(folder: Path) -> str:
    """Return a digest of names and contents of `go.mod` and the Go files, without tests."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "go.mod" or (path.suffix == ".go" and not path.name.endswith("_test.go")):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def build(folder: Path = SOURCES) -> Path:
    """Return the path of an up-to-date binary, built first if needed."""
    binary = folder / "bin" / "loadgen"
    stamp = folder / "bin" / "sources.sha256"
    digest = source_digest(folder)
    if binary.is_file() and stamp.is_file() and stamp.read_text() == digest:
        return binary
    go = shutil.which("go")
    if go is None:
        raise BenchmarkFailed(
            "Go is missing and needed to build the load generator; on Debian: apt-get install golang-go"
        )
    binary.parent.mkdir(exist_ok=True)
    built = subprocess.run(
        [go, "build", "-trimpath", "-o", str(binary), "."],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_SECONDS,
        check=False,
    )
    if built.returncode != 0:
        raise BenchmarkFailed(f"building the load generator failed: {built.stderr.strip()}")
    stamp.write_text(digest)
    return binary


def arguments(mode: Mode, body_bytes: int, *, sender: Sender, target: Target, timing: Timing) -> list[str]:
    """Return the load generator's command line for one run. Raises BenchmarkFailed without an account to sign with."""
    if sender.is_signed and target.account is None:
        raise BenchmarkFailed(f"requests to {target.address} cannot be signed without an account")
    command = [
        f"-address={target.address}",
        f"-server-pid={target.process_id}",
        f"-broker-name={target.broker_name}",
        f"-connections={mode.connections}",
        f"-outstanding={mode.outstanding}",
        f"-frames-per-write={mode.frames_per_write}",
        f"-body-bytes={body_bytes}",
        f"-code={sender.code}",
        f"-header={sender.header}",
        f"-order={sender.order}",
        f"-keys={sender.keys}",
        f"-batch-messages={sender.batch_messages}",
        f"-warm-up={timing.warm_up_ms}ms",
        f"-duration={timing.duration_ms}ms",
    ]
    if mode.topics:
        command += [f"-topics={mode.topics}", "-queues=1"]
    if target.account is not None:
        command += [f"-access-key={target.account[0]}", f"-secret-key={target.account[1]}"]
    return [*command, "-echo"] if target.is_echo else command


class LoadGenerator:
    """A built load generator; if ``core`` is given, it is pinned to this core."""

    def __init__(self, binary: Path, *, core: int | None) -> None:
        self._binary = binary
        self._core = core

    def run(self, mode: Mode, body_bytes: int, *, target: Target, timing: Timing, sender: Sender = JAVA) -> Run:
        """Load the target once and return the result. Raises only if the run cannot be measured."""
        return self.run_together(mode, body_bytes, targets=[target], timing=timing, sender=sender)[0]

    def run_together(
        self, mode: Mode, body_bytes: int, *, targets: Sequence[Target], timing: Timing, sender: Sender = JAVA
    ) -> list[Run]:
        """Load several targets at the same time, each by a process of its own; return their results in this order.

        Raises only if a run cannot be measured.
        """
        timeout_seconds = (timing.warm_up_ms + timing.duration_ms) / 1000 + GRACE_SECONDS
        core = self._core
        touch_memory(read_available_bytes())
        with ExitStack() as stack:
            others = stack.enter_context(OtherWork(*(target.process_id for target in targets)))
            processes = []
            for target in targets:
                command = arguments(mode, body_bytes, sender=sender, target=target, timing=timing)
                process = subprocess.Popen(
                    [str(self._binary), *command],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
                )
                processes.append(stack.enter_context(_killed_at_exit(process)))
            reports = []
            for process in processes:
                try:
                    output, errors = process.communicate(timeout=timeout_seconds)
                except subprocess.TimeoutExpired as error:
                    raise BenchmarkFailed(f"the load generator did not end within {timeout_seconds:.0f} s") from error
                if process.returncode != 0:
                    text = errors.decode(errors="replace").strip()
                    raise BenchmarkFailed(text or "the load generator failed silently")
                reports.append(read_report(output))
        return [Run(report=report, other_cores=others.cores) for report in reports]


@contextmanager
def _killed_at_exit(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill the process at the end of the context, if it still runs."""
    with process:
        try:
            yield process
        finally:
            process.kill()
