"""Take the pictures of the console that the documents show: wide and dark, narrow and light.

Without `--url` it brings up a group of its own, a master with two slaves, and people who use it; with it, it looks at a
console that runs already, a local group's for instance. A picture that is too large for a repository is refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from console_browser import Scheme, browser, page_at
from console_scene import Load, body_of, bury, console_group
from playwright.sync_api import Browser

ROOT: Final = Path(__file__).resolve().parent.parent
BYTES_MAX: Final = 300 * 1024
PICTURES: Final[tuple[tuple[str, str, Scheme], ...]] = (
    ("console.png", "wide", "dark"),
    ("console-narrow.png", "narrow", "light"),
)


def parser() -> argparse.ArgumentParser:
    """What can be said."""
    made = argparse.ArgumentParser(prog="scripts/screenshot", description=__doc__)
    made.add_argument("--url", help="a console that runs already, with its token behind the #")
    made.add_argument("--folder", type=Path, default=ROOT / "docs/images", help="where the pictures go")
    made.add_argument("--seconds", type=float, default=65.0, help="how long to watch before a picture [default: 65]")
    made.add_argument("--per-second", type=int, default=400, help="messages that our own group gets [default: 400]")
    return made


def take(started: Browser, url: str, folder: Path, watched_s: float) -> None:
    """All pictures of one console, which is watched by all pages at once."""
    with ExitStack() as stack:
        pages = [
            (name, size, stack.enter_context(page_at(started, url, size=size, scheme=scheme)))
            for name, size, scheme in PICTURES
        ]
        pages[0][2].wait_for_timeout(watched_s * 1000)
        for name, size, page in pages:
            page.wait_for_selector(".tile.good, .tile.warn")
            path = folder / name
            path.write_bytes(page.screenshot(full_page=size == "wide"))
            length = path.stat().st_size
            print(f"{path}: {length / 1024:.0f} KiB")
            if length > BYTES_MAX:
                sys.exit(f"screenshot: {path} has {length} bytes; at most {BYTES_MAX} belong into a repository")


def main() -> None:
    options = parser().parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        url = options.url
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gantry-screenshot-")))
            group = stack.enter_context(console_group(folder, members=3))
            bury(group.name_server, "billing", [body_of(number) for number in range(4)])
            stack.enter_context(Load(group.name_server, per_second=options.per_second))
            url = group.console
        take(stack.enter_context(browser()), url, options.folder, options.seconds)


if __name__ == "__main__":
    main()
