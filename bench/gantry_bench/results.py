"""The results file of a run: in `bench/results`, named by the benchmark and the time, or at the path that is requested.

`make bench` requests a path of its own from each program that it runs, because it reads the figures from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

JSON_HELP: Final = "Write the results to this file, and not to bench/results."

json_option = click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False, resolve_path=True), help=JSON_HELP
)
"""The option `--json FILE` of a benchmark's command."""


def write_results(results: msgspec.Struct, started_at: str, *, folder: Path, name: str, json_path: Path | None) -> Path:
    """Write the results and return the file's path."""
    path = json_path or folder / f"{name}-{started_at.replace(':', '').replace('-', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return path


def shown_path(path: Path, root: Path) -> str:
    """Return the path for a message, relative to the repository if it is in it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
