"""The API server, as the person who types may use it: questions one after another, each with a deadline.

Who one is comes from a kubeconfig, by the package `kubernetes`, which knows all the ways to log in. It is no part of a
broker's installation, so it is imported when a cluster is first named. Nothing of it is used but its configuration, its
connections and its web sockets; it does nothing again by itself.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final
from urllib.parse import quote, urlencode

import yaml

from gantry_cli.errors import Absent, CliError, Mistyped
from gantry_cli.kube.faults import Refusal, line_of, near, unserved, what_of
from gantry_cli.kube.naming import GROUPS
from gantry_spec.cluster_objects import Kind

Object = dict[str, Any]

CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0
LIST_LIMIT: Final = 500
ANSWER_BYTES_MAX: Final = 64 << 20
FIELD_MANAGER: Final = "gantry-cli"
IN_CLUSTER_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
BROKEN: Final = (yaml.YAMLError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""What the package raises for a kubeconfig that has not the form of one."""
INSTALL: Final = "pip install 'gantry-mq[kubernetes]'"


class Target(NamedTuple):
    """Which cluster, as whom, and where in it, as far as somebody has said so."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


@final
class Cluster:
    """Owned by one command; its questions may be asked from several threads. They raise ``Refusal``."""

    def __init__(self, client: Any, context: str, namespace: str) -> None:
        self.context: Final = context
        self.namespace: Final = namespace
        self.client: Final = client

    def __repr__(self) -> str:
        return f"<Cluster {self.context} namespace={self.namespace}>"

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """One."""
        place = self.namespace if namespace is None else namespace
        return self._document("get", "GET", kind.path(_part(place), _part(name)), what_of(kind, place))

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Object]:  # fmt: skip
        """All of a namespace, or, with an empty one, of all namespaces."""
        place = self.namespace if namespace is None else namespace
        query = {"limit": str(LIST_LIMIT), "labelSelector": labels, "fieldSelector": fields}
        found: list[Object] = []
        while True:
            chosen = {name: value for name, value in query.items() if value}
            answer = self._document("list", "GET", kind.path(_part(place)), what_of(kind, place), chosen)
            items = [item for item in answer.get("items") or [] if isinstance(item, dict)]
            found += [{"apiVersion": kind.api_version, "kind": kind.name} | item for item in items]
            query["continue"] = (answer.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return found

    def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Object:
        """A merge patch: None takes a field away."""
        path, what = kind.path(_part(self.namespace), _part(name)), what_of(kind, self.namespace)
        return self._document("patch", "PATCH", path, what, {"fieldManager": FIELD_MANAGER}, change)

    def logs(self, namespace: str, pod: str, container: str, *, is_previous: bool, bytes_max: int) -> bytes:
        """The last of what a container has written."""
        from gantry_cli.kube.naming import PODS

        query = {"container": container, "previous": str(is_previous).lower(), "timestamps": "true"}
        query |= {"tailLines": "20000", "limitBytes": str(bytes_max)}
        what = what_of(PODS, namespace, "log")
        return self._ask("get", "GET", PODS.path(_part(namespace), _part(pod), "log"), what, query)

    def version(self) -> Object:
        """Of the API server."""
        return self._document("get", "GET", "/version", "the version")

    # -- one question --------------------------------------------------------------------------------------------------

    def _document(
        self, verb: str, method: str, path: str, what: str,
        query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None,
    ) -> Object:  # fmt: skip
        data = self._ask(verb, method, path, what, query or {}, body)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refusal(verb, what, 0, "the answer is no JSON: is this an API server?") from error
        if not isinstance(document, dict):
            raise Refusal(verb, what, 0, "the answer is no object: is this an API server?")
        return document

    def _ask(
        self, verb: str, method: str, path: str, what: str,
        query: Mapping[str, str], body: Mapping[str, Any] | None = None,
    ) -> bytes:  # fmt: skip
        import urllib3
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": "application/json, */*"}
        headers |= {} if body is None else {"Content-Type": "application/merge-patch+json"}
        parts = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=None if body is None else dict(body),
            auth_settings=["BearerToken"],
        )
        try:
            response = self.client.call_api(*parts, _request_timeout=(CONNECT_S, ANSWER_S))
            data = bytes(response.read() or b"")
        except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Refusal(verb, what, 0, _reason(error)) from error
        if not 200 <= int(response.status) < 300:
            raise refusal_of(verb, what, int(response.status), data)
        return data

    def socket(self, path: str, query: Sequence[tuple[str, str]], protocol: str) -> Any:
        """A web socket there, connected. Raises what its package raises."""
        from kubernetes.stream import ws_client

        settings = self.client.configuration
        url = ws_client.get_websocket_url(settings.host + path) + "?" + urlencode(list(query))
        headers = {"sec-websocket-protocol": protocol}
        shown = settings.get_api_key_with_prefix("BearerToken") or settings.get_api_key_with_prefix("authorization")
        headers |= {"authorization": shown} if shown else {}
        return ws_client.create_websocket(settings, url, headers)


def refusal_of(verb: str, what: str, status: int, data: bytes) -> Refusal:
    """From an answer that is none. What the API server does not serve at all is answered with a text."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    is_status = isinstance(document, dict) and document.get("kind") == "Status"
    details = document.get("details") if is_status and isinstance(document, dict) else None
    is_ours = status != 404 or (isinstance(details, dict) and bool(details.get("name")))
    message = str(document.get("message", "")) if isinstance(document, dict) else data.decode("utf-8", "replace")
    return Refusal(verb, what, status, message, is_ours=is_ours)


