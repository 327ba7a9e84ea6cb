"""The programs under `e2e/interop/sdk`, one for each SDK of RocketMQ 5: building them, and their command lines.

Invariant: what runs was built from the present sources and locked packages. Each program is built in a folder of its
own under `sdk/target`, whose stamp has the digest of everything that affects the build. The packages stay apart from
Gantry's: the Python program has a virtual environment, the others have the build tools of their languages.

The version of an SDK is written only in the file that pins it, and read from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_interop import java
from gantry_interop.errors import InteropError
from gantry_interop.paths import INTEROP

SDK: Final = INTEROP / "sdk"
TARGET: Final = SDK / "target"
"""Not the folder `target` beside it, which Maven deletes before a build."""
BUILD_SECONDS_MAX: Final = 1_800
"""A busy core needs minutes to compile the program in Go with its packages."""
BUILD_ATTEMPTS: Final = 3
"""Every build downloads packages the first time, and a download may fail temporarily."""
JAVA_HEAP_MIB: Final = 384


@dataclass(frozen=True)
class Sdk:
    """The SDK of one language: its package, where its version is pinned, and how its program is built and run."""

    package: str
    pinned: tuple[str, str]
    """The file with the version, and the pattern that finds it."""
    sources: Sequence[str]
    """Patterns of the files that affect the build."""
    build: Callable[[Path, Path], None]
    """Builds the sources of one folder into another one."""
    command: Callable[[Path, Path], list[str]]
    """Returns the command of the program in its folder; the second argument is the home of the run."""


def version_of(language: str) -> str:
    """Return the version of an SDK, as its lock file or build file pins it."""
    name, pattern = SDKS[language].pinned
    found = re.search(pattern, (SDK / language / name).read_text())
    if found is None:
        raise LookupError(f"e2e/interop/sdk/{language}/{name} does not pin {SDKS[language].package}")
    return found[1]


def folder_of(language: str) -> Path:
    """Return the folder in which the program of a language is built."""
    return TARGET / language


def build(language: str) -> Path:
    """Build the program of a language unless it is up to date; return its folder. Raises InteropError."""
    sdk, source, folder = SDKS[language], SDK / language, folder_of(language)
    digest, stamp = _digest(source, sdk.sources), folder / "built.sha256"
    folder.mkdir(parents=True, exist_ok=True)
    with (TARGET / f"{language}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest:
            stamp.unlink(missing_ok=True)
            sdk.build(source, folder)
            stamp.write_text(digest)
    return folder


def command(language: str, home: Path) -> list[str]:
    """Return the command of a program, which is built first. `home` gets what the SDK writes to the user's home."""
    return SDKS[language].command(build(language), home)


def environment(home: Path) -> Mapping[str, str]:
    """Return the environment of a program: the logs of SDKs are in the directory of the run."""
    return {**os.environ, "HOME": str(home), "rocketmq.client.logRoot": str(home / "logs")}


def _digest(source: Path, patterns: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(one for pattern in patterns for one in source.glob(pattern)):
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _run(arguments: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> None:
    for attempt in range(1, BUILD_ATTEMPTS + 1):
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False, cwd=folder,
            stdin=subprocess.DEVNULL, env={**os.environ, **(more or {})},
        )  # fmt: skip
        if done.returncode == 0:
            return
        if attempt == BUILD_ATTEMPTS:
            raise InteropError(f"{' '.join(arguments)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _build_python(source: Path, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(folder / "venv")], folder)
    python = str(folder / "venv" / "bin" / "python")
    _run([python, "-m", "pip", "install", "--quiet", "-r", str(source / "requirements.txt")], folder)


def _build_java(source: Path, folder: Path) -> None:
    maven = java.find_program("mvn", "install Maven (package `maven`)")
    _run([maven, "-B", "-q", "-f", str(source / "pom.xml"), "process-classes"], folder)


def _java_command(folder: Path, home: Path) -> list[str]:
    program = java.find_program("java", "install a Java 17 runtime (package `openjdk-17-jre-headless`)")
    options = [f"-Xmx{JAVA_HEAP_MIB}m", f"-Duser.home={home}", "-cp", java_class_path(folder)]
    return [program, *options, "gantry.interop.sdk.SdkFlows"]


def java_class_path(folder: Path) -> str:
    """Return the class path of the Java program, which was built in this folder."""
    return f"{folder / 'classes'}:{(folder / 'class-path.txt').read_text().strip()}"


def _build_go(source: Path, folder: Path) -> None:
    go = java.find_program("go", "install Go 1.25 or later")
    _run([go, "build", "-o", str(folder / "sdk-flows"), "."], source, {"GOFLAGS": "-mod=readonly -trimpath"})


def _build_node(source: Path, folder: Path) -> None:
    npm = java.find_program("npm", "install Node.js 20 or later, and npm")
    for path in (*source.glob("*.mjs"), *source.glob("package*.json")):  # packages are found beside the program only
        shutil.copy(path, folder / path.name)
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


def _node_command(folder: Path, _home: Path) -> list[str]:
    return [java.find_program("node", "install Node.js 20 or later"), str(folder / "main.mjs")]


def _build_rust(source: Path, folder: Path) -> None:
    cargo = java.find_program("cargo", "install Rust 1.88 or later, and a C compiler")
    _run([cargo, "build", "--locked", "--quiet", "--target-dir", str(cargo_target(folder))], source)


def cargo_target(folder: Path) -> Path:
    """Return the folder for compiled crates of the Rust program, which is built in this folder."""
    return folder / "build"


SDKS: Final[Mapping[str, Sdk]] = {
    "java": Sdk(
        package="org.apache.rocketmq:rocketmq-client-java",
        pinned=("pom.xml", r"<sdk\.version>([0-9.]+)</sdk\.version>"),
        sources=("pom.xml", "src/**/*.java"),
        build=_build_java,
        command=_java_command,
    ),
    "go": Sdk(
        package="github.com/apache/rocketmq-clients/golang/v5",
        pinned=("go.mod", r"rocketmq-clients/golang/v5 v([0-9.]+)"),
        sources=("*.go", "go.*"),
        build=_build_go,
        command=lambda folder, _home: [str(folder / "sdk-flows")],
    ),
    "python": Sdk(
        package="rocketmq-python-client",
        pinned=("requirements.txt", r"rocketmq-python-client==([0-9.]+)"),
        sources=("requirements.txt",),
        build=_build_python,
        command=lambda folder, _home: [str(folder / "venv" / "bin" / "python"), str(SDK / "python" / "sdk_flows.py")],
    ),
    "node": Sdk(
        package="rocketmq-client-nodejs",
        pinned=("package.json", r'"rocketmq-client-nodejs": "([0-9.]+)"'),
        sources=("*.mjs", "package*.json"),
        build=_build_node,
        command=_node_command,
    ),
    "rust": Sdk(
        package="rocketmq",
        pinned=("Cargo.toml", r'rocketmq = "=([0-9.]+)"'),
        sources=("src/*.rs", "Cargo.*"),
        build=_build_rust,
        command=lambda folder, _home: [str(cargo_target(folder) / "debug" / "sdk-flows")],
    ),
}
"""The SDKs, by the names of their folders."""
