"""Runs a name server of a group as a process of this machine, from its rendered objects, on loopback ports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from edit_world.row import GROUP
from objects_scene import containers, group, of_kind, rendered

from gantry_operator.objects import names
from gantry_testing.ports import free_ports


@final
class LocalNameServer:
    """A context manager that runs a group's name server."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._conf = ""
        self.inner, self.outer = (f"127.0.0.1:{port}" for port in free_ports(2))
        """The addresses for clients inside and outside of the cluster."""

    def __enter__(self) -> LocalNameServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def addresses(self) -> dict[str, str]:
        """The local address of the group's only name server, by its address in the cluster."""
        [address] = names.name_server_addresses(GROUP, "shop", 1)
        return {address: self.inner}

    def run_spec(self, spec: Mapping[str, Any]) -> None:
        """Run the name server of a group with this spec; restarted if its settings change, as a StatefulSet does."""
        home = of_kind(rendered(group(GROUP, **spec)), "StatefulSet")[f"{GROUP}-nameserver"]
        container = containers(home["spec"]["template"])[names.NAME_SERVER]
        [conf] = [one["value"] for one in container["env"]]
        if conf == self._conf:
            return
        self._end()
        self._conf = conf
        ports = {str(names.NAME_SERVER_PORT): self.inner, str(names.EXTERNAL_NAME_SERVER_PORT): self.outer}
        lines = dict(line.partition("=")[::2] for line in conf.splitlines())
        for key in ("listenPort", "externalListenPort"):
            if key in lines:
                lines[key] = ports[lines[key]].rpartition(":")[2]
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        words = ["pod", "nameserver", "--data", str(self._folder), "--run", str(self._folder), "--alive", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gantry_cli", *words],
            env={**os.environ, "GANTRY_NAMESERVER_CONF": text},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(120)
            self._process = None
