"""The gRPC proxies of a local group: their settings files, and how they are supervised.

They are processes like name servers: they hold no data, run as long as the group, and are restarted when they die.
Their number and settings are those of `spec.proxy`, as in a cluster, and follow a changed manifest: surplus ones are
stopped, and those with other settings are restarted one after another, so that a client with all addresses keeps one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.local.access import secret_folder
from gantry_cli.local.member import MemberSettings, local_restart_policy
from gantry_cli.local.records import GroupRecord, ProxyRecord
from gantry_cli.local.running import is_listening
from gantry_cli.local.state import GroupState, now_ms
from gantry_cli.processes import ServerProcess
from gantry_remoting.durable_files import replace_file
from gantry_spec.proxy_settings import ProxyPlacement, proxy_settings

WITHOUT_PROXY: Final = "no gRPC proxy: its packages are not installed (pip install 'gantry-mq[proxy]')"
GRACE_MS: Final = 5_000
"""How long running calls may take when a proxy stops; the brokers stop next."""
LISTEN_POLL_S: Final = 0.1
LISTEN_POLLS_MAX: Final = 300
"""How often a restarted proxy is polled, 30 s in all, before the next one is restarted."""


def is_proxy_installed() -> bool:
    """Return whether the packages of the proxy are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("google", "google.protobuf"))


def settings_text(record: ProxyRecord, settings: MemberSettings, state: GroupState) -> str:
    """Return the settings file of a proxy. It is JSON, which is YAML, too."""
    spec = settings.spec
    placement = ProxyPlacement(
        name_servers=settings.name_servers,
        address=record.address,
        http_address=record.http_address,
        drain_delay_ms=0,  # no load balancer must learn first that it stops
        grace_ms=GRACE_MS,
        accounts=str(secret_folder(state, spec.access.acl_secret)),
        account=str(secret_folder(state, spec.proxy.credentials_secret)),
        authority=str(secret_folder(state, spec.access.tls_secret)),
        certificates=str(secret_folder(state, spec.proxy.tls.secret or spec.access.tls_secret)),
    )
    return json.dumps(proxy_settings(spec, placement), indent=2)


@final
class LocalProxies:
    """Runs the proxies of a local group. Owned by one event loop, on which ``run`` is a task."""

    def __init__(
        self, state: GroupState, record: GroupRecord, settings: Callable[[], MemberSettings], *,
        make_record: Callable[[int], ProxyRecord], report_event: Callable[[str], None], is_enabled: bool,
    ) -> None:  # fmt: skip
        """``make_record`` plans a proxy that a changed manifest adds. Without ``is_enabled`` none runs."""
        self._state: Final = state
        self._record: Final = record
        self._settings: Final = settings
        self._make_record: Final = make_record
        self._report_event: Final = report_event
        self._is_enabled: Final = is_enabled
        self._children: Final[dict[str, ServerProcess]] = {}
        self._tasks: Final[dict[str, asyncio.Task[None]]] = {}
        self._started_with: Final[dict[str, str]] = {}
        """The settings with which each proxy was started last."""
        self._changed: Final = asyncio.Event()

    def __repr__(self) -> str:
        return f"<LocalProxies {', '.join(self._children)}>"

    def child(self, name: str) -> ServerProcess | None:
        """Return the process of a proxy; None before its first start."""
        return self._children.get(name)

    def adopt(self) -> None:
        """Follow a changed manifest soon."""
        self._changed.set()

    async def run(self) -> None:
        """Run the proxies of the spec until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                await self._reconcile(group)
                await self._changed.wait()

    async def stop(self) -> list[str]:
        """Stop all proxies. Return the names of those that had to be killed."""
        children = list(self._children.values())
        results = await asyncio.gather(*(child.stop() for child in children))
        return [child.name for child, is_graceful in zip(children, results, strict=True) if not is_graceful]

    async def _reconcile(self, group: asyncio.TaskGroup) -> None:
        records, wanted = self._record.proxies, self._settings().spec.proxy.replicas
        if wanted and not self._is_enabled:
            return
        while len(records) > wanted:
            await self._remove_last()
        try:
            while len(records) < wanted:
                records.append(self._make_record(len(records)))
        except CliError as error:
            self._report_event(f"failed to add a proxy: {error}")
        for record in list(records):
            child = self._children.get(record.name)
            if child is None:
                self._start(group, record)
            elif self._started_with.get(record.name) != settings_text(record, self._settings(), self._state):
                self._report_event(f"restarting {record.name} with changed settings")
                await child.restart()
                await self._wait_until_listening(record)

    def _start(self, group: asyncio.TaskGroup, record: ProxyRecord) -> None:
        child = ServerProcess(
            record.name, "gantry_proxy", lambda: self._arguments(record), Path(record.log),
            policy=local_restart_policy(), now_ms=now_ms, report=self._report_event,
        )  # fmt: skip
        self._children[record.name] = child
        self._tasks[record.name] = group.create_task(child.run(), name=f"run {record.name}")
        child.start()

    def _arguments(self, record: ProxyRecord) -> tuple[str, ...]:
        """Write the settings file, and return the arguments of a start."""
        conf, text = self._state.conf(record.name), settings_text(record, self._settings(), self._state)
        replace_file(conf, text.encode(), mode=0o644, is_durable=False)
        self._started_with[record.name] = text
        return ("--config", str(conf))

    async def _remove_last(self) -> None:
        record = self._record.proxies[-1]
        child = self._children.get(record.name)
        if child is not None:
            await child.stop()
            self._tasks.pop(record.name).cancel()
            del self._children[record.name]
        self._record.proxies.pop()
        self._report_event(f"{record.name} removed")

    async def _wait_until_listening(self, record: ProxyRecord) -> None:
        for _ in range(LISTEN_POLLS_MAX):
            if await is_listening(self._record.host, record.port):
                return
            await asyncio.sleep(LISTEN_POLL_S)
        self._report_event(f"{record.name} does not answer {LISTEN_POLLS_MAX * LISTEN_POLL_S:.0f} s after its restart")
