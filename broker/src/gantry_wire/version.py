"""The version of Gantry, which every status page, sidecar and command reports.

The module is in the lowest layer, so that every package can import it. The version is a constant, because a look-up in
pip's metadata takes a tenth of a broker's start time, and fails in a copy that was not installed. A test compares it
with pyproject.toml.
"""

from typing import Final

VERSION: Final = "0.1.0"
