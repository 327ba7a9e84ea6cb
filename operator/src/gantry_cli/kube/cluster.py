"""Requests to the API server with the user's own rights, with time limits for connecting and for each read.

The credentials come from a kubeconfig, read by the package `kubernetes`, which supports all ways to log in. It is not
part of a broker's installation, so it is imported when a command names a cluster. Only its configuration, connections
and web sockets are used, and its retries are disabled.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final
from urllib.parse import quote, urlencode

import yaml

from gantry_cli.errors import CliError, InvalidInput, NotFoundError
from gantry_cli.kube.api_errors import ApiError, cli_error_of, missing_definition, resource_text, suggestion
from gantry_cli.kube.naming import GROUPS, PODS
from gantry_spec.cluster_objects import Kind

Object = dict[str, Any]

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 15.0
LIST_LIMIT: Final = 500
LOG_LINES_MAX: Final = 20_000
"""How many of the last lines of a log are requested."""
CHUNK_BYTES: Final = 64 << 10
"""The bytes of an answer that are read at a time."""
ANSWER_BYTES_MAX: Final = 64 << 20
FIELD_MANAGER: Final = "gantry-cli"
IN_CLUSTER_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
KUBECONFIG_ERRORS: Final = (yaml.YAMLError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""The exceptions of the package for a malformed kubeconfig."""
INSTALL: Final = "pip install 'gantry-mq[kubernetes]'"
"""The remedy where the package `kubernetes` is not installed."""


