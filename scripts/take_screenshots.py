"""Take the screenshots of the console in the documents, each of one view, wide or narrow, dark or light.

Without `--url` the script starts a group, a master with two slaves, and puts load on it. With `--url` it uses a console
that is already running, for example that of a local group. A screenshot that is too large for a repository is an error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from console_browser import Scheme, browser, page_at
from console_scene import Load, body_of, console_group, store_dead_letters
from playwright.sync_api import Browser, Page

ROOT: Final = Path(__file__).resolve().parent.parent
BYTES_MAX: Final = 300 * 1024
"""The largest screenshot that may be in the repository."""


class Picture(NamedTuple):
    """One screenshot of the documents: its file, and the page that it shows."""

    name: str
    size: str
    scheme: Scheme
    view: str
    """The address of the view, after the ``#/``."""
    element: str
    """The element that is present when the view has its data."""
    is_full_page: bool = False


PICTURES: Final = (
    Picture("console.png", "wide", "dark", "overview", ".tile.good, .tile.warn", is_full_page=True),
    Picture("console-narrow.png", "narrow", "light", "overview", ".tile.good, .tile.warn"),
    Picture("console-messages.png", "wide", "light", "messages?topic=orders", ".message"),
    Picture("console-search.png", "wide", "dark", "search?topic=orders&text=SKU-0042", ".message"),
    Picture("console-groups.png", "wide", "light", "groups?group=warehouse", ".lag-charts path"),
    Picture("console-message.png", "wide", "dark", "", '[data-step="group-billing"]', is_full_page=True),
    Picture("console-message-narrow.png", "narrow", "light", "", '[data-step="group-billing"]'),
)
"""All screenshots. Those without a view show a message that has become a dead letter."""

LETTER: Final = "messages?topic=billing-input"
"""The view with the messages of which one is shown."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="scripts/screenshots", description=__doc__)
    made.add_argument("--url", help="URL of a running console, with its token after the #")
    made.add_argument("--folder", type=Path, default=ROOT / "docs/images", help="folder of the screenshots")
    made.add_argument("--seconds", type=float, default=65.0, help="seconds to wait before a screenshot [default: 65]")
    made.add_argument(
        "--per-second", type=int, default=400, help="messages per second for the started group [default: 400]"
    )
    return made


def take(started: Browser, url: str, folder: Path, load_s: float) -> None:
    """Take all screenshots of one console. The overviews are open during the load, since their charts begin then."""
    with ExitStack() as stack:
        overviews = {
            picture.name: stack.enter_context(page_at(started, url, size=picture.size, scheme=picture.scheme))
            for picture in PICTURES
            if picture.view == "overview"
        }
        next(iter(overviews.values())).wait_for_timeout(load_s * 1000)
        for picture in PICTURES:
            if picture.name in overviews:
                save(picture, overviews[picture.name], folder)
                continue
            with page_at(started, url, size=picture.size, scheme=picture.scheme) as page:
                save(picture, page, folder)


def save(picture: Picture, page: Page, folder: Path) -> None:
    """Go to the view of a picture, and write the picture to its file as soon as the view has its data."""
    page.evaluate("(view) => { location.hash = `/${view}`; }", picture.view or LETTER)
    if not picture.view:
        page.get_by_role("link", name="Open message").first.click()
    page.wait_for_selector(picture.element)
    path = folder / picture.name
    path.write_bytes(page.screenshot(full_page=picture.is_full_page))
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
