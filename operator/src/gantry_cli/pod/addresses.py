"""The addresses of a member's Services, asked once in the life of its pod.

A Service keeps its address as long as it is there, so what was found is written down beside the status page: a broker
that crashed, and a container that was started again, need no name server to come back. A pod that is made anew asks.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

FILE: Final = "addresses.json"

Resolve = Callable[[str], str]


class NotYet(Exception):
    """Something that a start needs is not there yet; says what. Try again in a moment."""


def resolved(host: str) -> str:
    """The first address of a name. Raises ``NotYet``."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotYet(f"the address of {host} is not known: {error.strerror or error}") from error
    return str(found[0][4][0])


@final
class Addresses:
    """What is known of them."""

    def __init__(self, folder: Path, namespace: str, resolve: Resolve = resolved) -> None:
        self._path = folder / FILE
        self._namespace = namespace
        self._resolve = resolve
        self._known = self._read()

    def of(self, service: str) -> str:
        """The address of a Service. Raises ``NotYet``."""
        if service not in self._known:
            self._known[service] = self._resolve(f"{service}.{self._namespace}.svc")
            self._write()
        return self._known[service]

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(name): str(address) for name, address in found.items()} if isinstance(found, dict) else {}

    def _write(self) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._known))
        os.replace(draft, self._path)
