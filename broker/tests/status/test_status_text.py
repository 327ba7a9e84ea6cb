"""Sizes as text for people."""

from __future__ import annotations

import pytest

from gantry_status.text import bytes_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "an unknown number of bytes"),
        (0, "0 B"),
        (1023, "1023 B"),
        (-1536, "-1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 69, "1536.0 EiB"),
    ],
)
def test_size_is_shown_with_a_binary_unit(size: int | None, text: str) -> None:
    """The unit is the largest that leaves a number of at least 1, and an unknown size is never shown as zero."""
    assert bytes_text(size) == text
