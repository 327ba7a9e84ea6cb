"""Captured frames of Java clients as seeds, the valid requests that are mutated."""

import copy
from functools import lru_cache
from pathlib import Path
from typing import Final

from fuzz.seed import Seed

from gantry_wire.command import decode_command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.fastjson import loads
from gantry_wire.frame import FrameReader

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"


@lru_cache(maxsize=1)
def golden_seeds() -> dict[int, list[Seed]]:
    """Return the requests among the captured frames by request code; empty when nothing was captured."""
    seeds: dict[int, list[Seed]] = {}
    for path in sorted(GOLDEN.glob("**/*.bin")):
        reader = FrameReader()
        try:
            commands = [decode_command(frame) for frame in reader.feed(path.read_bytes())]
        except RemoteProtocolError:
            continue
        for command in commands:
            if not command.is_reply:
                seed = Seed(command.code, dict(command.ext), command.body, is_json_body=_is_json(command.body))
                seeds.setdefault(command.code, []).append(seed)
    return seeds


def copy_of(seed: Seed) -> Seed:
    """Return a copy of a seed that may be mutated."""
    return copy.deepcopy(seed)


def _is_json(body: bytes) -> bool:
    try:
        return isinstance(loads(body), dict)
    except ValueError:
        return False
