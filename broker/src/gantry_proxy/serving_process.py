"""One of the processes that serve the clients of a proxy. `ProxyProcesses` starts it; it is no command for users.

    begin    settings from the main process -> a `Proxy` without an address -> started
    serve    connections that the main process has accepted; a report every second; metrics when they are asked for
    end      SIGTERM: drain as a proxy does. The main process has ended: end at once, since no port is left.

SIGINT is ignored: a terminal sends it to both processes, and the main process answers it.
"""

import asyncio
import logging
import signal
import socket
import sys
from typing import Final, final

import uvloop

from gantry_access import AccessFileError
from gantry_client.background import BackgroundTasks
from gantry_proxy.process_link import (
    REPORT_INTERVAL_S,
    Begin,
    MessageLink,
    Metrics,
    MetricsRequest,
    Report,
    Started,
    StartFailed,
    take_sockets,
)
from gantry_proxy.proxy import Proxy, tune_garbage_collector
from gantry_proxy.settings import settings_of_process
from gantry_remoting.logs import set_up_logs
from gantry_remoting.setting_kinds import SettingsError

log = logging.getLogger(__name__)

FAILED: Final = 1


@final
class ServingProcess:
    """The proxy in this process, with its link to the main process. Owned by the event loop."""

    def __init__(self, proxy: Proxy, link: MessageLink, connections: socket.socket) -> None:
        """``connections`` is the end from which accepted connections are taken."""
        self._proxy: Final = proxy
        self._link: Final = link
        self._connections: Final = connections
        self._tasks: Final = BackgroundTasks("serving-process")
        self._taken = 0
        self._adopting = 0
        """Connections that were taken and are not counted by the server yet."""

    def __repr__(self) -> str:
        return f"<ServingProcess taken={self._taken} {self._proxy!r}>"

    async def run(self) -> None:
        """Serve until SIGTERM, or until the main process has ended."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        await self._proxy.start()
        try:
            tune_garbage_collector()
            self._link.send(Started())
            self._tasks.repeat(int(REPORT_INTERVAL_S * 1_000), self._report, "reports")
            loop.add_reader(self._connections, self._take)
            answering = asyncio.ensure_future(self._answer())
            stopping = asyncio.ensure_future(self._drain_after(stopped))
            await asyncio.wait({answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
            answering.cancel()
            stopping.cancel()
        finally:
            loop.remove_reader(self._connections)
            await self._tasks.close()
            await self._proxy.close()

    async def _drain_after(self, stopped: asyncio.Event) -> None:
        await stopped.wait()
        await self._proxy.drain()

    async def _answer(self) -> None:
        """Answer the main process until it ends."""
        while (message := await self._link.receive()) is not None:
            if isinstance(message, MetricsRequest):
                self._link.send(Metrics(self._proxy.metric_families()))
        log.warning("main process of the proxy has ended; stopping")

    async def _report(self) -> None:
        open_now = self._proxy.server.use.connections + self._adopting
        self._link.send(Report(self._taken - open_now, self._proxy.not_ready_reason()))

    def _take(self) -> None:
        for accepted in take_sockets(self._connections):
            self._taken += 1
            self._adopting += 1
            self._tasks.start(self._adopt(accepted), "connection")

    async def _adopt(self, accepted: socket.socket) -> None:
        try:
            await self._proxy.server.adopt(accepted)
        finally:
            self._adopting -= 1


async def _serve(messages: socket.socket, connections: socket.socket) -> int:
    """Run the process to its end, and return its exit code."""
    link = await MessageLink.open(messages)
    begin = await link.receive()
    if not isinstance(begin, Begin):  # the main process has ended
        return FAILED
    try:
        await ServingProcess(Proxy(settings_of_process(begin.settings)), link, connections).run()
    except (SettingsError, AccessFileError, OSError) as error:
        link.send(StartFailed(str(error), is_settings_error=not isinstance(error, OSError)))
        await link.flush()
        return FAILED
    finally:
        link.close()
    return 0


def main() -> None:
    """Serve. The arguments are the two descriptors of the link, and the level of the log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    messages, connections, level = sys.argv[1:]
    set_up_logs(level)
    code = uvloop.run(_serve(socket.socket(fileno=int(messages)), socket.socket(fileno=int(connections))))
    sys.exit(code)


if __name__ == "__main__":
    main()