def connect(target: Target) -> Cluster:
    """Raises CliError when it is not known how."""
    try:
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration
    except ImportError as error:
        raise CliError("clusters need the package kubernetes, which is not installed", INSTALL) from error
    import urllib3

    settings = Configuration()
    try:
        context, namespace = _load(target, settings)
    except (config.ConfigException, *BROKEN) as error:
        raise CliError(f"the kubeconfig cannot be used: {_reason(error)}", "see `kubectl config view`") from error
    if not settings.verify_ssl:  # as the kubeconfig says; kubectl says nothing to it, either
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    settings.retries = urllib3.Retry(0, redirect=0)
    settings.client_go_retries = False
    client = ApiClient(settings)
    client.user_agent = "gantry-cli"
    return Cluster(client, context, target.namespace or namespace or "default")


def _load(target: Target, settings: Any) -> tuple[str, str]:
    """Context and namespace; the rest goes into ``settings``."""
    from kubernetes import config

    is_named = bool(target.kubeconfig or target.context or os.environ.get("KUBECONFIG"))
    if not is_named and not Path("~/.kube/config").expanduser().is_file():
        if "KUBERNETES_SERVICE_HOST" not in os.environ:
            remedy = "name one with --kubeconfig or KUBECONFIG"
            raise CliError("there is no kubeconfig: no ~/.kube/config, and none is named", remedy)
        config.load_incluster_config(client_configuration=settings)
        return "in-cluster", _text(IN_CLUSTER_NAMESPACE)
    path = target.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(one).expanduser() for one in path.split(os.pathsep) if one]
    if not any(one.is_file() for one in files):
        raise Absent(f"there is no kubeconfig at {path}", "name one with --kubeconfig or KUBECONFIG")
    joined = os.pathsep.join(map(str, files))
    contexts, active = config.list_kube_config_contexts(joined)
    known = {one["name"]: one for one in contexts}
    name = target.context or (active or {}).get("name", "")
    if name not in known:
        raise Absent(f"there is no context {name!r} in {path}", near(name, known) or None)
    config.load_kube_config(joined, name, client_configuration=settings)
    return name, str((known[name].get("context") or {}).get("namespace") or "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _part(text: str) -> str:
    return quote(text, safe="")


def _reason(error: BaseException) -> str:
    """The innermost reason that says something: packages wrap `connection refused` in five layers."""
    reason: Any = error
    while isinstance(inner := getattr(reason, "reason", None) or reason.__cause__, BaseException):
        reason = inner
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {reason.verify_message}"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    text = str(reason).strip() or type(reason).__name__
    return text.rpartition(">: ")[2] or text


# -- the group that was meant ------------------------------------------------------------------------------------------
# Finding the group that was meant: by its name, or the only one that there is; and what else there is if it is not.


def open_group(target: Target, name: str | None) -> tuple[Cluster, Object]:
    """The cluster, and the group as it is now. Raises CliError."""
    cluster = connect(target)
    return cluster, find_group(cluster, name)


def find_group(cluster: Cluster, name: str | None) -> Object:
    """Raises Absent with what is there, and CliError for anything else."""
    try:
        return _the_only(cluster) if name is None else cluster.get(GROUPS, name)
    except Refusal as refusal:
        if refusal.is_absent and name is not None:
            raise _absent(cluster, name) from refusal
        raise line_of(refusal) from refusal


def group_again(cluster: Cluster, name: str) -> Object:
    """The same, some time later. Raises ``Refusal``, and Absent when it has been deleted meanwhile."""
    try:
        return cluster.get(GROUPS, name)
    except Refusal as refusal:
        if refusal.is_absent:
            raise Absent(f"group {cluster.namespace}/{name} has been deleted") from refusal
        raise


def _the_only(cluster: Cluster) -> Object:
    found = cluster.list(GROUPS)
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(one["metadata"]["name"] for one in found))
    if found:
        raise Mistyped(f"which group? in namespace {cluster.namespace} there are {names}")
    raise Absent(f"there is no group in namespace {cluster.namespace}", _elsewhere(cluster, None) or None)


def _absent(cluster: Cluster, name: str) -> CliError:
    """What might have been meant: a name that is written like it, or the same one in another namespace."""
    problem = f"there is no group {name} in namespace {cluster.namespace}"
    try:
        hint = near(name, (one["metadata"]["name"] for one in cluster.list(GROUPS)))
    except Refusal as refusal:
        return unserved() if refusal.is_unserved else Absent(problem)
    elsewhere = _elsewhere(cluster, name)
    return Absent(problem, elsewhere or hint or None)


def _elsewhere(cluster: Cluster, name: str | None) -> str:
    """Where there is one of this name, or any, if one may look."""
    try:
        found = cluster.list(GROUPS, "")
    except Refusal:
        return ""
    places = sorted({one["metadata"]["namespace"] for one in found if name in (None, one["metadata"]["name"])})
    if not places:
        return ""
    what = "groups are" if name is None else "it is"
    return f"{what} in namespace {', '.join(places[:10])}: name it with --namespace"
