"""Compiles the C server if its sources changed, and runs it: the lower limit that goals of `make bench` compare with.

The binary is in `bench/append_server/bin`, with a digest of its sources, of the compiler and of its options. Without a
C compiler the benchmarks continue without this server, and report the reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import Target
from gantry_bench.processes import SEGMENT_BYTES, run_server, wait_for_line

SOURCES: Final = Path(__file__).resolve().parent.parent / "append_server"
PROGRAM: Final = "append_server.c"
COMPILERS: Final = ("cc", "gcc", "clang")
OPTIONS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
BUILD_TIMEOUT_SECONDS: Final = 120


def find_compiler() -> str:
    """Return the path of a C compiler: that of the variable CC, or the first that is installed."""
    for name in (os.environ["CC"],) if os.environ.get("CC") else COMPILERS:
        if path := shutil.which(name):
            return path
    raise BenchmarkFailed(
        "a C compiler (cc, gcc or clang) is missing and needed to build the C server; "
        "on Debian: apt-get install gcc libc6-dev"
    )


def source_digest(folder: Path, compiler: str) -> str:
    """Return a digest of the C sources, of the compiler and of its options."""
    digest = hashlib.sha256("\0".join((compiler, *OPTIONS)).encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in (".c", ".h"):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def build(folder: Path = SOURCES) -> Path:
    """Return the path of an up-to-date binary, compiled first if needed."""
    compiler = find_compiler()
    binary, stamp = folder / "bin" / "append_server", folder / "bin" / "sources.sha256"
    digest = source_digest(folder, compiler)
    if binary.is_file() and stamp.is_file() and stamp.read_text() == digest:
        return binary
    binary.parent.mkdir(exist_ok=True)
    try:
        built = subprocess.run(
            [compiler, *OPTIONS, "-o", str(binary), PROGRAM],
            cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkFailed(f"compiling the C server failed: {error}") from error
    if built.returncode != 0:
        raise BenchmarkFailed(f"compiling the C server with {compiler} failed: {built.stderr.strip()[-1500:]}")
    stamp.write_text(digest)
    return binary


def missing_reason() -> str:
    """Return why the C server is unavailable; empty if it is available. Compiles it if needed."""
    try:
        build()
    except BenchmarkFailed as error:
        return str(error).partition("\n")[0]
    return ""


@contextmanager
def start_append_server(folder: Path, *, core: int | None, log_file_bytes: int = SEGMENT_BYTES) -> Iterator[Target]:
    """Start the C server with an empty log in ``folder``, which is created and removed."""
    binary = build()
    folder.mkdir()
    try:
        with run_server(
            [str(binary), str(folder), str(log_file_bytes)], log=folder / "server.log", core=core
        ) as server:
            port = wait_for_line(server, what="C server")
            yield Target(address=f"127.0.0.1:{port}", process_id=server.process_id, is_echo=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
