"""Mutation of valid requests: one or two changes of the content, and rarely one of the bytes; all kinds are counted.

    seed -> changes of fields, values and body -> header in JSON or ROCKETMQ form -> now and then, changes of the bytes

Most changes leave a frame that parses, because frames that do not parse test only the parser. Changes that break the
framing itself are last and rare, for they end the connection.
"""

import random
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
from fuzz.golden import copy_of
from fuzz.mutate_body import mutated_body
from fuzz.pools import CLIENTS, DELETABLE_TOPICS, GROUPS, NUMBERS, PROPERTIES, TOPICS, KnownMessages, hostile_text
from fuzz.seed import Seed
from fuzz.seeds import SEED_MAKERS

from gantry_wire import RequestCode
from gantry_wire.codes import LANGUAGE_NAMES
from gantry_wire.errors import LocalProtocolError
from gantry_wire.frame import encode_frame
from gantry_wire.header import Header, encode_binary_header

TEXT_FIELDS: Final = frozenset(
    {"topic", "b", "group", "consumerGroup", "producerGroup", "a", "groupName", "defaultTopic", "c", "originTopic"}
)
PROPERTY_FIELDS: Final = frozenset({"i", "properties"})
# Fields that other versions and clients send, and names that no request has.
COMMON_FIELDS: Final = ("ns", "nsd", "bname", "oway", "lo", "AccessKey", "Signature", "zzz", "topic ", "é", "")
STRUCTURE: Final = b'{}[]:,"0123456789\\'
"""Bytes that are exchanged for each other. No letters: a changed letter would make a new, legal name."""
CAPTURED_SHARE: Final = 0.25
"""The share of seeds that are captured frames of Java clients, for codes that have such frames."""
_json: Final = msgspec.json.Encoder()


