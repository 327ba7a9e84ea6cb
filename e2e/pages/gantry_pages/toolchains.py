"""How the programs on pages are run, in the folder of their page: one toolchain for each language.

Programs with an SDK of RocketMQ 5 use its locked packages, which `gantry_interop.sdk_programs` installs. A page shows
how a reader installs the same version without a lock file; that block is not run.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from gantry_interop import java, sdk_programs, versions


class Toolchain(Protocol):
    """Runs programs in one language."""

    def command(self, folder: Path, name: str) -> str:
        """Return the shell command that runs a program in the folder of its page; it may add files to the folder."""


@final
@dataclass(frozen=True)
class Python:
    """An interpreter with its options."""

    interpreter: str = sys.executable
    options: str = "-W error"

    def command(self, folder: Path, name: str) -> str:
        """Return the command of a script."""
        return f"{shlex.quote(self.interpreter)} {self.options} {shlex.quote(name)}"


@final
@dataclass(frozen=True)
class Java:
    """The programs that compile and run Java, and the packages of a page."""

    compiler: str
    machine: str
    """The program `java`, which runs compiled programs."""

    class_path: str

    def command(self, folder: Path, name: str) -> str:
        """Return the command that compiles and runs a class. Its home is in the folder, for logs of clients."""
        path, main = shlex.quote(self.class_path), Path(name).stem
        home = shlex.quote(f"-Duser.home={folder}/home")
        logs = shlex.quote(f"-Drocketmq.client.logRoot={folder}/home/logs")
        compiled = f"{self.compiler} -d classes -cp {path} {shlex.quote(name)}"
        return f"{compiled} && {self.machine} -XX:-UsePerfData {home} {logs} -cp classes:{path} {main}"


@final
@dataclass(frozen=True)
class Go:
    """The Go program, with the module of the SDK."""

    module: Path

    def command(self, folder: Path, name: str) -> str:
        """Return the command that builds and runs a file."""
        for lock in ("go.mod", "go.sum"):
            shutil.copy(self.module / lock, folder / lock)
        (folder / "home").mkdir(exist_ok=True)  # Go ignores a module in the folder for temporary files
        home = shlex.quote(str(folder / "home"))
        return f"env rocketmq.client.logRoot={home} TMPDIR={home} GOFLAGS=-mod=readonly go run {shlex.quote(name)}"


@final
@dataclass(frozen=True)
class Node:
    """Node.js, with an installed package of the SDK."""

    packages: Path
    """The folder `node_modules`."""

    def command(self, folder: Path, name: str) -> str:
        """Return the command of a module."""
        (folder / "node_modules").unlink(missing_ok=True)
        (folder / "node_modules").symlink_to(self.packages)
        return f"HOME={shlex.quote(str(folder / 'home'))} node {shlex.quote(name)}"


@final
@dataclass(frozen=True)
class Rust:
    """Cargo, with the locked crates of the SDK's program, whose compiled crates it uses."""

    package: Path
    target: Path

    def command(self, folder: Path, name: str) -> str:
        """Return the command that builds and runs the program. The SDK logs to standard error, line by line."""
        manifest = (self.package / "Cargo.toml").read_text()
        (folder / "Cargo.toml").write_text(manifest.replace(PROGRAM_OF_RUST, PROGRAM_OF_PAGE))
        shutil.copy(self.package / "Cargo.lock", folder / "Cargo.lock")
        log = shlex.quote(str(folder / "sdk.log"))
        run = f"cargo run --locked --quiet --target-dir {shlex.quote(str(self.target))}"
        return f"{run} 2>{log} || {{ cat {log}; false; }}"


PROGRAM_OF_RUST, PROGRAM_OF_PAGE = 'name = "sdk-flows"', 'name = "sdk-page"'
"""The programs have different names, as they are built in the same folder."""


def toolchains(page: str, languages: frozenset[str]) -> dict[str, Toolchain]:
    """Return the toolchains of a page by language. The page of an SDK is named `sdk-` and the folder of its program."""
    found: dict[str, Toolchain] = {"python": Python()}
    if page.startswith("sdk-"):
        language = page.removeprefix("sdk-")
        folder = sdk_programs.build(language)
        return found | {_BLOCK_LANGUAGES.get(language, language): _sdk_toolchain(language, folder)}
    if "java" in languages:
        java.build()
        found["java"] = _java(java.class_path(java.CLIENT_MODULES[versions.PEER]))
    return found


_BLOCK_LANGUAGES = {"node": "js"}


def _sdk_toolchain(language: str, folder: Path) -> Toolchain:
    source = sdk_programs.SDK / language
    match language:
        case "java":
            return _java(sdk_programs.java_class_path(folder))
        case "go":
            return Go(source)
        case "node":
            return Node(folder / "node_modules")
        case "rust":
            return Rust(source, sdk_programs.cargo_target(folder))
        case _:
            return Python(str(folder / "venv" / "bin" / "python"), options="")


def _java(class_path: str) -> Java:
    compiler, machine = shutil.which("javac"), shutil.which("java")
    assert compiler is not None and machine is not None, "expected java and javac, which the test's marker requires"
    return Java(compiler, machine, class_path)
