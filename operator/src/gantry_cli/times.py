"""Where to begin reading, as people say it: `earliest`, `latest`, `10m` ago, or a moment."""

import datetime
import re
from dataclasses import dataclass
from typing import Final

_AGO: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
HELP: Final = "earliest, latest, an age (10m, 2h, 1d) or a local time (2025-01-31T12:00)"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: at one end (`timestamp_ms` is None), or at a store time."""

    is_latest: bool = False
    timestamp_ms: int | None = None


def parse_start(text: str, now_ms: int) -> Start:
    """What `text` means at `now_ms`. Raises ValueError that says what can be written."""
    wanted = text.strip().lower()
    if wanted in ("earliest", "latest"):
        return Start(is_latest=wanted == "latest")
    ago = _AGO.fullmatch(wanted)
    if ago is not None:
        return Start(timestamp_ms=max(0, now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000))
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no place to begin: write {HELP}") from None
    return Start(timestamp_ms=max(0, int(moment.astimezone().timestamp() * 1000)))
