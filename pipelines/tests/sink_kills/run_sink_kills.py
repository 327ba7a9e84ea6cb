"""`make exactly-once-sink`: kills of driver, workers and brokers.

Exits with 0 if each row is in the topic once, and if enough kills were executed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / folder) for folder in ("broker/tests", "e2e/histories", "pipelines/tests")]

from sink_kills.suite import ALL, Kill, Verdict, running_suite  # noqa: E402 - the path comes first

KILLS_MIN = 20


def main() -> int:
    """Parse the arguments, run the suite, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="rows of one batch (default: 2000)")
    parser.add_argument("--batches", type=int, default=100, help="batches of the stream (default: 100)")
    parser.add_argument("--kills", default="", help=f"WHAT:POINT:COUNT,... (default: all {len(ALL)})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random moments")
    parser.add_argument("--keep", action="store_true", help="keep stores and logs even if no fault is found")
    parser.add_argument("--resume", type=Path, help="continue the interrupted run in this folder")
    arguments = parser.parse_args()
    kills = [_kill(text) for text in arguments.kills.split(",") if text] or ([] if arguments.resume else list(ALL))
    below = ROOT / ".gantry" / "sink-kills"
    below.mkdir(parents=True, exist_ok=True)
    folder = arguments.resume.resolve() if arguments.resume else Path(tempfile.mkdtemp(dir=below))
    verdict = asyncio.run(_run(folder, kills, arguments.rows, arguments.batches, arguments.seed))
    print(f"\n{verdict}")
    for kill in verdict.not_reached:
        print(f"  not reached: {kill}")
    is_enough = len(verdict.kills) >= min(KILLS_MIN, len(kills))
    if not is_enough:
        print("PROVES TOO LITTLE: the program was done before it could be killed so often; give it more batches")
    if verdict.is_good and is_enough and not arguments.keep:
        shutil.rmtree(folder)
    else:
        print(f"stores and logs are in {folder}")
    return 0 if verdict.is_good and is_enough else 1


async def _run(folder: Path, kills: list[Kill], rows: int, batches: int, seed: int) -> Verdict:
    async with running_suite(folder, rows_each=rows, seed=seed) as suite:
        return await suite.run(kills, batches)


def _kill(text: str) -> Kill:
    what, point, *count = text.split(":")
    return Kill(what, point, int(count[0]) if count else 1)


if __name__ == "__main__":
    sys.exit(main())