class Mutator:
    """Makes mutated frames from seeds. Its random numbers are its only state, so that a session can be replayed."""

    def __init__(self, rng: random.Random, known: KnownMessages, captured: Mapping[int, list[Seed]]) -> None:
        self._rng = rng
        self._known_messages = known
        self._captured = captured
        self.kinds: Counter[str] = Counter()

    def frame(self, code: int, opaque: int) -> bytes:
        """Return one mutated frame for this request code, with `opaque` as the id of the request."""
        rng = self._rng
        if code not in RequestCode.__members__.values():
            return self._unknown_code(code, opaque)
        seed = SEED_MAKERS[RequestCode(code)](rng, self._known_messages)
        if code in self._captured and rng.random() < CAPTURED_SHARE:
            self.kinds["from a captured frame"] += 1
            seed = copy_of(rng.choice(self._captured[code]))
        header: dict[str, object] = {"code": seed.code, "opaque": opaque, "flag": 0, "language": "JAVA", "version": 479}
        for _ in range(1 if rng.random() < 0.7 else 2):
            self._change(seed, header)
        header["extFields"] = seed.ext
        if rng.random() < 0.25 and (data := self._binary_frame(header, seed)) is not None:
            return self._mutate_bytes(data)
        return self._mutate_bytes(encode_frame(self._json_header(header), seed.body, 0))

    def _unknown_code(self, code: int, opaque: int) -> bytes:
        self.kinds["unknown code"] += 1
        header = {"code": code, "opaque": opaque, "flag": 0, "extFields": {"topic": hostile_text(self._rng)}}
        return encode_frame(_json.encode(header), b"", 0)

    # ------- changes of the content

    def _change(self, seed: Seed, header: dict[str, object]) -> None:
        """Make one random change of the content, and count its kind."""
        rng = self._rng
        draw = rng.random()
        if draw < 0.32:
            self._change_harmlessly(seed, header)
        elif draw < 0.60 and seed.ext:
            self._change_value(seed)
        elif draw < 0.66 and seed.ext:
            self.kinds["field missing"] += 1
            del seed.ext[rng.choice(list(seed.ext))]
        elif draw < 0.72 and seed.ext:
            self.kinds["field of another type"] += 1
            seed.ext[rng.choice(list(seed.ext))] = (
                rng.choice((7, -1, 1 << 70, True, 0.5, None))
                if rng.random() < 0.95
                else rng.choice(([], ["a"], {"a": 1}))
            )
        elif draw < 0.90 and seed.body and not seed.is_body_mutated:
            self.kinds["body"] += 1
            seed.body, seed.is_body_mutated = mutated_body(rng, seed), True
        elif 0.90 <= draw < 0.915:
            self._change_header(header)
        elif 0.915 <= draw < 0.935:
            self.kinds["body where none belongs"] += 1
            seed.body = seed.body + rng.randbytes(rng.choice((1, 100))) if not seed.is_json_body else seed.body + b"{}"
        else:
            self._change_harmlessly(seed, header)

    def _change_harmlessly(self, seed: Seed, header: dict[str, object]) -> None:
        """Make a change that a tolerant peer accepts, as other clients and other versions send."""
        rng = self._rng
        self.kinds["benign"] += 1
        draw = rng.random()
        if draw < 0.4:
            seed.ext[rng.choice(COMMON_FIELDS)] = rng.choice(("", "true", "x", "suite-broker", *CLIENTS))
        elif draw < 0.6:
            header["language"] = rng.choice(("CPP", "GO", "RUST", "KLINGON", *LANGUAGE_NAMES.values()))
        elif draw < 0.8:
            header["version"] = rng.choice((0, 1, 395, 401, 435, 479, 493, 2147483647, -1))
        elif draw < 0.9:
            seed.ext = dict(rng.sample(list(seed.ext.items()), len(seed.ext)))
        else:
            header["remark"] = rng.choice(("", "hello", "é" * 50, "\x00"))

    def _change_value(self, seed: Seed) -> None:
        rng = self._rng
        name = rng.choice(list(seed.ext))
        if name in PROPERTY_FIELDS:
            self.kinds["properties"] += 1
            seed.ext[name] = rng.choice(PROPERTIES)
        elif name in TEXT_FIELDS and rng.random() < 0.3:
            self.kinds["another name"] += 1
            is_deletion = seed.code == RequestCode.DELETE_TOPIC_IN_BROKER
            seed.ext[name] = rng.choice(DELETABLE_TOPICS if is_deletion else (*TOPICS, *GROUPS))
        elif name not in TEXT_FIELDS and rng.random() < 0.5:
            self.kinds["number"] += 1
            seed.ext[name] = rng.choice(NUMBERS)
        else:
            self.kinds["hostile text"] += 1
            seed.ext[name] = hostile_text(rng)

    def _change_header(self, header: dict[str, object]) -> None:
        """Change the header's own keys."""
        rng = self._rng
        self.kinds["header"] += 1
        name = rng.choice(("flag", "flag", "opaque", "version", "language", "remark", "serializeTypeCurrentRPC", "x"))
        if name == "flag":
            header["flag"] = rng.choice((0, 1, 2, 3, 2, 4, -1, 1 << 31, "2", None))
        elif name == "opaque":
            header["opaque"] = rng.choice((0, -1, 2147483647, -2147483648, 1 << 31, "70000001", None, 1.5))
        else:
            header[name] = rng.choice((None, 0, -1, "", "ROCKETMQ", True, [], 1 << 40))

    # ------- encoding

    def _json_header(self, header: dict[str, object]) -> bytes:
        """Return the header as plain JSON, or now and then in forms that Java's library accepts or refuses."""
        data = _json.encode({name: value for name, value in header.items() if name != "x"})
        draw = self._rng.random()
        if draw < 0.97:
            return data
        self.kinds["another JSON"] += 1
        if draw < 0.975:
            return data.replace(b'"code"', b"code", 1).replace(b'"flag"', b"'flag'", 1)
        if draw < 0.98:
            return b" \n" + data.replace(b",", b" ,\t")
        if draw < 0.985:
            return data[:-1] + b',"code":' + str(self._rng.choice((0, -1, 310, 11))).encode() + b"}"
        if draw < 0.99:
            depth = self._rng.choice((40, 40, 5000))
            return data[:-1] + b',"more":' + b"[" * depth + b"]" * depth + b"}"
        if draw < 0.995:
            return (
                data[:-1]
                + b',"more":'
                + self._rng.choice((b'{"a":NaN}', b"1e999", b'"\\ud800"', b"-0", b'"\\u0000"'))
                + b"}"
            )
        extra = b",".join(b'"f%d":"%d"' % (number, number) for number in range(self._rng.choice((200, 1100))))
        return data.replace(b'"extFields":{', b'"extFields":{' + extra + b",", 1).replace(b",}", b"}")

    def _binary_frame(self, header: dict[str, object], seed: Seed) -> bytes | None:
        """Return the frame with a binary header, or None for a number or text that only JSON can carry.

        Fields of another type than text are left out.
        """
        numbers: list[int] = []
        for name, limit in (("code", 1 << 15), ("opaque", 1 << 31), ("flag", 1 << 31), ("version", 1 << 15)):
            value = header[name]
            if type(value) is not int or not -limit <= value < limit:
                return None
            numbers.append(value)
        remark, language = header.get("remark"), header["language"]
        ext = {name: value for name, value in seed.ext.items() if isinstance(value, str)}
        if not isinstance(language, str) or (remark is not None and not isinstance(remark, str)):
            return None
        code, opaque, flag, version = numbers
        made = Header(code=code, opaque=opaque, flag=flag, language=language, version=version, remark=remark, ext=ext)
        try:
            return encode_frame(encode_binary_header(made), seed.body, 1)
        except LocalProtocolError:
            return None

    def _mutate_bytes(self, data: bytes) -> bytes:
        """Rarely make a length or the serialization wrong, change a byte of the header, or return random bytes."""
        rng = self._rng
        draw = rng.random()
        if draw < 0.99:
            return data
        frame = bytearray(data)
        header_end = 8 + (int.from_bytes(data[4:8], "big") & 0xFFFFFF)
        if draw < 0.9975:
            self.kinds["a byte of the header"] += 1
            positions = [at for at in range(8, min(header_end, len(frame))) if frame[at] in STRUCTURE]
            if data[4] == 1:
                positions = [at for at in range(8, min(header_end, len(frame))) if frame[at] < 16]
            if positions:
                frame[rng.choice(positions)] = rng.choice(STRUCTURE) if data[4] == 0 else rng.randrange(256)
            return bytes(frame)
        if draw < 0.9985:
            self.kinds["a wrong header length"] += 1
            length = rng.choice((0, 1, header_end - 9, header_end - 7, header_end + 1, 0x7FFFFF, 0xFFFFFF))
            frame[5:8] = (max(0, length) & 0xFFFFFF).to_bytes(3, "big")
        elif draw < 0.9993:
            self.kinds["a wrong total length"] += 1
            total = len(data) - 4
            wrong = rng.choice(
                (0, 1, 3, 4, total - 1, total + 1, total + 40, 1 << 24, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
            )
            frame[0:4] = struct.pack(">I", wrong)
        elif draw < 0.9997:
            self.kinds["an unknown serialization"] += 1
            frame[4] = rng.choice((1 - frame[4] if frame[4] < 2 else 2, 2, 3, 127, 128, 255))
        else:
            self.kinds["random bytes"] += 1
            return rng.randbytes(rng.choice((1, 4, 8, 100, 5000)))
        return bytes(frame)
