"""One member of a local group: its broker, its sidecar, and the broker's last report.

The broker's settings file is written from the spec at each start. The settings of the running process are kept in
memory, since they may be older than the spec. A report is attributed to the process that sent it: it is requested over
a connection that was made after that process started, and discarded if another process runs when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.local import buffers
from gantry_cli.local.access import Access
from gantry_cli.local.ports import SIDECAR
from gantry_cli.local.records import MemberRecord
from gantry_cli.local.state import GroupState, machine_boot
from gantry_cli.processes import RestartPolicy, ServerProcess
from gantry_remoting.durable_files import replace_file
from gantry_spec.broker_conf import BrokerPlacement, broker_conf, conf_text, template_of
from gantry_spec.manifest import Spec
from gantry_spec.observed import Disk, Member, Process, Report
from gantry_status.broker_state import view_of
from gantry_status.order_client import OrderClient
from gantry_status.orders import OrderError, StatusRequest

STATUS_TIMEOUT_S: Final = 1.0
STARTING_MS: Final = 10_000
"""How long a broker is observed more often after its start; most brokers recover in less."""
DELAY_S_MAX: Final = 15.0
"""The delay between two starts of a process that died six times within a minute."""


def local_restart_policy() -> RestartPolicy:
    """Return the policy of a local group's process, which is restarted without a limit.

    The rest of its group keeps running, and the cause may be repaired in the meantime.
    """
    return RestartPolicy(delay_s_max=DELAY_S_MAX)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings that members are started with; replaced as a whole when the manifest or the sidecars change."""

    group: str
    spec: Spec
    host: str
    """The address on which brokers listen, and which they advertise."""

    name_servers: tuple[str, ...]
    buffers_root: Path | None
    """The mount with the write buffers; None without write buffers."""

    access: Access
    sidecars: tuple[str, ...]
    """The URLs of all sidecars, so that each finds the others."""

    proxies: tuple[str, ...]
    """The addresses of the metrics of all gRPC proxies, which the sidecars show."""

    is_single: bool
    """Whether this is the broker of `gantry up --single`."""

    @property
    def template(self) -> str:
        """The hash of the settings that need a restart of a broker."""
        return template_of(self.spec, self.name_servers)


