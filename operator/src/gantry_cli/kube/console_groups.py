"""The groups of a cluster for `gantry console`: their status, and how to reach their sidecars.

A login needs the right to run a program in a pod (`pods/exec`): `gantry pod console-code` makes a one-time code where
the sidecar's token is mounted, and prints it with the digest of the sidecar's certificate. Both come over the API
server, which the user trusts already. The page itself uses a forwarded port (`pods/portforward`).
"""

from __future__ import annotations

import datetime
import json
import socket
from typing import Any, Final, final

from gantry_cli.console.backend import SidecarAccess
from gantry_cli.console.documents import ConditionSummary, GroupSummary, ShardSummary
from gantry_cli.console.http import SidecarUnavailable
from gantry_cli.errors import CliError
from gantry_cli.kube.api_errors import ApiError, printable
from gantry_cli.kube.cluster import Cluster, Object
from gantry_cli.kube.group_observer import dict_of, shards_of
from gantry_cli.kube.naming import GROUPS, PODS, broker_selector
from gantry_cli.kube.port_forward import forward_port
from gantry_cli.kube.sidecars import UNKNOWN_COMMAND_FORM, SidecarClient, is_running
from gantry_cli.pod.sidecar_query import SIDECAR_PORT
from gantry_spec.decide.conditions import is_shown_in_status

CODE_TIMEOUT_S: Final = 15.0
"""How long `gantry pod console-code` may take: it starts a Python program in the pod."""
CODE_COMMAND: Final = "console-code"
DIGEST_CHARACTERS: Final = 64
CODE_CHARACTERS_MAX: Final = 200
TEXT_MAX: Final = 400
SHARDS_MAX: Final = 200
"""The most shards of one group in the list of groups; the group's own console shows all."""
STATUSES: Final = {"True": True, "False": False}
RIGHTS: Final = "docs/kubectl.md lists the rights that `gantry console` needs"


@final
class ClusterSidecars:
    """The sidecars of one group in a cluster, as a ``SidecarSource``."""

    def __init__(self, cluster: Cluster, group: str, *, is_read_only: bool) -> None:
        """``is_read_only`` makes codes that can read only."""
        self.name: Final = f"{cluster.namespace}/{group}"
        self._cluster: Final = cluster
        self._group: Final = group
        self._options: Final = [] if is_read_only else ["--may-change"]

    def __repr__(self) -> str:
        return f"<ClusterSidecars {self.name}>"

    def names(self) -> list[str]:
        """Return the pods whose sidecars run, those that are ready first."""
        try:
            pods = self._cluster.list(PODS, labels=broker_selector(self._group))
        except ApiError as error:
            raise SidecarUnavailable(unavailable_text(error)) from error
        running = [pod for pod in pods if is_running(pod) and not pod["metadata"].get("deletionTimestamp")]
        return [str(pod["metadata"]["name"]) for pod in sorted(running, key=_order)]

    def new_access(self, name: str) -> SidecarAccess:
        """Make a one-time code inside a pod."""
        command = ["gantry", "pod", CODE_COMMAND, *self._options]
        try:
            return access_from(SidecarClient(self._cluster).exec(name, command, CODE_TIMEOUT_S))
        except ApiError as error:
            if UNKNOWN_COMMAND_FORM.format(CODE_COMMAND) in error.message:
                text = "its image is of a version without `gantry pod console-code`; update the operator and the group"
                raise SidecarUnavailable(text) from error
            raise SidecarUnavailable(unavailable_text(error)) from error

    def connect(self, name: str) -> socket.socket:
        """Return a socket that is connected to the sidecar's port in a pod."""
        try:
            return forward_port(self._cluster, name, SIDECAR_PORT)
        except ApiError as error:
            raise SidecarUnavailable(unavailable_text(error)) from error


