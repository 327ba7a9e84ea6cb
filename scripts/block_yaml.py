"""YAML in which texts of several lines are blocks, so that a reviewer can read them in a generated file."""

from __future__ import annotations

from typing import Any, final

import yaml


@final
class _BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and equal parts in full."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts in full: not every reader of YAML supports aliases."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _represent_text)


def block_yaml(document: Any) -> str:
    """Return a document as YAML, with its keys in their order."""
    text: str = yaml.dump(document, Dumper=_BlockDumper, sort_keys=False, width=120)
    return text
