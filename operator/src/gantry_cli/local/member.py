"""One member of a local group: its broker, its sidecar, and what the broker has said about itself last.

The broker's file of settings is written at each start from what the spec says then. What it was started with is kept
beside it, since that may be older than the spec. A report counts for the process that gave it: it is asked over a
connection that was made after that process was started, and thrown away if another one runs when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.local import buffers
from gantry_cli.local.access import Access
from gantry_cli.local.state import GroupState, MemberRecord, machine_boot
from gantry_cli.processes import RestartPolicy, ServerProcess
from gantry_remoting.durable_files import replace_file
from gantry_spec.broker_conf import Place, broker_conf, conf_text, template_of
from gantry_spec.manifest import Spec
from gantry_spec.observed import Disk, Member, Process, Report
from gantry_status.broker_state import view_of
from gantry_status.order_client import OrderClient
from gantry_status.orders import AskStatus, OrderError

LOOK_TIMEOUT_S: Final = 1.0
STARTING_MS: Final = 10_000
"""For how long a broker that was started is looked at more often: most recover in less."""
DELAY_S_MAX: Final = 15.0
"""Between two starts of a process that died six times within a minute."""


def local_restart_policy() -> RestartPolicy:
    """Return the policy of a local group's process, which is never given up.

    The others of its group run on without it, and somebody may be mending what is wrong.
    """
    return RestartPolicy(delay_s_max=DELAY_S_MAX)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What members are started with now; replaced as a whole when the manifest is."""

    group: str
    spec: Spec
    host: str
    name_servers: tuple[str, ...]
    buffers_root: Path | None
    access: Access
    sidecars: tuple[str, ...]
    """URLs of all, so that each finds the others."""

    is_single: bool
    """Whether this is the broker of `gantry up --single`."""

    @property
    def template(self) -> str:
        return template_of(self.spec, self.name_servers)


@final
class LocalMember:
    """Owned by one event loop."""

    def __init__(
        self, record: MemberRecord, state: GroupState, settings: Callable[[], Settings], now_ms: Callable[[], int],
        tell: Callable[[str], None], changed: Callable[[], None], *, has_sidecar: bool,
    ) -> None:  # fmt: skip
        self.record: Final = record
        self.report: Report | None = None
        self.is_answering = False
        """Whether it has answered the last look."""
        self.template = ""
        self.acks_needed = settings().spec.replication.acks_needed
        self.disk_lost_since_ms: int | None = None
        self._state, self._settings, self._now_ms = state, settings, now_ms
        self._client: OrderClient | None = None
        self._client_boot = ""
        self.broker: Final = ServerProcess(
            record.name, "gantry_broker", self._broker_arguments, Path(record.log), policy=local_restart_policy(),
            now_ms=now_ms, report=tell, changed=changed, is_blocked=self._is_blocked,
        )  # fmt: skip
        self.sidecar: Final = None if not has_sidecar else ServerProcess(
            f"sidecar of {record.name}", "gantry_admin", self._sidecar_arguments, Path(record.sidecar_log),
            policy=local_restart_policy(), now_ms=now_ms, report=tell, changed=changed,
        )  # fmt: skip
        self._sidecar_peers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<LocalMember {self.broker!r}>"

    def _is_blocked(self) -> bool:
        """Whether it must not be started now: its disk is gone, or a person keeps it down."""
        return self.is_disk_lost or self._state.is_held(self.record.name, self._now_ms(), machine_boot())

    @property
    def children(self) -> list[ServerProcess]:
        return [self.broker] if self.sidecar is None else [self.broker, self.sidecar]

    @property
    def control(self) -> str:
        """The path of its control socket."""
        return str(Path(self.record.store) / "control.sock")

    @property
    def buffers(self) -> Path | None:
        """The folder of its write buffers."""
        root = self._settings().buffers_root
        return None if root is None else buffers.folder_of(root, self._state.path, self.record.name)

    @property
    def is_starting(self) -> bool:
        """Whether its broker was started a moment ago, and has not answered since."""
        started_ms = self.broker.started_ms
        is_new = self.broker.is_running and started_ms is not None and self._now_ms() - started_ms < STARTING_MS
        return is_new and not self.is_answering

    @property
    def is_sidecar_outdated(self) -> bool:
        """Whether it was started before the others were known."""
        is_running = self.sidecar is not None and self.sidecar.is_running
        return is_running and self._sidecar_peers != self._peers()

    # -- starting ------------------------------------------------------------------------------------------------------

    def _broker_arguments(self) -> Sequence[str]:
        settings, record = self._settings(), self.record
        folder = self.buffers
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = Place(
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
        self._sidecar_peers = self._peers()
        listen, ranges = (f"127.0.0.1:{record.sidecar_port + offset}" for offset in (0, 1))
        words = ["--page", str(store / "status"), "--control", self.control, "--store", str(store)]
        words += ["--broker-log", record.log, "--listen", listen, "--log-listen", ranges]
        words += ["--token-file", str(self._state.token_file), "--openapi"]
        words += self._settings().access.sidecar_words
        return words + [word for url in self._sidecar_peers for word in ("--peer", url)]

    def _peers(self) -> tuple[str, ...]:
        return tuple(url for url in self._settings().sidecars if url != self.record.sidecar_url)

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def is_disk_lost(self) -> bool:
        """Whether there was a store, and is none any more."""
        return bool(self.record.identity) and not Path(self.record.store).is_dir()

    async def replace_disk(self) -> None:
        """Have its broker start with an empty store, as a member that has never reported."""
        await self.broker.stop()
        self.record.identity, self.report = "", None
        self.broker.start()

    async def look(self) -> None:
        """Ask it how it is. Whoever does not answer is seen as it was."""
        self._look_at_disk()
        boot_id, self.is_answering = self.broker.boot_id, False
        if not boot_id:
            return
        if self._client is None or self._client_boot != boot_id:
            await self.close()
            self._client, self._client_boot = OrderClient(self.control, answer_timeout_s=LOOK_TIMEOUT_S), boot_id
        asked_ms = self._now_ms()
        try:
            status = await self._client.call(AskStatus(), timeout_s=LOOK_TIMEOUT_S)
        except OrderError:
            return
        if self.broker.boot_id != boot_id:
            return
        self.report = view_of(status, Report, asked_ms=asked_ms, answered_ms=self._now_ms(), boot_id=boot_id)
        self.record.identity, self.is_answering = self.report.identity, True

    def _look_at_disk(self) -> None:
        if not self.is_disk_lost:
            self.disk_lost_since_ms = None
        elif self.disk_lost_since_ms is None:
            self.disk_lost_since_ms = self._now_ms()

    def seen(self, asked_ms: int) -> Member:
        """As a decision looks at it."""
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
        """Let go of its connection."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def free_buffers(self) -> None:
        """Give the memory of its buffers back, once nothing is in them: it has ended cleanly, or for good."""
        folder = self.buffers
        if folder is not None and not self.broker.is_running and not (Path(self.record.store) / "abort").exists():
            buffers.remove(folder)
