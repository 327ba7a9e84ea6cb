"""A proxy of several processes: the main process accepts connections, and gives each to a process that serves it.

    accept -> the process with the fewest open connections -> `ServingProcess`, which has them to their end
    a process ends unexpectedly, or is silent -> its clients connect again, to the others -> another one is started
    drain -> all processes drain at once, and the port stays open as long as they take calls

Each process is a whole proxy, as a replica is, and keeps nothing that another one needs. The main process has the port,
the probes, and the metrics of all together.
"""

import asyncio
import errno
import logging
import signal
import socket
import sys
from typing import Final, final

from gantry_client.background import BackgroundTasks
from gantry_proxy.http_endpoint import HttpEndpoint
from gantry_proxy.metrics import Gauge, MetricFamily, add_families, gauge_family, lasting_families, metrics_text
from gantry_proxy.process_link import (
    Begin,
    MessageLink,
    Metrics,
    MetricsRequest,
    Report,
    Started,
    StartFailed,
    pass_socket,
)
from gantry_proxy.proxy import RECONNECT_S
from gantry_proxy.rpc.server import BACKLOG
from gantry_proxy.settings import ProxySettings
from gantry_remoting.addresses import open_listening_socket, split_address
from gantry_remoting.setting_kinds import SettingsError

log = logging.getLogger(__name__)

RESTART_DELAY_S: Final = 1.0
"""How long after the end of a process another one is started."""
STARTING: Final = "a process of the proxy is starting"
SILENT_S: Final = 30.0
"""After this time without a report a process is killed: it serves no client either."""
METRICS_TIMEOUT_S: Final = 2.0
"""How long a process may take to return its metrics; then its last ones are shown."""
STOP_MARGIN_S: Final = 10.0
"""How much longer than the settings say a process may take to drain; then it is killed."""
ACCEPT_PAUSE_S: Final = 0.5
"""How long no connection is accepted if descriptors are used up."""
HOLD_S: Final = 0.01
"""How often a connection is offered that no process takes, since all are busy or being replaced."""
NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@final
class ServingProcessHandle:
    """A serving process, as the main process has it. Owned by the event loop."""

    def __init__(self, process: asyncio.subprocess.Process, link: MessageLink, connections: socket.socket) -> None:
        self.process: Final = process
        self._link: Final = link
        self._connections: Final = connections
        self._passed = 0
        self._report = Report(not_ready_reason=STARTING)
        self.last_families: list[MetricFamily] = []
        """The metrics that the process returned last."""
        self._metrics: asyncio.Future[None] | None = None
        self.is_started = False

    def __repr__(self) -> str:
        return f"<ServingProcessHandle pid={self.process.pid} open={self.open_connections}>"

    @classmethod
    async def spawn(cls, settings: ProxySettings, log_level: str) -> "ServingProcessHandle":
        """Start a process. Raises OSError."""
        message_ends = socket.socketpair()
        connection_ends = socket.socketpair()
        for end in connection_ends:
            end.setblocking(False)
        passed = message_ends[1], connection_ends[1]
        descriptors = [end.fileno() for end in passed]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gantry_proxy.serving_process", *map(str, descriptors), log_level,
                pass_fds=descriptors, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException:
            message_ends[0].close()
            connection_ends[0].close()
            raise
        finally:
            for end in passed:
                end.close()
        one = cls(process, await MessageLink.open(message_ends[0]), connection_ends[0])
        one._link.send(Begin(settings))
        return one

    @property
    def open_connections(self) -> int:
        return self._passed - self._report.closed

    @property
    def not_ready_reason(self) -> str:
        return self._report.not_ready_reason if self.is_started else STARTING

    async def wait_until_started(self) -> None:
        """Raises SettingsError or OSError with the reason if the process cannot start."""
        message = await self._link.receive()
        if isinstance(message, StartFailed):
            raise (SettingsError if message.is_settings_error else OSError)(message.reason)
        if not isinstance(message, Started):
            raise OSError("a process of the proxy has ended during its start")
        self.is_started = True

    async def read_reports(self) -> bool:
        """Take what the process reports until it ends. Return False if it has not reported for too long."""
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    message = await self._link.receive()
            except TimeoutError:
                self.is_started = False
                return False
            if message is None:
                self.is_started = False
                return True
            if isinstance(message, Report):
                self._report = message
            elif isinstance(message, Metrics):
                self.last_families = message.families
                if self._metrics is not None and not self._metrics.done():
                    self._metrics.set_result(None)

    def pass_connection(self, accepted: socket.socket) -> bool:
        """Give a connection to the process; return False if it does not take it."""
        if not self.is_started or not pass_socket(self._connections, accepted):
            return False
        self._passed += 1
        return True

    async def families(self) -> list[MetricFamily]:
        """Return the metrics of the process; its last ones if it does not answer."""
        if self._metrics is None or self._metrics.done():
            self._metrics = asyncio.get_running_loop().create_future()
            self._link.send(MetricsRequest())
        await asyncio.wait({self._metrics}, timeout=METRICS_TIMEOUT_S)
        return self.last_families

    async def close(self) -> None:
        """Kill the process if it is running, and forget it."""
        if self.process.returncode is None:
            self.process.kill()
        self._link.close()
        self._connections.close()
        await self.process.wait()