def access_from(output: bytes) -> SidecarAccess:
    """Return the access in the output of `gantry pod console-code`. Raises ``SidecarUnavailable``."""
    try:
        document = json.loads(output)
        code, digest = document["code"], document["certificate_sha256"]
        if not (isinstance(code, str) and code.isascii() and 0 < len(code) <= CODE_CHARACTERS_MAX):
            raise ValueError("no code")
        if len(digest) not in (0, DIGEST_CHARACTERS):
            raise ValueError("no digest")
        return SidecarAccess(code, bytes.fromhex(digest))
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise SidecarUnavailable("the output of the program in the pod is not a code") from error


def unavailable_text(error: ApiError) -> str:
    """Return why a request to the API server failed; for a missing right, with the page that lists the rights."""
    return f"{error.short}; {RIGHTS}" if error.is_forbidden else error.message or error.short


def _order(pod: Object) -> tuple[bool, str]:
    conditions = dict_of(pod.get("status")).get("conditions") or []
    is_ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return not is_ready, str(pod["metadata"]["name"])


# -- the list of groups ------------------------------------------------------------------------------------------------


@final
class ClusterDirectory:
    """The groups of a namespace or of a whole cluster, as a ``GroupDirectory``."""

    def __init__(self, cluster: Cluster, namespace: str, *, is_read_only: bool) -> None:
        """An empty ``namespace`` stands for all namespaces."""
        self._cluster: Final = cluster
        self._namespace: Final = namespace
        self._is_read_only: Final = is_read_only
        place = f"namespace {namespace}" if namespace else "all namespaces"
        self.title: Final = f"context {cluster.context}, {place}"

    def __repr__(self) -> str:
        return f"<ClusterDirectory {self.title}>"

    def read(self) -> list[GroupSummary]:
        """Return the groups that the user may read. Raises CliError."""
        try:
            return [summary_of(one) for one in self._cluster.list(GROUPS, self._namespace)]
        except ApiError as error:
            raise CliError(unavailable_text(error)) from error

    def sidecars(self, group: GroupSummary) -> ClusterSidecars:
        """Return the sidecars of a group of the list."""
        place = Cluster(self._cluster.client, self._cluster.context, group.place)
        return ClusterSidecars(place, group.name, is_read_only=self._is_read_only)


def summary_of(document: Object) -> GroupSummary:
    """Return a group's status as the list shows it. Fields that an operator has not written are unknown."""
    metadata, status = dict_of(document.get("metadata")), dict_of(document.get("status"))
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "")
    times = [dict_of(dict_of(one).get("durability")).get("observedAt") for one in status.get("eachShard") or []]
    return GroupSummary(
        id=f"{namespace}/{name}",
        name=name,
        place=namespace,
        phase=_plain(status.get("phase")),
        ready=_plain(status.get("ready")),
        shards=[
            ShardSummary(
                number=one.number, master=_plain(one.master), epoch=one.epoch, in_sync=one.in_sync,
                at_risk=_plain(one.at_risk), is_durability_met=one.is_durability_met, fence=_plain(one.fence),
            )
            for one in shards_of(status)[:SHARDS_MAX]
        ],
        conditions=[
            ConditionSummary(**{key: _plain(one.get(key)) for key in ("type", "status", "reason", "message")})
            for one in status.get("conditions") or []
            if isinstance(one, dict) and _is_shown(one)
        ],
        observed_ms=max((found for text in times if (found := _time_ms(text)) is not None), default=None),
    )  # fmt: skip


def _is_shown(condition: dict[str, Any]) -> bool:
    kind, message = str(condition.get("type") or ""), str(condition.get("message") or "")
    return is_shown_in_status(kind, STATUSES.get(str(condition.get("status"))), message)


def _plain(text: object) -> str:
    return printable(str(text or ""))[:TEXT_MAX]


def _time_ms(text: object) -> int | None:
    try:
        moment = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if moment.tzinfo is None else int(moment.timestamp() * 1000)
