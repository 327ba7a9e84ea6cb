"""`gantry pipeline serve`: return archived messages to brokers. Needs no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, final

from gantry_pipelines.archive.job_errors import map_archive_errors
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.serving.broker_port import PortParameters
from gantry_pipelines.archive.serving.server import ArchiveServer, ServerParameters
from gantry_pipelines.archive.settings import parse_archive_parameters
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_DONE, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.source_options import topics_pattern
from gantry_remoting.addresses import ANYWHERE, split_address
from gantry_spec.manifest.parts import Part
from gantry_spec.manifest.quantities import Duration, Size
from gantry_spec.pipelines.kinds import ArchiveSpec

CACHE_BYTES_MIN: Final = 1 << 20
REFRESH_MS_MIN: Final = 100


@final
class ServingTls(Part, frozen=True):
    """The certificate of the server's TCP port."""

    certificate_file: str = ""
    """PEM file with the whole certificate chain. Empty: no TLS."""

    key_file: str = ""
    """PEM file of the private key, without a password."""


@final
class Serving(Part, frozen=True):
    """The settings of the server of an archive."""

    socket: str = ""
    """The path of the Unix socket to listen at, which brokers have as `archiveSocketPath`."""

    listen: str = ""
    """The address (`host:port`) to listen at for brokers of other machines, which have it as `archiveAddress`; without
    a host all addresses."""

    secret_file: str = ""
    """A file with the secret that brokers have in `archiveSecretPath`."""

    tls: ServingTls = ServingTls()
    """The certificate of `listen`."""

    cache: Size = Size(128 << 20)
    """The memory for messages that were read lately."""

    refresh: Duration = Duration(5_000)
    """How often the manifest is read, and brokers learn what was archived."""


@final
class ServeSpec(ArchiveSpec, frozen=True):
    """The spec of a `TopicArchive`, and the settings of its server."""

    serving: Serving = Serving()


@final
class ServeJob(Job[ServeSpec, tuple[str, ServerParameters]]):
    """The job that returns archived messages to brokers, until it is stopped."""

    name = "serve"
    spec_type = ServeSpec

    def parse(self, config: PipelineConfig[ServeSpec]) -> tuple[str, ServerParameters]:
        """Return the destination and the parameters of the server. Raises ConfigError."""
        serving = config.spec.serving
        problems = list(_problems(serving))
        if problems:
            raise ConfigError(problems)
        return parse_archive_parameters(config).destination, ServerParameters(
            serving.socket,
            topics_pattern(config.spec.topics),
            int(serving.cache),
            int(serving.refresh) / 1000,
            _port_parameters(serving),
        )

    def run(self, settings: tuple[str, ServerParameters], reporter: Reporter) -> Outcome:
        """Serve until a stop is requested. Exit code: 0."""
        destination, parameters = settings
        with map_archive_errors(destination):
            server = asyncio.run(serve(ArchiveServer(storage_of(destination), parameters, reporter.warn), reporter))
        return Outcome(
            EXIT_DONE,
            "Stopped",
            f"stopped; {server.message_count} messages were returned in {server.pull_count} pulls",
            rows=server.message_count,
            facts={"pulls": server.pull_count},
        )


def _problems(serving: Serving) -> Iterator[str]:
    """Yield the problems of the settings, with the remedy."""
    if not serving.socket and not serving.listen:
        yield (
            "serving.socket: missing; set it to the path that brokers have as archiveSocketPath, or set serving.listen"
            " for brokers of other machines"
        )
    if serving.listen:
        try:
            split_address(serving.listen, port_min=0)
        except ValueError as error:
            yield f"serving.listen: {error}"
    if serving.listen and not serving.secret_file:
        yield "serving.secretFile: missing; without it any process that reaches serving.listen could read the archive"
    if bool(serving.tls.certificate_file) != bool(serving.tls.key_file):
        yield "serving.tls: certificateFile and keyFile go together: set both or neither"
    for name, value in (("secretFile", serving.secret_file), ("tls", serving.tls.certificate_file)):
        if value and not serving.listen:
            yield f"serving.{name}: has no effect without serving.listen; set both, or neither"
    if serving.cache < CACHE_BYTES_MIN:
        yield f"serving.cache: {serving.cache} is below the minimum {Size(CACHE_BYTES_MIN)}"
    if serving.refresh < REFRESH_MS_MIN:
        yield f"serving.refresh: {serving.refresh} is below the minimum {Duration(REFRESH_MS_MIN)}"


def _port_parameters(serving: Serving) -> PortParameters | None:
    if not serving.listen:
        return None
    host, port = split_address(serving.listen, port_min=0)
    return PortParameters(
        host or ANYWHERE, port, serving.secret_file, serving.tls.certificate_file, serving.tls.key_file
    )


async def serve(server: ArchiveServer, reporter: Reporter) -> ArchiveServer:
    """Serve until a stop is requested, and return the closed server. Raises JobError if it cannot listen."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    reporter.stop.on_stop(lambda: loop.call_soon_threadsafe(stopped.set))
    try:
        await server.start()
    except OSError as error:
        await server.close()
        raise JobError(
            f"cannot listen: {error}",
            reason="CannotListen",
            remedy="set serving.socket to a path in an existing folder, serving.listen to a free port, and the files of"
            " serving to readable ones",
        ) from error
    reporter.report_step("serving the archive")
    running = asyncio.ensure_future(server.run())
    reporting = asyncio.ensure_future(_report(server, reporter))
    try:
        await asyncio.wait([running, reporting, asyncio.ensure_future(stopped.wait())], return_when="FIRST_COMPLETED")
    finally:
        for task in (running, reporting):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await server.close()
    return server


async def _report(server: ArchiveServer, reporter: Reporter) -> None:
    """Report progress every second, and whether the archive can be read: then brokers of a cluster may connect."""
    reported = -1
    while True:
        reporter.set_hindered(not server.is_current)
        if server.message_count == reported or not server.is_available:
            reporter.mark_alive()
        else:
            reported = server.message_count
            reporter.report_progress(rows=reported)
        await asyncio.sleep(1)
