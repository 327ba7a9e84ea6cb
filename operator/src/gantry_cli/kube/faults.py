"""What the API server refuses, as a line for a person: what is not allowed, what is not there, what to do about it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final, final

from gantry_cli.errors import Absent, CliError
from gantry_cli.kube.naming import GROUPS
from gantry_spec.cluster_objects import Kind

MESSAGE_MAX: Final = 400
_CANNOT: Final = re.compile(r'cannot (\w+) resource "([^"]+)"')
"""As the API server says which right lacks: for the same question versions of it want different ones."""


@final
class Refusal(Exception):
    """A question that was not answered as it was meant."""

    def __init__(self, verb: str, what: str, status: int, message: str, *, is_ours: bool = True) -> None:
        super().__init__(f"{verb} {what}: {message}")
        self.verb: Final = verb
        self.what: Final = what
        """The kind, and where: `pods in namespace shop`."""
        self.status: Final = status
        """Of HTTP; 0 for no answer."""
        self.message: Final = harmless(" ".join(message.split()))[:MESSAGE_MAX]
        self.is_unserved: Final = not is_ours
        """Whether the API server does not know the kind at all."""

    @property
    def is_forbidden(self) -> bool:
        return self.status == 403

    @property
    def is_absent(self) -> bool:
        return self.status == 404 and not self.is_unserved

    @property
    def short(self) -> str:
        """In a few words, for a remark beside other things."""
        if self.is_forbidden:
            said = _CANNOT.search(self.message)
            verb, noun = (said[1], said[2]) if said is not None else (self.verb, self.what.partition(" ")[0])
            return f"you may not {verb} {noun} {self.what.partition(' ')[2]}".strip()
        return f"{self.verb} {self.what}: {self.message or f'status {self.status}'}"


def harmless(text: str) -> str:
    """Without characters that a terminal obeys: what comes from a cluster may have been written by anybody."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def what_of(kind: Kind, namespace: str, part: str = "") -> str:
    """As people say it: `pods/exec in namespace shop`."""
    noun = f"{kind.plural}/{part}" if part else kind.plural
    return f"{noun} in namespace {namespace}" if kind.is_namespaced and namespace else f"{noun} in all namespaces"


def line_of(refusal: Refusal) -> CliError:
    """For whoever cannot go on because of it."""
    if refusal.status == 0:
        return CliError(f"the API server does not answer: {refusal.message}", "see `kubectl cluster-info`")
    if refusal.status == 401:
        return CliError("the API server does not know you (401)", "log in again; see `kubectl auth whoami`")
    if refusal.is_forbidden:
        return CliError(f"{refusal.short}: {refusal.message}", "docs/kubectl.md says which rights are needed")
    if refusal.is_unserved:
        return unserved()
    if refusal.is_absent:
        return Absent(f"{refusal.what}: {refusal.message}")
    return CliError(f"{refusal.short} (status {refusal.status})")


def unserved() -> CliError:
    """The definition of our kind is not there."""
    return Absent(
        f"this cluster has no {GROUPS.plural}.{GROUPS.api_version.partition('/')[0]}",
        "install the operator first: helm install gantry-operator charts/gantry-operator",
    )


def near(word: str, known: Iterable[str]) -> str:
    """`did you mean X?` for what is written like it; all there is if nothing is; empty if nothing is there."""
    names = sorted(known)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if found:
        return f"did you mean {found[0]}?"
    return f"there is {', '.join(names[:20])}" if names else ""
