"""Builds the Java side with Maven if it changed, and composes command lines for it.

Invariant: what runs was built from the current sources. A stamp over all sources and build files decides whether
Maven is called, because calling it without changes costs several seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gantry_interop import versions
from gantry_interop.errors import InteropError, MissingTool
from gantry_interop.paths import INTEROP

CLIENT_MODULES = {
    versions.OLDEST: "client-4",
    versions.PREVIOUS: "client-5-previous",
    versions.PEER: "client-5",
}
"""The Maven module of each client version."""
OUTER_CLIENTS = (versions.OLDEST, versions.PEER)
"""The oldest and the newest client, for runs whose time allows no more."""
POP_CLIENTS = (versions.PREVIOUS, versions.PEER)
"""The clients that can consume by pop."""
REFERENCE = "reference"
BUILD_SECONDS_MAX = 600
TARGET = INTEROP / "target"
LOCK = INTEROP / ".build.lock"
"""The lock of a build. It is not in ``TARGET``, which Maven's `clean` deletes: the next process would lock a new file,
and two would build at once."""

OPENED_MODULES = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""The packages that RocketMQ's store accesses; without these, Java 17 fails when it unmaps a file."""


def find_program(program: str, remedy: str) -> str:
    """Return the path of a program. Raises ``MissingTool`` with the remedy."""
    path = shutil.which(program)
    if path is None:
        raise MissingTool(f"{program} is not installed: {remedy}")
    return path


def sources_digest() -> str:
    """Return a digest over every file that affects the Maven build."""
    digest = hashlib.sha256()
    found = [INTEROP / "pom.xml"]
    for module in ("common", "driver", *_modules()):
        found += [INTEROP / module / "pom.xml", *sorted((INTEROP / module / "src").rglob("*.java"))]
    for path in found:
        if path.exists():
            digest.update(str(path.relative_to(INTEROP)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build() -> bool:
    """Compile everything unless it is up to date; return whether Maven was called."""
    maven = find_program("mvn", "install Maven (package `maven`)")
    find_program("javac", "install a Java 17 development kit (package `openjdk-17-jdk-headless`)")
    stamp = TARGET / "built.sha256"
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = sources_digest()
        if stamp.exists() and stamp.read_text() == wanted and all(_has_class_path(m) for m in _modules()):
            return False
        TARGET.mkdir(exist_ok=True)
        stamp.unlink(missing_ok=True)
        with tempfile.TemporaryFile() as output:  # not in TARGET, which `clean` deletes
            done = subprocess.run(
                [maven, "-B", "-q", "clean", "process-classes"],
                cwd=INTEROP,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=BUILD_SECONDS_MAX,
                check=False,
            )
            output.seek(0)
            output_lines = output.read().decode("utf-8", "replace").splitlines()
        if done.returncode != 0:
            raise InteropError("Maven failed; the end of its output:\n" + "\n".join(output_lines[-20:]))
        stamp.write_text(wanted)
    return True


def _modules() -> list[str]:
    return [*CLIENT_MODULES.values(), REFERENCE]


def _has_class_path(module: str) -> bool:
    listing = TARGET / module / "class-path.txt"
    return listing.exists() and all(Path(entry).exists() for entry in listing.read_text().strip().split(":"))


def class_path(module: str) -> str:
    """Return the class path of one Maven module: the classes of this harness first, then its dependencies."""
    listing = TARGET / module / "class-path.txt"
    return f"{TARGET / module / 'classes'}:{listing.read_text().strip()}"


QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for programs that run only seconds, which would otherwise spend most of them in the optimising compiler."""


@dataclass(frozen=True)
class Program:
    """One Java program: its module, its main class, and the options of its virtual machine."""

    module: str
    main: str
    heap_mib: int = 512
    properties: dict[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    is_measured: bool = False
    """Whether its speed is measured: then the virtual machine runs with default options."""
    classes: str = ""
    """The class path, if it is not that of the module."""

    def command(self, home: Path, arguments: Sequence[str] = ()) -> list[str]:
        """Return the command line; `home` receives the logs and offset files that clients write to the user's home."""
        home.mkdir(parents=True, exist_ok=True)
        properties = {"user.home": str(home), "rocketmq.client.logRoot": str(home / "logs"), **self.properties}
        return [
            find_program("java", "install a Java 17 runtime (package `openjdk-17-jre-headless`)"),
            f"-Xmx{self.heap_mib}m",
            "-XX:MaxDirectMemorySize=1g",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",
            *(() if self.is_measured else QUICK_START),
            *self.options,
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp",
            self.classes or class_path(self.module),
            self.main,
            *arguments,
        ]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Java process: without a name server address, and with a RocketMQ home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETMQ_", "NAMESRV_"))}
    return {**kept, "ROCKETMQ_HOME": str(home)}
