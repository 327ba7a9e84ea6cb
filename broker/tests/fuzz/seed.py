"""Seeds: valid requests, which are mutated later; and the random draws that all makers of seeds share."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from fuzz.pools import GROUPS, PROPERTIES, QUEUES, TOPICS, KnownMessages

from gantry_wire import RequestCode
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.fields import Fields

UNIQUE_PROPERTIES: Final = "UNIQ_KEY\x01%032X\x02TAGS\x01%s\x02"
TAGS: Final = ("red", "blue", "green")


@dataclass(slots=True)
class Seed:
    """A request before its mutation. Values of `ext` are strings until a mutation changes their type."""

    code: int
    ext: dict[str, object] = field(default_factory=dict)
    body: bytes = b""
    is_json_body: bool = False
    """Whether the body is a JSON document."""
    is_body_mutated: bool = False
    """Whether the body was mutated already, which is done at most once."""


Maker = Callable[[random.Random, KnownMessages], Seed]


def seed(code: RequestCode, fields: Fields, body: bytes = b"") -> Seed:
    return Seed(code, dict(fields.write()), body)


def document(code: RequestCode, body: msgspec.Struct, ext: dict[str, object] | None = None) -> Seed:
    return Seed(code, ext or {}, write_document(body), is_json_body=True)


def topic(rng: random.Random) -> str:
    return rng.choice(TOPICS)


def group(rng: random.Random) -> str:
    return rng.choice(GROUPS)


def queue_id(rng: random.Random) -> int:
    return rng.randrange(QUEUES)


def properties(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(PROPERTIES)
    return UNIQUE_PROPERTIES % (rng.getrandbits(128), rng.choice(TAGS))


def message_body(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 16, 64, 64, 64, 200, 1000)))
