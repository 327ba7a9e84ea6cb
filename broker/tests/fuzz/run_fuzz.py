"""The fuzz run: mutated frames by the million against a real broker and a real name server.

Exit code 0 when both still serve, memory is flat, every queue is dense and no file is out of place; 1 with findings,
and for each server that has some with the command that repeats the first one.
"""

import asyncio
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.processes import HOST, broker, name_server
from fuzz.campaign import Campaign
from fuzz.checks_after_run import gaps, moved_ends, stray_files
from fuzz.probe import BrokerProbe, NameServerProbe
from fuzz.report import report
from fuzz.tally import Tally

from gantry_testing.ports import free_broker_port, free_port
from gantry_wire import RequestCode

MIB: Final = 1 << 20
RUNS: Final = Path(__file__).resolve().parents[3] / ".gantry"
WARM_UP_SHARE: Final = 0.25
"""The share of the frames after which memory is measured for the first time."""
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(64 * MIB),
    "mappedFileSizeConsumeQueue": str(20 * 20_000),
    "maxMessageSize": str(256 * 1024),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "messageDelayLevel": "1s 2s 3s 4s 5s",
    "defaultTopicQueueNums": "4",
}
"""Small files, so that they roll, and delays that end within the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a fuzz run."""

    frames: int
    seed: int
    name_server_share: float = 0.15
    """The share of the frames that the name server gets; the broker gets the rest."""

    growth_max_mib: float = 32.0
    """The allowed growth of anonymous memory after the first quarter of the frames."""

    sessions: dict[str, list[int]] = field(default_factory=dict)
    """Replay only these sessions, by server."""

    @property
    def is_replay(self) -> bool:
        return bool(self.sessions)


