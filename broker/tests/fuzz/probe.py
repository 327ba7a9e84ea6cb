"""The probe: an ordinary client between the mutated frames, whose messages must be stored, found and unchanged."""

import random
import zlib
from typing import Final, Protocol, final

from fuzz.pools import DELETABLE_TOPICS, PROBE_TOPIC, QUEUES, TOPICS, KnownMessages
from fuzz.seeds import SEED_MAKERS

from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PullMessage
from gantry_wire.commands.send import SendMessageV2, SendResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_record, parse_offset_message_id

TIMEOUT_MS: Final = 120_000


class Probe(Protocol):
    """A check that one server serves ordinary requests."""

    known: KnownMessages

    async def find_fault(self) -> str | None:
        """Return None if the server works, else the fault."""

    async def ask_every_code(self, known: KnownMessages) -> dict[int, int | None]:
        """Return the reply code to one valid request of every code; None without a reply."""


async def ask(address: str, command: Command) -> Command:
    """Send one request on a connection of its own."""
    channel = await Channel.connect(address)
    try:
        return await channel.request(command, TIMEOUT_MS)
    finally:
        await channel.close()


async def ask_every_code(address: str, known: KnownMessages) -> dict[int, int | None]:
    """Return the reply code to one valid request of every request code; None without a reply."""
    replies: dict[int, int | None] = {}
    for code in RequestCode:
        seed = SEED_MAKERS[code](random.Random(int(code)), known)
        ext = {name: str(value) for name, value in seed.ext.items()}
        try:
            replies[code] = (await ask(address, Command(code=code, ext=ext, body=seed.body))).code
        except RemotingError:
            replies[code] = None
    return replies


def _send_fields(topic: str, queues: int, properties: str) -> dict[str, str]:
    """Return a valid send's header: it creates the topic, and takes the fast path from the second one on."""
    fields = SendMessageV2(
        producer_group="FuzzProbeGroup", topic=topic, default_topic="TBW102", default_topic_queue_nums=queues,
        queue_id=0, sys_flag=0, born_timestamp=0, flag=0, properties=properties,
    )  # fmt: skip
    return fields.write()


@final
class BrokerProbe:
    """Sends a message with a checksum and pulls it from the offset in the reply."""

    def __init__(self, address: str) -> None:
        self.known = KnownMessages()
        self._address = address
        self._count = 0

    async def ask_every_code(self, known: KnownMessages) -> dict[int, int | None]:
        for topic in (*TOPICS, *DELETABLE_TOPICS):
            ext = _send_fields(topic, QUEUES, f"UNIQ_KEY\x01{'0' * 32}\x02TAGS\x01red\x02")
            await ask(self._address, Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"first"))
        return await ask_every_code(self._address, known)

    async def find_fault(self) -> str | None:
        self._count += 1
        body = b"probe %d " % self._count + random.Random(self._count).randbytes(100)
        body += b"%08x" % zlib.crc32(body)
        try:
            return await self._round_trip(body)
        except (CannotConnect, RemotingError, RemoteProtocolError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def _round_trip(self, body: bytes) -> str | None:
        ext = _send_fields(PROBE_TOPIC, 1, f"KEYS\x01probe-{self._count}\x02")
        reply = await ask(self._address, Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=body))
        if reply.code == ResponseCode.SYSTEM_BUSY:
            return None
        if reply.code != ResponseCode.SUCCESS:
            return f"a good send got {reply.code}: {reply.remark}"
        sent = SendResult.read(reply.ext)
        self.known.add(parse_offset_message_id(sent.msg_id)[2], sent.msg_id)
        pull = PullMessage(
            consumer_group="FuzzProbeGroup", topic=PROBE_TOPIC, queue_id=0, queue_offset=sent.queue_offset,
            max_msg_nums=1, sys_flag=PULL_SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, sub_version=0,
            subscription="*", expression_type="TAG",
        )  # fmt: skip
        reply = await ask(self._address, Command(code=RequestCode.PULL_MESSAGE, ext=pull.write()))
        if reply.code != ResponseCode.SUCCESS:
            return f"pulling a stored message got {reply.code}: {reply.remark}"
        if decode_record(reply.body).body != body:
            return "the message came back altered"
        return None


@final
class NameServerProbe:
    """Puts a value into a namespace of its own, reads it, and deletes it."""

    def __init__(self, address: str) -> None:
        self.known = KnownMessages()
        self._address = address
        self._count = 0

    async def ask_every_code(self, known: KnownMessages) -> dict[int, int | None]:
        return await ask_every_code(self._address, known)

    async def find_fault(self) -> str | None:
        self._count += 1
        number = str(self._count)
        address = {"namespace": "probe", "key": number}
        try:
            put = Command(code=RequestCode.PUT_KV_CONFIG, ext={**address, "value": number})
            stored = await ask(self._address, put)
            found = await ask(self._address, Command(code=RequestCode.GET_KV_CONFIG, ext=address))
            await ask(self._address, Command(code=RequestCode.DELETE_KV_CONFIG, ext=address))
        except RemotingError as error:
            return f"{type(error).__name__}: {error}"
        if stored.code or found.code or found.ext.get("value") != number:
            return f"a kept value came back as {found.code} {found.ext}, stored with {stored.code} {stored.remark}"
        return None
