"""`gantry pipeline serve`: return archived messages to brokers. Needs no Spark."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, final

from gantry_pipelines.archive.job_errors import map_archive_errors
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.serving.server import ArchiveServer, ServerParameters
from gantry_pipelines.archive.settings import parse_archive_parameters
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_DONE, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.source_options import topics_pattern
from gantry_spec.manifest.parts import Part
from gantry_spec.manifest.quantities import Duration, Size
from gantry_spec.pipelines.kinds import ArchiveSpec

CACHE_BYTES_MIN: Final = 1 << 20
REFRESH_MS_MIN: Final = 100


@final
class Serving(Part, frozen=True):
    """The settings of the server of an archive."""

    socket: str = ""
    """The path of the Unix socket to listen at, which brokers have as `archiveSocketPath`."""

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
        if not serving.socket:
            raise ConfigError(["serving.socket: missing; set it to the path that brokers have as archiveSocketPath"])
        if serving.cache < CACHE_BYTES_MIN:
            raise ConfigError([f"serving.cache: {serving.cache} is below the minimum {Size(CACHE_BYTES_MIN)}"])
        if serving.refresh < REFRESH_MS_MIN:
            raise ConfigError([f"serving.refresh: {serving.refresh} is below the minimum {Duration(REFRESH_MS_MIN)}"])
        return parse_archive_parameters(config).destination, ServerParameters(
            serving.socket, topics_pattern(config.spec.topics), int(serving.cache), int(serving.refresh) / 1000
        )

    def run(self, settings: tuple[str, ServerParameters], reporter: Reporter) -> Outcome:
        """Serve until a stop is requested. Exit code: 0."""
        destination, parameters = settings
        with map_archive_errors(destination):
            server = asyncio.run(_serve(ArchiveServer(storage_of(destination), parameters, reporter.warn), reporter))
        return Outcome(
            EXIT_DONE,
            "Stopped",
            f"stopped; {server.message_count} messages were returned in {server.pull_count} pulls",
            rows=server.message_count,
            facts={"pulls": server.pull_count},
        )


async def _serve(server: ArchiveServer, reporter: Reporter) -> ArchiveServer:
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
            remedy="set serving.socket to a path in an existing folder",
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
    reported = 0
    while True:
        await asyncio.sleep(1)
        if server.message_count == reported:
            reporter.mark_alive()
        else:
            reported = server.message_count
            reporter.report_progress(rows=reported)