@final
class ProxyProcesses:
    """A proxy of several processes. Owned by the event loop of the main process."""

    def __init__(self, settings: ProxySettings, log_level: str) -> None:
        self.settings: Final = settings
        self._log_level: Final = log_level
        self._tasks: Final = BackgroundTasks("proxy-processes")
        self._processes: Final[dict[int, ServingProcessHandle]] = {}
        """By their number, the process that was started last; it may have ended."""
        self._ended: list[MetricFamily] = []
        """The counts of processes that have ended, so that no total falls."""
        self._restarts = 0
        self._is_draining = False
        self._listening: socket.socket | None = None
        self._held: socket.socket | None = None
        """An accepted connection that no process has taken yet; while there is one, no other is accepted."""
        self._http: Final = (
            HttpEndpoint(settings.listen.http_address, self.not_ready_reason, self.metrics_text)
            if settings.listen.http_address
            else None
        )

    def __repr__(self) -> str:
        return f"<ProxyProcesses {list(self._processes.values())!r}>"

    @property
    def port(self) -> int:
        return 0 if self._listening is None else int(self._listening.getsockname()[1])

    @property
    def http_port(self) -> int:
        return 0 if self._http is None else self._http.port

    def not_ready_reason(self) -> str:
        """Return why no clients should be sent to this proxy: no process of it can serve them."""
        if self._is_draining:
            return "the proxy is stopping"
        reasons = [one.not_ready_reason for one in self._processes.values()]
        return "" if "" in reasons else "; ".join(sorted(set(reasons))) or STARTING

    async def metrics_text(self) -> str:
        """Return the metrics of all processes together, in the format of Prometheus."""
        parts = await asyncio.gather(*(one.families() for one in self._processes.values() if one.is_started))
        own = [gauge_family(gauge) for gauge in self._gauges()]
        names = {family.name for family in own}
        return metrics_text([*own, *(one for one in add_families([*parts, self._ended]) if one.name not in names)])

    def _gauges(self) -> list[Gauge]:
        """Return what the main process knows better than the others."""
        return [
            Gauge("gantry_proxy_ready", "gauge", "Whether clients may be sent to this replica.",
                  lambda: float(not self.not_ready_reason())),
            Gauge("gantry_proxy_processes", "gauge", "Processes of the proxy that serve clients.",
                  lambda: sum(one.is_started for one in self._processes.values())),
            Gauge("gantry_proxy_process_restarts_total", "counter", "Processes that ended unexpectedly.",
                  lambda: self._restarts),
        ]  # fmt: skip

    async def start(self) -> None:
        """Start all processes, and accept connections. Raises SettingsError and OSError."""
        listen = self.settings.listen
        try:
            host, port = split_address(listen.address, port_min=0)
            self._listening = await open_listening_socket(host, port, backlog=BACKLOG)
            starting = [self._spawn(number) for number in range(listen.processes)]
            for outcome in await asyncio.gather(*starting, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            if self._http is not None:
                await self._http.start()
        except BaseException:
            await self.close()
            raise
        for number in range(listen.processes):
            self._tasks.start(self._keep_running(number), f"process-{number}")
        self._accept_connections()

    async def drain(self) -> None:
        """Stop serving without a failed call: see `Proxy.drain`, which every process does now."""
        listen = self.settings.listen
        self._is_draining = True
        for one in self._processes.values():
            if one.process.returncode is None:
                one.process.send_signal(signal.SIGTERM)
        accepting_s = listen.drain_delay_ms / 1000 + RECONNECT_S
        await asyncio.sleep(accepting_s)
        self._stop_listening()
        ends = [asyncio.ensure_future(one.process.wait()) for one in self._processes.values()]
        if ends:
            await asyncio.wait(ends, timeout=listen.grace_ms / 1000 + STOP_MARGIN_S)

    async def close(self) -> None:
        """End all processes; running calls fail."""
        self._is_draining = True
        self._stop_listening()
        if self._http is not None:
            await self._http.close()
        await self._tasks.close()
        await asyncio.gather(*(one.close() for one in self._processes.values()))
        self._processes.clear()

    # ------- connections

    def _accept_connections(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        if self._held is not None:
            self._held.close()
            self._held = None

    def _accept(self) -> None:
        """Accept what waits, as asyncio's servers do."""
        for _ in range(BACKLOG):
            if self._listening is None:
                return
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in NO_ROOM:
                    self._pause_accepting(error)
                    return
                continue  # the client has gone before it was accepted
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._distribute(accepted):
                self._hold(accepted)
                return

    def _pause_accepting(self, error: OSError) -> None:
        log.error("accepting connections failed; trying again", extra={"reason": str(error)})
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)  # type: ignore[arg-type]
        loop.call_later(ACCEPT_PAUSE_S, self._accept_connections)

    def _distribute(self, accepted: socket.socket) -> bool:
        """Give a connection to the process with the fewest. Return False if none takes it now."""
        for one in sorted(self._processes.values(), key=lambda one: one.open_connections):
            if one.pass_connection(accepted):
                accepted.close()
                return True
        return False

    def _hold(self, accepted: socket.socket) -> None:
        """Accept no further connection until a process takes this one; the others wait in the kernel."""
        self._held = accepted
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)  # type: ignore[arg-type]
        loop.call_later(HOLD_S, self._distribute_held)

    def _distribute_held(self) -> None:
        accepted = self._held
        if accepted is None:  # the port is closed
            return
        if self._distribute(accepted):
            self._held = None
            self._accept_connections()
        else:
            asyncio.get_running_loop().call_later(HOLD_S, self._distribute_held)

    # ------- processes

    async def _spawn(self, number: int) -> None:
        """Start the process of a number. Raises SettingsError and OSError."""
        one = await ServingProcessHandle.spawn(self.settings, self._log_level)
        self._processes[number] = one
        await one.wait_until_started()

    async def _keep_running(self, number: int) -> None:
        """Start another process whenever that of a number ends."""
        while True:
            one = self._processes[number]
            if not await one.read_reports():
                log.error("process of the proxy does not answer; killing it", extra={"pid": one.process.pid})
            if self._is_draining:
                return
            self._restarts += 1
            self._ended = add_families([self._ended, lasting_families(one.last_families)])
            await one.close()
            log.error(
                "process of the proxy ended; starting another one",
                extra={"number": number, "pid": one.process.pid, "exit_code": one.process.returncode},
            )
            await self._start_again(number)

    async def _start_again(self, number: int) -> None:
        while not self._is_draining:
            await asyncio.sleep(RESTART_DELAY_S)
            try:
                await self._spawn(number)
            except (SettingsError, OSError) as error:
                log.error("failed to start process of the proxy; trying again", extra={"reason": str(error)})
                await self._processes[number].close()
            else:
                return
