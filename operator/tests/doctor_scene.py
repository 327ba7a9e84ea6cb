"""A cluster of processes for tests of `gantry doctor`: name servers and brokers, with the faults that a test plants.

Every server is a process of its own, with real sockets, stores and certificates. `Scene.examine` runs the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

import msgspec
from click.testing import CliRunner

from gantry_cli.doctor.results import DoctorDocument
from gantry_cli.main import cli
from gantry_testing.accounts import write_accounts
from gantry_testing.certificates import Party
from gantry_testing.local import local_conf
from gantry_testing.tree import PYTHON_PATH

DEADLINE_S: Final = 120.0
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")} | {
    "PYTHONPATH": PYTHON_PATH
}


@final
class Server:
    """One server process. `line` is what it prints when its ports are open."""

    def __init__(self, words: Sequence[str], log: Path, address: str = "", *, prefix: Sequence[str] = ()) -> None:
        self.address: Final = address
        """The address that it listens on, if the caller chose it."""
        with log.open("ab") as errors:
            self.process: Final = subprocess.Popen(
                [*prefix, sys.executable, *words], stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT
            )
        assert self.process.stdout is not None
        self.line: Final = self.process.stdout.readline()
        assert " listening on " in self.line, f"{self.line}{log.read_text()}"

    def stop(self) -> None:
        """Kill the process, also a suspended one."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


@final
class Scene:
    """The processes of one test, below one folder."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        """Name servers listen on `host`; `prefix` has the words that run a server elsewhere, such as in a namespace."""
        self.folder: Final = folder
        self._host: Final = host
        self._prefix: Final = tuple(prefix)
        self.name_server = ""
        self.servers: Final[list[Server]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self.servers):
            server.stop()

    def start_name_server(self, *options: str) -> Server:
        """Start the name server that later brokers register with."""
        folder = self.folder / f"ns{len(self.servers)}"
        words = ["-m", "gantry_nameserver", "--listen", f"{self._host}:0", "--data", str(folder), *options]
        server = Server(words, self.folder / "nameserver.log", prefix=self._prefix)
        self.name_server = f"{self._host}:{server.line.rpartition(':')[2].strip()}"
        self.servers.append(server)
        return server

    def start_broker(self, name: str, *, program: Sequence[str] = ("-m", "gantry_broker"), **conf: str) -> Server:
        """Start a broker; `conf` has keys of its broker.conf, and `program` may be one that runs the broker."""
        settings = local_conf(self.folder / name, **{"namesrvAddr": self.name_server, "brokerIP1": "127.0.0.1", **conf})
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        address = f"127.0.0.1:{settings['listenPort']}"
        server = Server([*program, *options], self.folder / f"{name}.log", address, prefix=self._prefix)
        self.servers.append(server)
        return server

    def examine(self, *options: str, before: Sequence[str] = ()) -> DoctorDocument:
        """Run `gantry doctor`; `before` has options of `gantry` itself."""
        words = [*before, "doctor", "-n", self.name_server, "--data", str(self.folder / "none"), "--json", *options]
        return examine(*words)

    def wait_for_brokers(self, count: int, *options: str, before: Sequence[str] = ()) -> DoctorDocument:
        """Examine until so many brokers are registered, and return the last result."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = self.examine(*options, before=before)
            subjects = [finding.subject for finding in check(found, "broker-address").findings]
            if len([one for one in subjects if one != "-"]) >= count:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def examine(*words: str) -> DoctorDocument:
    """Run a command line with `doctor` and return its document. The exit code must be that of the result."""
    result = CliRunner().invoke(cli, words, env={name: "" for name in os.environ if name.startswith("GANTRY_")})
    assert result.exit_code in (0, 1), result.output
    document = msgspec.json.decode(result.stdout, type=DoctorDocument)
    assert result.exit_code == (1 if document.faults else 0), result.output
    return document


def check(document: DoctorDocument, check_id: str) -> Any:
    """Return the result of one check."""
    return next(one for one in document.checks if one.id == check_id)


def faults(document: DoctorDocument) -> dict[str, list[str]]:
    """Return the texts of all faults by check."""
    found: dict[str, list[str]] = {}
    for one in document.checks:
        for finding in one.findings:
            if finding.outcome == "fault":
                found.setdefault(one.id, []).append(f"{finding.subject}: {finding.found} -> {finding.remedy}")
    return found


def guarded(scene: Scene) -> dict[str, str]:
    """Start a name server with accounts, and return the same settings for a broker."""
    accounts, own = write_accounts(scene.folder / "plain_acl.yml"), scene.folder / "own.yml"
    own.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    conf = scene.folder / "namesrv.conf"
    conf.write_text(f"aclEnable=true\naclFile={accounts}\n")
    scene.start_name_server("-c", str(conf))
    return {"aclEnable": "true", "aclFile": str(accounts), "aclCredentialsPath": str(own), "haListenPort": "-1"}


def write_account(scene: Scene, name: str, key: str, secret: str) -> tuple[str, str]:
    """Write a credentials file, and return the option of `gantry`."""
    file = scene.folder / f"{name}.yml"
    file.write_text(f"accessKey: {key}\nsecretKey: {secret}\n")
    return "--credentials", str(file)


def tls_words(party: Party) -> tuple[str, ...]:
    """Return the options of a name server that uses TLS only."""
    return "--tls", "enforcing", "--tls-cert", str(party.chain), "--tls-key", str(party.key)
