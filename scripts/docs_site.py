"""Gather the pages of the built site: `make docs` calls this, then mkdocs.

The site is made of the same files that people read in the repository. They are copied with their folders into a
separate folder, so that relative links stay valid; a linked file that is no page (a test, a picture) is copied as well.
The navigation is made from docs/README.md: each `##` heading is a group, each page is where it is linked first.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

LINK: Final = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
"""A link to a file of the repository: its title, path and fragment."""

PAGES: Final = ("*.md", "docs/**/*.md", "broker/*.md", "broker/docs/**/*.md")
"""The files that are pages of the site."""

MAP: Final = "docs/README.md"
"""The page whose headings and links determine the navigation."""

CONFIGURATION: Final = "docs/site.yml"
"""The configuration of mkdocs, without the navigation."""

FILE_BYTES_MAX: Final = 1 << 20
"""The largest linked file that is copied into the site."""


class SiteError(Exception):
    """A page cannot be published; the text names it."""


def pages_of(root: Path) -> list[Path]:
    """Return the pages, relative to the root."""
    return sorted({path.relative_to(root) for pattern in PAGES for path in root.glob(pattern)})


def targets_of(root: Path, page: Path) -> Iterator[Path]:
    """Yield the files to which a page links, relative to the root. Raises SiteError for a dead link."""
    for match in LINK.finditer((root / page).read_text(encoding="utf-8")):
        target = (root / page.parent / match[2]).resolve()
        if not target.exists() or not target.is_relative_to(root.resolve()):
            raise SiteError(f"{page}: the link {match[2]} has no target in the repository")
        yield target.relative_to(root.resolve())


def navigation_of(root: Path) -> list[dict[str, list[dict[str, str]]]]:
    """Read the groups of pages and their titles from the map. Raises SiteError for a page in docs/ without a link."""
    groups: list[dict[str, list[dict[str, str]]]] = []
    named: set[str] = set()
    for line in (root / MAP).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            groups.append({line.removeprefix("## ").strip(): []})
            continue
        for title, link, _ in LINK.findall(line):
            page = (root / "docs" / link).resolve().relative_to(root.resolve()).as_posix()
            if groups and page.endswith(".md") and page not in named:
                named.add(page)
                next(iter(groups[-1].values())).append({title[:1].upper() + title[1:]: page})
    missing = [page.as_posix() for page in pages_of(root) if page.parts[0] == "docs" and page.as_posix() not in named]
    if missing := [page for page in missing if page != MAP]:
        raise SiteError(f"{MAP} has no link below a heading to {', '.join(missing)}")
    return groups


def gather(root: Path, site_folder: Path) -> None:
    """Delete a folder, and copy pages, what they link to, and the configuration with its navigation into it."""
    shutil.rmtree(site_folder, ignore_errors=True)
    pages = pages_of(root)
    wanted = {*pages, *(target for page in pages for target in targets_of(root, page))}
    for path in sorted(wanted):
        if (root / path).is_file():
            if (size := (root / path).stat().st_size) > FILE_BYTES_MAX:
                raise SiteError(f"{path} has {size} bytes, at most {FILE_BYTES_MAX} are published")
            (site_folder / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, site_folder / "pages" / path)
    configuration = yaml.safe_load((root / CONFIGURATION).read_text(encoding="utf-8"))
    configuration |= {"docs_dir": "pages", "site_dir": "site"}
    configuration["nav"] = [{"Gantry": "README.md"}, *navigation_of(root)]
    (site_folder / "mkdocs.yml").write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")


def main() -> int:
    """Gather the pages into the folder that is the only argument."""
    try:
        gather(Path(__file__).resolve().parent.parent, Path(sys.argv[1]))
    except SiteError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