@final
class LocalMember:
    """A member of a local group: its processes and its last report. Owned by one event loop."""

    def __init__(
        self, record: MemberRecord, state: GroupState, settings: Callable[[], MemberSettings],
        now_ms: Callable[[], int], report_event: Callable[[str], None], on_changed: Callable[[], None], *,
        has_sidecar: bool,
    ) -> None:  # fmt: skip
        self.record: Final = record
        self.report: Report | None = None
        self.is_answering = False
        """Whether it answered the last status request."""
        self.template = ""
        self.acks_needed = settings().spec.replication.acks_needed
        self.disk_lost_since_ms: int | None = None
        self._state, self._settings, self._now_ms = state, settings, now_ms
        self._client: OrderClient | None = None
        self._client_boot = ""
        self.broker: Final = ServerProcess(
            record.name, "gantry_broker", self._broker_arguments, Path(record.log), policy=local_restart_policy(),
            now_ms=now_ms, report=report_event, on_changed=on_changed, is_blocked=self._is_blocked,
        )  # fmt: skip
        self.sidecar: Final = None if not has_sidecar else ServerProcess(
            f"sidecar of {record.name}", "gantry_admin", self._sidecar_arguments, Path(record.sidecar_log),
            policy=local_restart_policy(), now_ms=now_ms, report=report_event, on_changed=on_changed,
        )  # fmt: skip
        self._sidecar_urls: tuple[str, ...] = ()
        """The options with which the sidecar was started for its peers and the proxies."""

    def __repr__(self) -> str:
        return f"<LocalMember {self.broker!r}>"

    def _is_blocked(self) -> bool:
        """Whether the broker must not be started now: its disk is lost, or `gantry kill` keeps it down."""
        return self.is_disk_lost or self._state.is_held(self.record.name, self._now_ms(), machine_boot())

    @property
    def children(self) -> list[ServerProcess]:
        """The processes of the member: its broker, and its sidecar if there is one."""
        return [self.broker] if self.sidecar is None else [self.broker, self.sidecar]

    @property
    def control(self) -> str:
        """The path of the broker's control socket."""
        return str(Path(self.record.store) / "control.sock")

    @property
    def buffers(self) -> Path | None:
        """The folder of the broker's write buffers; None without any."""
        root = self._settings().buffers_root
        return None if root is None else buffers.buffer_folder(root, self._state.path, self.record.name)

    @property
    def is_starting(self) -> bool:
        """Whether its broker started within ``STARTING_MS`` and did not answer the last request."""
        started_ms = self.broker.started_ms
        is_new = self.broker.is_running and started_ms is not None and self._now_ms() - started_ms < STARTING_MS
        return is_new and not self.is_answering

    @property
    def is_sidecar_outdated(self) -> bool:
        """Whether the sidecar was started with another list of peers or proxies than the present one."""
        is_running = self.sidecar is not None and self.sidecar.is_running
        return is_running and self._sidecar_urls != self._urls()

    # -- starting ------------------------------------------------------------------------------------------------------

    def _broker_arguments(self) -> Sequence[str]:
        """Write the broker's settings file, and return the arguments of its start."""
        settings, record = self._settings(), self.record
        folder = self.buffers
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = BrokerPlacement(
            group=settings.group,
            shard=record.shard,
            number=record.number,
            address=settings.host,
            listen=settings.host,
            port=record.port,
            ha_port=record.ha_port,
            name_servers=settings.name_servers,
            store=record.store,
            buffers="" if folder is None else str(folder),
            access=settings.access.broker_keys,
        )
        Path(record.store).mkdir(parents=True, exist_ok=True)
        conf = self._state.conf(record.name)
        text = conf_text(broker_conf(settings.spec, place, is_single=settings.is_single))
        replace_file(conf, text.encode(), mode=0o644, is_durable=False)
        self.template, self.acks_needed = settings.template, settings.spec.replication.acks_needed
        return ["-c", str(conf)]

    def _sidecar_arguments(self) -> Sequence[str]:
        record, store = self.record, Path(self.record.store)
        self._sidecar_urls = self._urls()
        listen, ranges = (f"127.0.0.1:{record.sidecar_port + offset}" for offset in SIDECAR.port_offsets)
        arguments = ["--page", str(store / "status"), "--control", self.control, "--store", str(store)]
        arguments += ["--broker-log", record.log, "--listen", listen, "--log-listen", ranges]
        arguments += ["--token-file", str(self._state.token_file), "--openapi"]
        arguments += ["--state", str(self._state.sidecar(record.name))]
        arguments += self._settings().access.sidecar_arguments
        return [*arguments, *self._sidecar_urls]

    def _urls(self) -> tuple[str, ...]:
        settings = self._settings()
        peers = [word for url in settings.sidecars if url != self.record.sidecar_url for word in ("--peer", url)]
        return (*peers, *(word for address in settings.proxies for word in ("--proxy", f"http://{address}")))

    # -- observing -----------------------------------------------------------------------------------------------------

    @property
    def is_disk_lost(self) -> bool:
        """Whether the member had a store whose folder does not exist any more."""
        return bool(self.record.identity) and not Path(self.record.store).is_dir()

    async def replace_disk(self) -> None:
        """Restart the broker, whose store's folder does not exist any more, as a member that has never reported.

        Nothing is deleted here: the start creates an empty store, since there is none.
        """
        await self.broker.stop()
        self.record.identity, self.report = "", None
        self.broker.start()

    async def observe(self) -> None:
        """Request a report from the broker. Without an answer the last report stays."""
        self._observe_disk()
        boot_id, self.is_answering = self.broker.boot_id, False
        if not boot_id:
            return
        if self._client is None or self._client_boot != boot_id:
            await self.close()
            self._client, self._client_boot = OrderClient(self.control, answer_timeout_s=STATUS_TIMEOUT_S), boot_id
        asked_ms = self._now_ms()
        try:
            status = await self._client.call(StatusRequest(), timeout_s=STATUS_TIMEOUT_S)
        except OrderError:
            return
        if self.broker.boot_id != boot_id:
            return
        self.report = view_of(status, Report, asked_ms=asked_ms, answered_ms=self._now_ms(), boot_id=boot_id)
        self.record.identity, self.is_answering = self.report.identity, True

    def _observe_disk(self) -> None:
        if not self.is_disk_lost:
            self.disk_lost_since_ms = None
        elif self.disk_lost_since_ms is None:
            self.disk_lost_since_ms = self._now_ms()

    def to_observed(self, asked_ms: int) -> Member:
        """Return the member as the value that a decision takes."""
        broker = self.broker
        return Member(
            number=self.record.number,
            process=Process.RUNNING if broker.is_running else Process.STOPPED,
            process_asked_ms=asked_ms,
            stopped_by_ms=broker.stopped_ms,
            boot_id=broker.boot_id,
            started_by_ms=broker.started_ms,
            disk_id=self.record.identity,
            template=self.template,
            acks_needed=self.acks_needed,
            disk=Disk.LOST if self.is_disk_lost else Disk.PRESENT,
            disk_lost_since_ms=self.disk_lost_since_ms,
            report=self.report,
        )

    async def close(self) -> None:
        """Close the connection to the broker's control socket."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def free_buffers(self) -> None:
        """Delete the write buffers if nothing is in them: after a clean stop or a removal of the member."""
        folder = self.buffers
        if folder is not None and not self.broker.is_running and not (Path(self.record.store) / "abort").exists():
            buffers.remove_folder(folder)
