"""The gRPC proxy of a local group: its settings file, and how it is supervised.

It is a process like a name server: it holds no data, runs as long as the group, and is restarted when it dies. With
accounts it verifies its clients against the accounts of the brokers, and has the group's own account at them.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gantry_cli.local.access import Access
from gantry_cli.local.member import local_restart_policy
from gantry_cli.local.state import GroupRecord, GroupState, ProxyRecord, now_ms
from gantry_cli.processes import ServerProcess
from gantry_remoting.addresses import join_address
from gantry_remoting.durable_files import replace_file

NAME: Final = "proxy"
WITHOUT_PROXY: Final = "no gRPC proxy: its packages are not installed (pip install 'gantry-mq[proxy]')"
HTTP_HOST: Final = "127.0.0.1"
"""The address of its probes and metrics, as of the sidecars."""
GRACE_MS: Final = 5_000
"""How long running calls may take when the group stops; the brokers stop next."""


def is_proxy_installed() -> bool:
    """Return whether the packages of the proxy are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("google", "google.protobuf"))


def proxy_document(record: ProxyRecord, name_servers: list[str], access: Access) -> dict[str, Any]:
    """Return the content of the proxy's settings file."""
    document: dict[str, Any] = {
        "nameServers": name_servers,
        "listen": {
            "address": record.address,
            "httpAddress": join_address(HTTP_HOST, record.http_port),
            "drainDelayMs": 0,  # there is no load balancer, and no other replica to wait for
            "graceMs": GRACE_MS,
        },
    }
    if access.accounts is not None:
        document["access"] = {"accountsFile": str(access.accounts), "credentialsFile": str(access.credentials)}
    if access.certificates is not None:
        folder = access.certificates
        document["tls"] = {
            "certificate": str(folder / "tls.crt"),
            "key": str(folder / "tls.key"),
            "brokerAuthority": str(folder / "ca.crt"),
            "checksBrokerHostName": False,  # as in a cluster, where one certificate is for all members
        }
    return document


def proxy_process(
    state: GroupState, group: GroupRecord, access: Access, report_event: Callable[[str], None]
) -> ServerProcess | None:
    """Write the settings file of the group's proxy, and return its process; None without one."""
    record = group.proxy
    if record is None:
        return None
    conf = state.conf(NAME)
    text = json.dumps(proxy_document(record, list(group.addresses), access), indent=2)  # JSON is YAML
    replace_file(conf, text.encode(), mode=0o644, is_durable=False)
    arguments = ("--config", str(conf))
    return ServerProcess(
        NAME, "gantry_proxy", lambda: arguments, Path(record.log), policy=local_restart_policy(), now_ms=now_ms,
        report=report_event,
    )  # fmt: skip
