"""The pools of names and values of the fuzzer, which are small so that the objects that frames create stay bounded.

A broker creates topics, groups, queues and offsets on request, as RocketMQ does. Flat memory can only be required with
few names. Hostile names are almost all illegal; the legal ones among them are a fixed handful.
"""

import random
from dataclasses import dataclass, field
from typing import Final

from gantry_wire.limits import PROPERTIES_BYTES_MAX

ESCAPE_MARK: Final = "gantry-fuzz-escaped"
"""Part of every name that tries to leave the store; a file with it anywhere is a finding."""

TOPICS: Final = ("FuzzPlain", "FuzzTagged", "FuzzOrdered", "FuzzBatch", "FuzzDelayed")
DELETABLE_TOPICS: Final = ("FuzzDoomed-a", "FuzzDoomed-b")
"""Topics that may be deleted at any time."""
GROUPS: Final = ("FuzzGroup-a", "FuzzGroup-b", "FuzzGroup-c")
PROBE_TOPIC: Final = "FuzzProbe"
"""Only the probe sends to this topic."""
QUEUES: Final = 4
CLIENTS: Final = ("127.0.0.1@fuzz-a", "127.0.0.1@fuzz-b")
CLUSTER: Final = "SuiteCluster"
BROKER: Final = "suite-broker"

# Numbers for fields that expect one: ordinary, at the limits of 16, 32 and 64 bits, and in forms that are no numbers.
NUMBERS: Final = (
    "0", "1", "-1", "2", "3", "7", "31", "64", "127", "255", "1000", "-1000", "32767", "32768", "65537",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" + "0" * 40, "9" * 5000,
    "1.5", "1e3", "0x10", "1_000", "+1", " 1", "--1", "NaN", "Infinity", "null", "true", "false", "TRUE", "٣",
)  # fmt: skip

ILLEGAL_NAMES: Final = (
    "", " ", ".", "..", f"../{ESCAPE_MARK}", f"../../{ESCAPE_MARK}", f"..%2f{ESCAPE_MARK}", f"/tmp/{ESCAPE_MARK}",
    f"a/{ESCAPE_MARK}", f"..\\{ESCAPE_MARK}", f"%RETRY%../{ESCAPE_MARK}", f"%DLQ%/../../{ESCAPE_MARK}",
    f"{ESCAPE_MARK}\x00", "\x00", "\x01", "\x02", "a\x01b\x02", "a\nb", "\r\n", "a\tb", "a b", "a.b", "a@b", "a:b",
    "é" * 100, "😀" * 80, "．．／x", "\u202e", "\ufeff", "x" * 128, "x" * 256, "x" * 300, "x" * 5000,
    "%RETRY%" + "x" * 300, "'; DROP TABLE topics; --", '"', "\\", "{}", "[]", "{{}}", "*", "$(id)",
)  # fmt: skip

LEGAL_NAMES: Final = (
    "x" * 127, "|", "%", "-", "_", "%RETRY%", "%DLQ%", "%RETRY%FuzzGroup-a", "%DLQ%FuzzGroup-a", "%RETRY%%RETRY%x",
    "%RETRY%" + "x" * 248, "CON", "nul", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
    "rmq_sys_wheel_timer", "TOOLS_CONSUMER", "CID_RMQ_SYS_x",
)  # fmt: skip

PROPERTIES: Final = (
    "", "\x01", "\x02", "\x01\x02", "A", "A\x01", "A\x01B", "A\x01B\x02", "A\x01B\x01C\x02", "\x01B\x02",
    "A\x01\x02", "A\x01B\x02\x02\x02", "A\x02B\x01", "TAGS\x01red\x02", "TAGS\x01\x02", "KEYS\x01one two three\x02",
    "KEYS\x01" + " ".join(f"k{number}" for number in range(200)) + "\x02", "KEYS\x01   \x02", "WAIT\x01false\x02",
    "WAIT\x01maybe\x02", "DELAY\x010\x02", "DELAY\x01-1\x02", "DELAY\x0199\x02", "DELAY\x01one\x02",
    "DELAY\x01" + "9" * 5000 + "\x02", "DELAY\x01²\x02", "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01short\x02",
    "UNIQ_KEY\x01" + "F" * 32 + "\x02TAGS\x01a\x02", "UNIQ_KEY\x01" + "é" * 32 + "\x02",
    "UNIQ_KEY\x01" + "u" * 5000 + "\x02",
    "UNIQ_KEY\x01" + "F" * 32 + "\x02A\x01B\x01C\x02", "UNIQ_KEY\x01" + "F" * 32 + "\x02\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01FuzzGroup-a\x02", "TRAN_MSG\x01TRUE\x02", "TIMER_DELAY_SEC\x011\x02",
    "TIMER_DELIVER_MS\x01-5\x02", f"REAL_TOPIC\x01../{ESCAPE_MARK}\x02REAL_QID\x01-1\x02",
    "REAL_TOPIC\x01FuzzPlain\x02REAL_QID\x01²\x02", f"RETRY_TOPIC\x01../{ESCAPE_MARK}\x02", "POP_CK\x011 2 3\x02",
    "__CRC32#\x01123\x02", "INNER_MULTI_DISPATCH\x01%LMQ%../x\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
    "MSG_REGION\x01x\x02TRACE_ON\x01x\x02CLUSTER\x01x\x02", "MSG_REGION\x01a\x01b\x02", "\x00\x01\x00\x02",
    "N\x01" + "v" * (PROPERTIES_BYTES_MAX - 3) + "\x02", "N\x01" + "v" * (PROPERTIES_BYTES_MAX - 2) + "\x02",
    "N\x01" + "é" * 16384 + "\x02", "N\x01" + "v" * (PROPERTIES_BYTES_MAX - 60) + "\x02", "😀\x01😀\x02",
)  # fmt: skip

TEXTS: Final = (
    "red", "red || blue", "*", "||", "", "||||", "red||", "\x01", "a > 1", "é", "😀" * 20, "TAG", "SQL92", "JSON",
    "SINGLE_TAG", "MULTI_TAG", "+a=b", "-a", "+=", "=,=,=", "+message.type=FIFO", "UPPER", "lower", "x" * 4000,
)  # fmt: skip


@dataclass(slots=True)
class KnownMessages:
    """Offsets and ids of messages that the probe has stored, so that some frames name existing messages."""

    physical_offsets: list[int] = field(default_factory=lambda: [0])
    message_ids: list[str] = field(default_factory=lambda: ["7F000001000050C30000000000000000"])

    def add(self, physical_offset: int, message_id: str) -> None:
        """Record the offset of one more stored message."""
        self.physical_offsets = [*self.physical_offsets[-31:], physical_offset]
        self.message_ids = [*self.message_ids[-31:], message_id]

    def physical_offset(self, rng: random.Random) -> int:
        """Return an offset where a record starts. It draws once in any case, so that a seed can be replayed."""
        return self.physical_offsets[int(rng.random() * len(self.physical_offsets))]

    def message_id(self, rng: random.Random) -> str:
        return self.message_ids[int(rng.random() * len(self.message_ids))]


def hostile_text(rng: random.Random) -> str:
    """Return a value that no field expects."""
    choice = rng.random()
    if choice < 0.4:
        return rng.choice(NUMBERS)
    if choice < 0.7:
        return rng.choice(ILLEGAL_NAMES)
    return rng.choice(LEGAL_NAMES if choice < 0.8 else TEXTS)