class FuzzRun:
    """Both servers, the sessions against each, and the checks after them."""

    def __init__(self, options: Options, directory: Path) -> None:
        self._options = options
        self._directory = directory
        name_server_port, port = free_port(), free_broker_port()
        fast_port = port - 2
        self._broker_address = f"{HOST}:{port}"
        self._name_server = name_server(directory, name_server_port)
        settings = {**SETTINGS, "fastListenPort": str(fast_port)}
        self._broker = broker(directory, port, name_server_port, settings)
        probe = BrokerProbe(self._broker_address)
        self._campaigns = [
            Campaign(self._broker, [port] * 9 + [fast_port], probe, seed=options.seed, report_progress=click.echo),
            Campaign(
                self._name_server, [name_server_port], NameServerProbe(f"{HOST}:{name_server_port}"),
                seed=options.seed, report_progress=click.echo,
            ),
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<FuzzRun seed={self._options.seed} {self._campaigns}>"

    @property
    def tallies(self) -> list[Tally]:
        return [campaign.tally for campaign in self._campaigns]

    async def run(self) -> list[Tally]:
        """Run everything, and leave no process behind."""
        try:
            await self._name_server.start()
            await self._broker.start()
            for campaign in self._campaigns:
                await campaign.find_handled_codes()
            if self._options.is_replay:
                for campaign in self._campaigns:
                    await campaign.replay(self._options.sessions.get(campaign.tally.target, []))
            else:
                await self._measure()
            if not self._broker_tally.findings:
                await self._check_files_and_restart()
        finally:
            await self._broker.kill()
            await self._name_server.kill()
        return self.tallies

    @property
    def _broker_tally(self) -> Tally:
        return self._campaigns[0].tally

    async def _measure(self) -> None:
        """Warm up, measure, continue, and measure again: memory must not have grown with the frames."""
        shares = (1 - self._options.name_server_share, self._options.name_server_share)
        for campaign, server, share in zip(self._campaigns, (self._broker, self._name_server), shares, strict=True):
            frames = int(self._options.frames * share)
            await campaign.run(int(frames * WARM_UP_SHARE))
            if campaign.tally.findings:
                continue
            before = server.anonymous_bytes()
            await campaign.run(frames - campaign.tally.frames)
            if not server.is_running:
                continue
            grown = (server.anonymous_bytes() - before) / MIB
            click.echo(
                f"{server.name}: {before / MIB:.1f} MiB anonymous after warm-up, "
                f"{grown:+.1f} MiB in the {1 - WARM_UP_SHARE:.0%} of the frames after it"
            )
            if grown > self._options.growth_max_mib:
                campaign.tally.find(None, f"memory grew by {grown:.1f} MiB, allowed are {self._options.growth_max_mib}")
            if not campaign.tally.findings:
                self._check_coverage(campaign.tally)

    def _check_coverage(self, tally: Tally) -> None:
        """Report a run whose frames did not reach the handlers."""
        if tally.handled * 2 < tally.frames:
            tally.find(None, f"only {tally.handled} of {tally.frames} frames reached a handler")
        missing = {int(code) for code in RequestCode} - tally.codes_parsed
        if missing:
            tally.find(None, f"request codes of which no frame parsed: {sorted(missing)}")

    async def _check_files_and_restart(self) -> None:
        """Stop cleanly, read the log, start again, and compare."""
        tally = self._broker_tally
        code = await self._broker.stop()
        if code != 0:
            tally.find(None, f"a clean stop ended with code {code}\n{self._broker.tail()}")
        ends, faults = gaps(self._directory / "store", tally.deleted_topics)
        await self._broker.start()
        faults += await moved_ends(self._broker_address, ends)
        faults += [f"a file is out of place: {path}" for path in stray_files(
            self._directory, (self._broker, self._name_server))]  # fmt: skip
        for fault in faults:
            tally.find(None, fault)
        click.echo(
            f"broker: restarted; {sum(ends.values()):,} messages in {len(ends)} queues"
            + (", all dense, no file out of place" if not faults else "")
        )


def replay_command(options: Options, tally: Tally) -> str:
    """Return the command that reproduces the first finding."""
    numbers = [finding.session for finding in tally.findings if finding.session is not None]
    base = f".venv/bin/python broker/tests/fuzz/run_fuzz.py --seed {options.seed}"
    if not numbers:
        return f"{base} --frames {options.frames}"
    return f"{base} --only {tally.target}:{max(0, min(numbers) - 30)}-{min(numbers)}"


def fuzz(options: Options, directory: Path) -> list[Tally]:
    """Run the fuzzer once in `directory`."""
    return asyncio.run(FuzzRun(options, directory).run())


def parse_only(text: str | None) -> dict[str, list[int]]:
    """Return the sessions by server for `broker:7` or `nameserver:3-9`. Raises click.BadParameter."""
    if text is None:
        return {}
    target, _, numbers = text.partition(":")
    first, dash, last = numbers.partition("-")
    if target not in ("broker", "nameserver") or not first.isdigit() or bool(dash) != last.isdigit():
        raise click.BadParameter(f"{text!r}: write broker:NUMBER or nameserver:FIRST-LAST", param_hint="--only")
    return {target: list(range(int(first), int(last or first) + 1))}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--frames", default=2_000_000, show_default=True, help="Mutated frames to send in all.")
@click.option("--seed", type=int, help="Repeat the frames of an earlier run; by default a new seed is drawn.")
@click.option("--only", metavar="SERVER:FIRST[-LAST]", help="Replay single sessions, as in the command of a finding.")
@click.option(
    "--growth-max-mib", default=32.0, show_default=True, help="Allowed growth of anonymous memory after warm-up."
)
@click.option("--keep", is_flag=True, help="Keep the store and the logs even when nothing was found.")
def main(frames: int, seed: int | None, only: str | None, growth_max_mib: float, keep: bool) -> None:
    """Send mutated frames to a broker and a name server, and check that both still serve.

    Starts its own servers on free ports of 127.0.0.1 with a store below .gantry. 85 % of the frames go to the
    broker, the rest to the name server. Every request code is among them; most frames parse and reach a
    handler, and every answer that is due is waited for. Checked: probes between the sessions work, the logs hold no
    traceback, anonymous memory stays flat after a quarter of the frames, no file appears outside the store, and after a
    restart every queue is dense.

    \b
    Examples:
      .venv/bin/python broker/tests/fuzz/run_fuzz.py
      .venv/bin/python broker/tests/fuzz/run_fuzz.py --frames 50000 --seed 7
      .venv/bin/python broker/tests/fuzz/run_fuzz.py --seed 7 --only broker:120-150
    """
    sessions = parse_only(only)
    options = Options(
        frames=frames,
        seed=random.randrange(1 << 32) if seed is None else seed,
        growth_max_mib=growth_max_mib,
        sessions=sessions,
    )
    click.echo(f"seed {options.seed}")
    began_at = time.monotonic()
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="fuzz-", dir=RUNS))
    tallies = fuzz(options, directory)
    report(tallies, time.monotonic() - began_at)
    found = [tally for tally in tallies if tally.findings]
    for tally in found:
        click.echo(f"replay: {replay_command(options, tally)}")
    if found or keep:
        click.echo(f"store and logs: {directory}")
    else:
        shutil.rmtree(directory)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
