"""Secrets for the access to a group: creating and replacing them, and probing how the servers apply them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from typing import Final

from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.groups import CLIENT, Group
from gantry_cluster.pods import Namespace
from gantry_remoting import join_address

POLL_SECONDS: Final = 3.0
CONFLICT: Final = 409
"""The HTTP status with which an API server answers the creation of an existing object."""

CODE_SUCCESS: Final = "0"
"""The code in the answer to a permitted request, as `probe_answers` returns it."""

BROKER_PORT: Final = 10911
NAME_SERVER_PORT: Final = 9876
SIDECAR_PORT: Final = 8080
GET_BROKER_CONFIG: Final = 26
GET_BROKER_CLUSTER_INFO: Final = 106
"""Codes of requests that brokers and name servers answer to every permitted client."""

READ_CERTIFICATES: Final = """
import hashlib, ssl
for port in {ports}:
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    print(hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest())
"""
"""Prints the fingerprints of the certificates that the ports of a pod serve."""

PROBE_ACCESS: Final = """
import asyncio, json, ssl, sys
from gantry_access import Credentials
from gantry_access.signing import signer
from gantry_remoting import Channel, RemotingError
from gantry_wire import Command

wanted = json.loads(sys.argv[1])

async def ask(address, code):
    tls = None
    if wanted["authority"]:
        tls = ssl.create_default_context(cadata=wanted["authority"])
        tls.check_hostname = False
    account = Credentials(*wanted["account"]) if wanted["account"] else None
    try:
        channel = await Channel.connect(address, tls=tls, sign=signer(account))
    except RemotingError:
        return "closed"
    try:
        return str((await channel.request(Command(code=code), 5000)).code)
    except RemotingError:
        return "closed"
    finally:
        await channel.close()

async def main():
    print(json.dumps({pod: await ask(*endpoint) for pod, endpoint in wanted["endpoints"].items()}))

asyncio.run(main())
"""
"""Prints how each server answers a client with an account and an authority, as JSON by pod."""


def put_secret(namespace: Namespace, name: str, data: Mapping[str, bytes]) -> None:
    """Create a Secret or replace its data, as `kubectl apply` does."""
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    path = namespace.path("secrets")
    try:
        namespace.cluster.api.create(path, {"metadata": {"name": name}, "data": encoded})
    except ApiRefused as refusal:
        if refusal.status != CONFLICT:
            raise
        namespace.cluster.api.replace(f"{path}/{name}", {"metadata": {"name": name}, "data": encoded})


def accounts(own: tuple[str, str], *others: tuple[str, str]) -> dict[str, bytes]:
    """Return the data of `access.aclSecret`: the administrators, and the account of the brokers themselves."""
    lines = [f"  - accessKey: {key}\n    secretKey: {secret}\n    admin: true\n" for key, secret in (own, *others)]
    return {"plain_acl.yml": "".join(("accounts:\n", *lines)).encode(), "credentials": credentials(own)}


def credentials(account: tuple[str, str]) -> bytes:
    """Return a file with the account of a client."""
    return f"accessKey: {account[0]}\nsecretKey: {account[1]}\n".encode()


def read_served_certificates(group: Group) -> dict[str, set[str]]:
    """Return the fingerprints of the certificates that brokers, sidecars and name servers serve now, by pod."""
    ports = [(pod, "broker", [BROKER_PORT, SIDECAR_PORT]) for pod in group.brokers()]
    ports += [(pod, "nameserver", [NAME_SERVER_PORT]) for pod in group.name_servers()]
    return {
        pod: set(group.namespace.run_python(pod, READ_CERTIFICATES.format(ports=asked), container).split())
        for pod, container, asked in ports
    }


def probe_answers(group: Group, account: tuple[str, str] | None, authority: str) -> dict[str, str]:
    """Return how brokers and name servers answer an account over TLS, by pod: `0`, another code, or `closed`."""
    endpoints = {}
    for pods, port, code in (
        (group.brokers(), BROKER_PORT, GET_BROKER_CONFIG),
        (group.name_servers(), NAME_SERVER_PORT, GET_BROKER_CLUSTER_INFO),
    ):
        for pod in pods:
            found = group.namespace.read_pod(pod)
            assert found is not None, f"{pod} was deleted meanwhile"
            endpoints[pod] = (join_address(found["status"]["podIP"], port), code)
    wanted = {"endpoints": endpoints, "account": account, "authority": authority}
    place = (
        "exec",
        CLIENT,
        f"--namespace={group.namespace.name}",
        "--",
        "python",
        "-c",
        PROBE_ACCESS,
        json.dumps(wanted),
    )
    answers_by_pod: dict[str, str] = json.loads(group.namespace.cluster.kubectl(*place))
    return answers_by_pod


def wait_all(what: str, holds: Callable[[], bool], seconds_max: float) -> float:
    """Wait for a condition that takes a command in each pod, with long pauses; return how long that took, in
    seconds."""
    started = time.monotonic()

    def is_so() -> bool:
        time.sleep(POLL_SECONDS)
        return holds()

    wait_until(what, is_so, seconds_max)
    return time.monotonic() - started
