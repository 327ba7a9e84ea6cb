"""Mutation of a request's body: as a document, as a batch, or as plain bytes.

Changes of a JSON document affect its structure and its numbers, and replace whole names: a name with one letter changed
would be a new, legal name, and a broker that gets requests for ever more topics legitimately grows.
"""

import random
import re
import struct
from typing import Final

from fuzz.pools import ILLEGAL_NAMES, LEGAL_NAMES, NUMBERS
from fuzz.seed import Seed

from gantry_wire import RequestCode
from gantry_wire.fastjson import dumps

LENGTHS: Final = (0, 1, 21, 22, 23, 100, 32767, 65535, 0x7FFFFFFF, -1, -22, -0x80000000)
"""Wrong lengths of a message in a batch and of its body; 22 is the smallest size of a message."""
STRUCTURE: Final = b'{}[]:,"'
"""Bytes of a JSON document that are exchanged for each other."""
_NUMBER: Final = re.compile(rb"(?<=:)-?\d+|(?<=:)(?:true|false)")
_TEXT: Final = re.compile(rb'(?<=:)"[^"\\]*"')
_KEY: Final = re.compile(rb'"(\w+)":')
MESSAGE_LIMIT_BODY: Final = bytes(300 * 1024)
"""Longer than the suite's broker takes for one message."""


def mutated_body(rng: random.Random, seed: Seed) -> bytes:
    """Return a mutated body for this request."""
    body = seed.body
    draw = rng.random()
    if draw < 0.06:
        return b""
    if draw < 0.12:
        return body[: rng.randrange(len(body))]
    if draw < 0.14:
        return rng.randbytes(rng.choice((1, 20, 500)))
    if draw < 0.142:
        return MESSAGE_LIMIT_BODY
    if seed.is_json_body:
        return _mutate_document(rng, body)
    if seed.code == RequestCode.SEND_BATCH_MESSAGE:
        return _mutate_batch(rng, body)
    changed = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _mutate_batch(rng: random.Random, body: bytes) -> bytes:
    """Change the batch, mostly its lengths: of the message, of its body, of its properties."""
    changed = bytearray(body)
    first_bytes = struct.unpack_from(">i", body)[0]
    body_bytes = struct.unpack_from(">i", body, 16)[0]
    draw = rng.random()
    if draw < 0.3:
        struct.pack_into(">i", changed, 0, rng.choice((*LENGTHS, first_bytes + 1, first_bytes - 1)))
    elif draw < 0.6:
        struct.pack_into(">i", changed, 16, rng.choice((*LENGTHS, body_bytes + 1, body_bytes - 1)))
    elif draw < 0.8:
        struct.pack_into(">h", changed, 20 + body_bytes, rng.choice((0, 1, -1, 32767, -32768)))
    elif draw < 0.9:
        return body * rng.choice((2, 10))
    else:
        return body + rng.randbytes(rng.randrange(1, 30))
    return bytes(changed)


def _mutate_document(rng: random.Random, body: bytes) -> bytes:
    draw = rng.random()
    if draw < 0.2:
        return _replace(rng, body, _NUMBER, rng.choice(NUMBERS).encode())
    if draw < 0.4:
        name = rng.choice(ILLEGAL_NAMES if rng.random() < 0.8 else LEGAL_NAMES)
        return _replace(rng, body, _TEXT, dumps(name))
    if draw < 0.5:
        other = rng.choice((b"null", b"[]", b"{}", b"[[]]", b'{"a":{}}', b"1e999", b'"\\ud800"', b"7", b"{{}:1}"))
        return _replace(rng, body, _TEXT if rng.random() < 0.5 else _NUMBER, other)
    if draw < 0.6:
        return _KEY.sub(rb"\1:", body)
    if draw < 0.65:
        return body.replace(b'"', b"'")
    if draw < 0.7:
        return _replace(rng, body, _KEY, rng.choice((b'"":', b"0:", b'"x":', b"{}:", b'{"a":1}:', b":")))
    if draw < 0.8:
        depth = rng.choice((10, 63, 65, 1000, 100_000))
        opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{{", b"}:1}"), (b"[{", b"}]")))
        nested = opening * depth + b"1" + closing * depth
        return _replace(rng, body, _NUMBER, nested) if rng.random() < 0.5 else nested
    if draw < 0.85:
        return b"\xef\xbb\xbf" + body if rng.random() < 0.5 else body.decode().encode("utf-16")
    if draw < 0.9:
        return body + rng.choice((b" ", b"x", b"{}", b"\x00", body))
    positions = [at for at, byte in enumerate(body) if byte in STRUCTURE]
    changed = bytearray(body)
    changed[rng.choice(positions)] = rng.choice(STRUCTURE)
    return bytes(changed)


def _replace(rng: random.Random, body: bytes, pattern: re.Pattern[bytes], by: bytes) -> bytes:
    """Return `body` with one match of `pattern` replaced; without a match, with a space at its end."""
    matches = list(pattern.finditer(body))
    if not matches:
        return body + b" "
    match = rng.choice(matches)
    return body[: match.start()] + by + body[match.end() :]
