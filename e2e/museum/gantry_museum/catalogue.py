"""The exhibits, in the order of the page."""

from __future__ import annotations

from typing import Final

from gantry_museum.exhibit import Exhibit
from gantry_museum.scenes import failed_flush, power_loss

ALL: Final[tuple[Exhibit, ...]] = (failed_flush.EXHIBIT, power_loss.EXHIBIT)

BY_NAME: Final = {one.name: one for one in ALL}
