"""The pages of the built documentation: every page has a group in the navigation, and every link leads to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_site import SiteError, gather, navigation_of, pages_of, targets_of

from gantry_testing.tree import ROOT


def make_site(root: Path, page: str = "[Start](start.md)") -> None:
    """Write the smallest tree that can be published."""
    (root / "docs").mkdir()
    (root / "docs" / "README.md").write_text(f"# Map\n\n## Quick start\n\n| begin | {page} |\n")
    (root / "docs" / "start.md").write_text("# Start\n\n[code](../tool.py)\n")
    (root / "docs" / "site.yml").write_text("site_name: Gantry\n")
    (root / "README.md").write_text("# Gantry\n")
    (root / "tool.py").write_text("")


def test_every_page_has_a_group_and_every_link_a_target() -> None:
    """The map in docs/README.md is the navigation, in four groups; no link of any page is dead."""
    groups = [next(iter(group)) for group in navigation_of(ROOT)]

    assert groups == ["Quick start", "How-to", "Reference", "Concepts"]
    for page in pages_of(ROOT):
        assert all((ROOT / target).exists() for target in targets_of(ROOT, page))


def test_site_is_gathered_with_what_its_links_need(tmp_path: Path) -> None:
    """Pages keep their folders, a linked file comes along, and the configuration has the navigation."""
    make_site(tmp_path)
    gather(tmp_path, tmp_path / "site")

    pages = tmp_path / "site" / "pages"
    assert sorted(path.relative_to(pages).as_posix() for path in pages.rglob("*") if path.is_file()) == [
        "README.md", "docs/README.md", "docs/start.md", "tool.py",
    ]  # fmt: skip
    assert "docs/start.md" in (tmp_path / "site" / "mkdocs.yml").read_text()


def test_page_without_a_group_and_dead_link_are_refused(tmp_path: Path) -> None:
    """Both errors name the page."""
    make_site(tmp_path, page="nothing")
    with pytest.raises(SiteError, match=r"has no link below a heading to docs/start\.md"):
        navigation_of(tmp_path)
    (tmp_path / "tool.py").unlink()
    with pytest.raises(SiteError, match=r"docs/start\.md: the link \.\./tool\.py has no target in the repository"):
        gather(tmp_path, tmp_path / "site")
