"""Take the screenshots of the console in the documents: wide and dark, narrow and light.

Without `--url` the script starts a group, a master with two slaves, and puts load on it. With `--url` it uses a console
that is already running, for example that of a local group. A screenshot that is too large for a repository is an error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from console_browser import Scheme, browser, page_at
from console_scene import Load, body_of, console_group, store_dead_letters
from playwright.sync_api import Browser

ROOT: Final = Path(__file__).resolve().parent.parent
BYTES_MAX: Final = 300 * 1024
"""The largest screenshot that may be in the repository."""

PICTURES: Final[tuple[tuple[str, str, Scheme], ...]] = (
    ("console.png", "wide", "dark"),
    ("console-narrow.png", "narrow", "light"),
)
"""The name of each file, the width of the page and its theme."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="scripts/screenshot", description=__doc__)
    made.add_argument("--url", help="URL of a running console, with its token after the #")
    made.add_argument("--folder", type=Path, default=ROOT / "docs/images", help="folder of the screenshots")
    made.add_argument("--seconds", type=float, default=65.0, help="seconds to wait before a screenshot [default: 65]")
    made.add_argument(
        "--per-second", type=int, default=400, help="messages per second for the started group [default: 400]"
    )
    return made


def take(started: Browser, url: str, folder: Path, load_s: float) -> None:
    """Take all screenshots of one console, which all pages have open at the same time."""
    with ExitStack() as stack:
        pages = [
            (name, size, stack.enter_context(page_at(started, url, size=size, scheme=scheme)))
            for name, size, scheme in PICTURES
        ]
        pages[0][2].wait_for_timeout(load_s * 1000)
        for name, size, page in pages:
            page.wait_for_selector(".tile.good, .tile.warn")
            path = folder / name
            path.write_bytes(page.screenshot(full_page=size == "wide"))
            length = path.stat().st_size
            print(f"{path}: {length / 1024:.0f} KiB")
            if length > BYTES_MAX:
                sys.exit(f"screenshot: {path} has {length} bytes; the limit is {BYTES_MAX}")


def main() -> None:
    options = parser().parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        url = options.url
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gantry-screenshot-")))
            group = stack.enter_context(console_group(folder, members=3))
            store_dead_letters(group.name_server, "billing", [body_of(number) for number in range(4)])
            stack.enter_context(Load(group.name_server, per_second=options.per_second))
            url = group.console
        take(stack.enter_context(browser()), url, options.folder, options.seconds)


if __name__ == "__main__":
    main()
