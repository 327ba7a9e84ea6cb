"""A model of RocketMQ's broker for administrators, in this process: settings, offsets, tables and statistics.

It keeps settings and committed offsets like RocketMQ, and has the same first offset and end for every queue. Other
requests get the ``bodies`` of the test, or code 3 without one.
"""

from __future__ import annotations

from typing import Final, final

from gantry_remoting import CommandService, Connection, Listener, ListenerSettings
from gantry_wire import Command, RequestCode, fastjson

SETTINGS: Final = {
    "brokerRole": "ASYNC_MASTER", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": "1073741824",
    "brokerClusterName": "c", "brokerName": "broker-a", "brokerIP2": "192.0.2.8", "haListenPort": "10912",
    "maxMessageSize": "4194304", "messageDelayLevel": "1s 5s", "fileReservedTime": "72", "deleteWhen": "04",
    "autoCreateTopicEnable": "true", "autoCreateSubscriptionGroup": "true", "enablePropertyFilter": "true",
    "defaultTopicQueueNums": "8",
    "maxHashSlotNum": "5000000", "maxIndexNum": "20000000", "slaveReadEnable": "false", "brokerPermission": "6",
}  # fmt: skip


@final
class JavaBroker:
    """A broker or name server of RocketMQ with answers from the test; settings are kept as RocketMQ keeps them."""

    def __init__(self, **bodies: bytes) -> None:
        """``bodies`` has the bodies of answers, by the names of request codes."""
        self.settings = dict(SETTINGS)
        self.bodies = {int(RequestCode[name]): body for name, body in bodies.items()}
        self.offsets = {"t@g": {0: 5, 1: 7}}
        """Committed offsets by queue, by the topic and the group."""

        self.queue_ends = (0, 12)
        """The smallest and the next offset of every queue."""

        self.asked: list[Command] = []
        """Every request, in order of arrival."""

        self.ignores_updates = False
        """Whether changes of settings are answered with success and not made."""

        self._listener = Listener(CommandService(self._take), ListenerSettings(host="127.0.0.1"))

    def _take(self, command: Command, connection: Connection) -> Command:
        self.asked.append(command)
        match command.code:
            case RequestCode.GET_BROKER_CONFIG:
                return command.reply(body="".join(f"{k}={v}\n" for k, v in self.settings.items()).encode())
            case RequestCode.UPDATE_BROKER_CONFIG:
                lines = (line.split("=") for line in command.body.decode().splitlines())
                self.settings |= {} if self.ignores_updates else dict(lines)
                return command.reply()
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return command.reply(body=fastjson.dumps({"offsetTable": self.offsets}))
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                ext = command.ext
                queues = self.offsets.setdefault(f"{ext['topic']}@{ext['consumerGroup']}", {})
                queues[int(ext["queueId"])] = int(ext["commitOffset"])
                return command.reply()
            case RequestCode.GET_MIN_OFFSET:
                return command.reply(ext={"offset": str(self.queue_ends[0])})
            case RequestCode.GET_MAX_OFFSET:
                return command.reply(ext={"offset": str(self.queue_ends[1])})
        body = self.bodies.get(command.code)
        return command.reply(3, "not supported") if body is None else command.reply(body=body)

    async def __aenter__(self) -> JavaBroker:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.port}"