class Target(NamedTuple):
    """The kubeconfig, context and namespace that the user has named; None for the defaults."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


@final
class Cluster:
    """A connection to a cluster. Owned by one command; any thread may send requests. They raise ``ApiError``."""

    def __init__(self, client: Any, context: str, namespace: str) -> None:
        self.context: Final = context
        self.namespace: Final = namespace
        self.client: Final = client

    def __repr__(self) -> str:
        return f"<Cluster {self.context} namespace={self.namespace}>"

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Return one object by its kind and name."""
        place = self.namespace if namespace is None else namespace
        return self._document("get", "GET", kind.path(_part(place), _part(name)), resource_text(kind, place))

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Object]:  # fmt: skip
        """Return all objects of a kind in a namespace, or in all namespaces if it is empty."""
        place = self.namespace if namespace is None else namespace
        query = {"limit": str(LIST_LIMIT), "labelSelector": labels, "fieldSelector": fields}
        found: list[Object] = []
        while True:
            chosen = {name: value for name, value in query.items() if value}
            answer = self._document("list", "GET", kind.path(_part(place)), resource_text(kind, place), chosen)
            items = [item for item in answer.get("items") or [] if isinstance(item, dict)]
            found += [{"apiVersion": kind.api_version, "kind": kind.name} | item for item in items]
            query["continue"] = (answer.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return found

    def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Object:
        """Apply a merge patch to an object: None removes a field."""
        path, what = kind.path(_part(self.namespace), _part(name)), resource_text(kind, self.namespace)
        return self._document("patch", "PATCH", path, what, {"fieldManager": FIELD_MANAGER}, change)

    def create(self, kind: Kind, document: Mapping[str, Any]) -> Object:
        """Create an object in the namespace. The API server answers 409 if it exists."""
        path, what = kind.path(_part(self.namespace)), resource_text(kind, self.namespace)
        return self._document("create", "POST", path, what, {"fieldManager": FIELD_MANAGER}, document)

    def logs(self, namespace: str, pod: str, container: str, *, is_previous: bool, bytes_max: int) -> bytes:
        """Return the last lines of a container's log, at most ``bytes_max`` bytes.

        ``limitBytes`` of the API is of no use for this: it ends the answer after so many bytes of the *oldest* lines.
        """
        query = {"container": container, "previous": str(is_previous).lower(), "timestamps": "true"}
        query |= {"tailLines": str(LOG_LINES_MAX)}
        path, what = PODS.path(_part(namespace), _part(pod), "log"), resource_text(PODS, namespace, "log")
        return self._ask("get", "GET", path, what, query, read=lambda response: _read_tail(response, bytes_max))

    def version(self) -> Object:
        """Return the version of the API server."""
        return self._document("get", "GET", "/version", "the version")

    # -- one request ---------------------------------------------------------------------------------------------------

    def _document(
        self, verb: str, method: str, path: str, what: str,
        query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None,
    ) -> Object:  # fmt: skip
        """Send a request, and return the object in the answer. ``verb`` and ``what`` describe it in errors."""
        data = self._ask(verb, method, path, what, query or {}, body)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ApiError(verb, what, 0, "the answer is not JSON; check that this is an API server") from error
        if not isinstance(document, dict):
            raise ApiError(verb, what, 0, "the answer is not an object; check that this is an API server")
        return document

    def _ask(
        self, verb: str, method: str, path: str, what: str,
        query: Mapping[str, str], body: Mapping[str, Any] | None = None,
        *, read: Callable[[Any], bytes] = lambda response: bytes(response.read() or b""),
    ) -> bytes:  # fmt: skip
        """Send a request, and return the answer as bytes. ``read`` reads the body of the response."""
        import urllib3
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": "application/json, */*"}
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers |= {} if body is None else {"Content-Type": content}
        parts = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=None if body is None else dict(body),
            auth_settings=["BearerToken"],
        )
        try:
            response = self.client.call_api(*parts, _request_timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S))
            data = read(response)
        except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(verb, what, 0, _reason(error)) from error
        if not 200 <= int(response.status) < 300:
            raise api_error_from(verb, what, int(response.status), data)
        return data

    def socket(self, path: str, query: Sequence[tuple[str, str]], protocol: str) -> Any:
        """Return a connected web socket to a path. Raises the exceptions of its package."""
        from kubernetes.stream import ws_client

        settings = self.client.configuration
        url = ws_client.get_websocket_url(settings.host + path) + "?" + urlencode(list(query))
        headers = {"sec-websocket-protocol": protocol}
        token = settings.get_api_key_with_prefix("BearerToken") or settings.get_api_key_with_prefix("authorization")
        headers |= {"authorization": token} if token else {}
        return ws_client.create_websocket(settings, url, headers)


def _read_tail(response: Any, bytes_max: int) -> bytes:
    """Read an answer and return its last whole lines, at most ``bytes_max`` bytes; no more than twice that is kept."""
    tail, is_cut = bytearray(), False
    for chunk in response.response.stream(CHUNK_BYTES):
        tail += chunk
        if len(tail) > 2 * bytes_max:
            del tail[:-bytes_max]
            is_cut = True
    is_cut = is_cut or len(tail) > bytes_max
    last = bytes(tail[-bytes_max:])
    return last.partition(b"\n")[2] if is_cut else last


def api_error_from(verb: str, what: str, status: int, data: bytes) -> ApiError:
    """Return the error of a failed request. A kind that the API server does not serve is answered with plain text."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    is_status = isinstance(document, dict) and document.get("kind") == "Status"
    details = document.get("details") if is_status and isinstance(document, dict) else None
    is_served = status != 404 or (isinstance(details, dict) and bool(details.get("name")))
    message = str(document.get("message", "")) if isinstance(document, dict) else data.decode("utf-8", "replace")
    return ApiError(verb, what, status, message, is_served=is_served)


def connect(target: Target) -> Cluster:
    """Return a connection to the named cluster. Raises CliError without a usable kubeconfig."""
    try:
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration
    except ImportError as error:
        raise CliError("the package kubernetes, which clusters need, is not installed", INSTALL) from error
    import urllib3

    settings = Configuration()
    try:
        context, namespace = _load(target, settings)
    except (config.ConfigException, *KUBECONFIG_ERRORS) as error:
        raise CliError(f"the kubeconfig cannot be used: {_reason(error)}", "see `kubectl config view`") from error
    if not settings.verify_ssl:  # the kubeconfig disables verification; kubectl does not warn, either
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    settings.retries = urllib3.Retry(0, redirect=0)
    settings.client_go_retries = False
    client = ApiClient(settings)
    client.user_agent = "gantry-cli"
    return Cluster(client, context, target.namespace or namespace or "default")


def _load(target: Target, settings: Any) -> tuple[str, str]:
    """Load a kubeconfig into ``settings``. Return its context and namespace."""
    from kubernetes import config

    is_named = bool(target.kubeconfig or target.context or os.environ.get("KUBECONFIG"))
    if not is_named and not Path("~/.kube/config").expanduser().is_file():
        if "KUBERNETES_SERVICE_HOST" not in os.environ:
            remedy = "name one with --kubeconfig or KUBECONFIG"
            raise CliError("no kubeconfig found: there is no ~/.kube/config, and none is named", remedy)
        config.load_incluster_config(client_configuration=settings)
        return "in-cluster", _text(IN_CLUSTER_NAMESPACE)
    path = target.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(one).expanduser() for one in path.split(os.pathsep) if one]
    if not any(one.is_file() for one in files):
        raise NotFoundError(f"no kubeconfig found at {path}", "name one with --kubeconfig or KUBECONFIG")
    joined = os.pathsep.join(map(str, files))
    contexts, active = config.list_kube_config_contexts(joined)
    known = {one["name"]: one for one in contexts}
    name = target.context or (active or {}).get("name", "")
    if name not in known:
        raise NotFoundError(f"context {name!r} not found in {path}", suggestion(name, known) or None)
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
    """Return the innermost useful reason: packages wrap `connection refused` in five layers."""
    reason: Any = error
    while isinstance(inner := getattr(reason, "reason", None) or reason.__cause__, BaseException):
        reason = inner
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {reason.verify_message}"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    text = str(reason).strip() or type(reason).__name__
    return text.rpartition(">: ")[2] or text


# -- finding a group ---------------------------------------------------------------------------------------------------
# A group is found by its name, or it is the only one of the namespace; otherwise the error suggests existing groups.


def open_group(target: Target, name: str | None) -> tuple[Cluster, Object]:
    """Connect to a cluster, and return it and the present object of the group. Raises CliError."""
    cluster = connect(target)
    return cluster, find_group(cluster, name)


def find_group(cluster: Cluster, name: str | None) -> Object:
    """Return the object of a group. Raises NotFoundError that suggests existing groups, and CliError otherwise."""
    try:
        return _only_group(cluster) if name is None else cluster.get(GROUPS, name)
    except ApiError as error:
        if error.is_not_found and name is not None:
            raise _not_found_error(cluster, name) from error
        raise cli_error_of(error) from error


def read_group_again(cluster: Cluster, name: str) -> Object:
    """Return the object of a group again. Raises ``ApiError``, and NotFoundError when it has been deleted meanwhile."""
    try:
        return cluster.get(GROUPS, name)
    except ApiError as error:
        if error.is_not_found:
            raise NotFoundError(f"group {cluster.namespace}/{name} has been deleted") from error
        raise


def _only_group(cluster: Cluster) -> Object:
    found = cluster.list(GROUPS)
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(one["metadata"]["name"] for one in found))
    if found:
        raise InvalidInput(f"namespace {cluster.namespace} has several groups; name one of {names}")
    raise NotFoundError(f"no group found in namespace {cluster.namespace}", _other_namespaces(cluster, None) or None)


def _not_found_error(cluster: Cluster, name: str) -> CliError:
    """Return the error for a missing group, which suggests a similar name, or the same one in another namespace."""
    problem = f"group {name} not found in namespace {cluster.namespace}"
    try:
        hint = suggestion(name, (one["metadata"]["name"] for one in cluster.list(GROUPS)))
    except ApiError as error:
        return missing_definition() if error.is_unserved else NotFoundError(problem)
    namespaces_hint = _other_namespaces(cluster, name)
    return NotFoundError(problem, namespaces_hint or hint or None)


def _other_namespaces(cluster: Cluster, name: str | None) -> str:
    """Return a hint at the namespaces that have a group of this name, or any; empty if the user may not list them."""
    try:
        found = cluster.list(GROUPS, "")
    except ApiError:
        return ""
    places = sorted({one["metadata"]["namespace"] for one in found if name in (None, one["metadata"]["name"])})
    if not places:
        return ""
    what = "there are groups" if name is None else "it exists"
    return f"{what} in namespace {', '.join(places[:10])}: name it with --namespace"
