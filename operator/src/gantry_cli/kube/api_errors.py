"""Failed requests to the API server as error messages: what is forbidden or not found, and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final, final

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.kube.naming import GROUPS
from gantry_spec.cluster_objects import Kind

MESSAGE_MAX: Final = 400
"""The most characters of the API server's text that are shown."""

_CANNOT: Final = re.compile(r'cannot (\w+) resource "([^"]+)"')
"""Matches the API server's text about a missing right: versions require different ones for the same request."""


@final
class ApiError(Exception):
    """A request to the API server that failed or was refused."""

    def __init__(self, verb: str, what: str, status: int, message: str, *, is_served: bool = True) -> None:
        super().__init__(f"{verb} {what}: {message}")
        self.verb: Final = verb
        self.what: Final = what
        """The kind and the namespace: `pods in namespace shop`."""
        self.status: Final = status
        """The HTTP status; 0 without an answer, for an unusable one, and for a program in a pod that failed."""
        self.message: Final = printable(" ".join(message.split()))[:MESSAGE_MAX]
        self.is_unserved: Final = not is_served
        """Whether the API server does not know the kind at all."""

    @property
    def is_forbidden(self) -> bool:
        return self.status == 403

    @property
    def is_not_found(self) -> bool:
        return self.status == 404 and not self.is_unserved

    @property
    def short(self) -> str:
        """The error in a few words, for a remark."""
        if self.is_forbidden:
            match = _CANNOT.search(self.message)
            verb, noun = (match[1], match[2]) if match is not None else (self.verb, self.what.partition(" ")[0])
            return f"you may not {verb} {noun} {self.what.partition(' ')[2]}".strip()
        return f"{self.verb} {self.what}: {self.message or f'status {self.status}'}"


def printable(text: str) -> str:
    """Replace control characters, since any user of a cluster may have written its texts."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def resource_text(kind: Kind, namespace: str, part: str = "") -> str:
    """Return a resource and its namespace as text: `pods/exec in namespace shop`."""
    noun = f"{kind.plural}/{part}" if part else kind.plural
    return f"{noun} in namespace {namespace}" if kind.is_namespaced and namespace else f"{noun} in all namespaces"


def cli_error_of(error: ApiError) -> CliError:
    """Return the error that ends a command after this failure."""
    if error.status == 0:
        return CliError(f"no usable answer of the API server: {error.message}", "see `kubectl cluster-info`")
    if error.status == 401:
        return CliError("authentication at the API server failed (401)", "log in again; see `kubectl auth whoami`")
    if error.is_forbidden:
        return CliError(f"{error.short}: {error.message}", "docs/kubectl.md lists the rights that are needed")
    if error.is_unserved:
        return missing_definition()
    if error.is_not_found:
        return NotFoundError(f"{error.what}: {error.message}")
    return CliError(f"{error.short} (status {error.status})")


def missing_definition() -> CliError:
    """Return the error for a cluster without the BrokerGroup definition."""
    return NotFoundError(
        f"this cluster has no {GROUPS.plural}.{GROUPS.api_version.partition('/')[0]}",
        "install the operator first: helm install gantry-operator charts/gantry-operator",
    )


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` for a similar name, else the list of known names, empty if there are none."""
    names = sorted(known)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if found:
        return f"did you mean {found[0]}?"
    return f"known names: {', '.join(names[:20])}" if names else ""
