"""An application that sends and receives through gRPC proxies as the SDKs of RocketMQ 5 do, and judges what arrives.

    python -m gantry_histories.proxied --endpoint HOST:PORT --topic T --group G     topic and group must exist

Every client has a connection of its own, a Telemetry stream that it opens again when it ends, and the retries of an
SDK: three attempts of a send, at once. Messages are sent at a fixed rate, regardless of the outcome of earlier ones.

It writes and reads JSON lines like `in_pod`, but only these:

    writes  {"acknowledged": N}               when the first messages are acknowledged
    reads   {"report": MORE}                  wait for MORE further acknowledgements
    writes  {"acknowledged": N, "failures": N, "failed": ["..."], "pause": SECONDS}     since the report before
    reads   {"finish": []}                    stop, and receive until every acknowledged message has arrived
    writes  {"sent": N, "acknowledged": N, "received": N, "copies": N, "failures": N, "failed": {"CALL CODE": N},
            "refusals": {"CALL CODE": N}, "findings": [...]}

A failure is a send that failed in each attempt. Refusals are failed attempts of all calls, by call and code.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, final

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from gantry_histories.bodies import make_body, read_key
from gantry_histories.in_pod import FINDINGS_MAX, FIRST_ACKNOWLEDGEMENTS, TIMEOUT_S, open_line_reader
from gantry_histories.steady import SENDS_PER_S, print_document
from gantry_proxy.protocol import rocketmq_pb2 as pb

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
PRODUCERS: Final = 4
CONSUMERS: Final = 2
ATTEMPTS_MAX: Final = 3
"""How often an SDK tries a send; the default of proxies."""

REQUEST_TIMEOUT_S: Final = 3.0
"""How long an SDK waits for a reply; its default."""

POLL_S: Final = 5
"""The time of a long poll, the shortest that proxies have."""

INVISIBLE_S: Final = 15
RECONNECT_S: Final = 0.5
"""The pause before a stream or a receive that has failed is tried again."""

ARRIVAL_SECONDS_MAX: Final = 120.0
"""The limit for acknowledged messages to arrive: several invisible times."""
PADDING: Final = b"x" * 200

Metadata = tuple[tuple[str, str], ...]
"""Headers of a call."""


class CallFailed(Exception):
    """A call failed in each attempt."""


@final
class SdkClient:
    """One client of the proxies, with a connection of its own. Owned by one loop."""

    def __init__(
        self, endpoint: str, client_id: str, settings: pb.Settings, tls: tuple[bytes, str] | None,
        refusals: Counter[str], sign: Callable[[], Metadata] = lambda: (),
    ) -> None:  # fmt: skip
        """``tls`` is the authority and the name that the certificate must have, or None for plain text.

        ``sign`` returns the headers with which each call proves its account; without it there are none.
        """
        self._client_id: Final = client_id
        self._sign: Final = sign
        self._settings: Final = settings
        self._refusals: Final = refusals
        self._is_registered: Final = asyncio.Event()
        options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
        if tls is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options)
        else:
            authority, name = tls
            options += [("grpc.ssl_target_name_override", name)] if name else []
            self._channel = grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(authority), options)

    async def close(self) -> None:
        """Close the connection; running calls fail."""
        await self._channel.close()

    async def wait_registered(self) -> None:
        """Wait until a proxy has accepted the client's settings."""
        await self._is_registered.wait()

    async def keep_registered(self) -> None:
        """Keep the Telemetry stream open, until cancelled."""
        while True:
            stream = self._method("Telemetry", "stream_stream")(metadata=self._metadata())
            try:
                await stream.write(pb.TelemetryCommand(settings=self._settings))
                while (reply := await stream.read()) is not grpc.aio.EOF:
                    if reply.HasField("settings"):
                        self._is_registered.set()
            except grpc.aio.AioRpcError as error:
                self._refusals[f"Telemetry {error.code().name}"] += 1
            except asyncio.InvalidStateError:  # a write to a stream that has just ended
                self._refusals["Telemetry ended"] += 1
            await asyncio.sleep(RECONNECT_S)

    async def call(self, name: str, request: Any) -> Any:
        """Return the reply of a call, which is repeated as SDKs repeat it. Raises ``CallFailed``."""
        reason = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                reply = await self._method(name, "unary_unary")(
                    request, metadata=self._metadata(), timeout=REQUEST_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                reason = f"{name} {error.code().name}"
            else:
                if reply.status.code == pb.OK:
                    return reply
                reason = f"{name} {pb.Code.Name(reply.status.code)}"
            self._refusals[reason] += 1
        raise CallFailed(reason)

    async def receive(self, request: pb.ReceiveMessageRequest) -> list[pb.Message]:
        """Return the messages of one long poll; none if the call fails."""
        found: list[pb.Message] = []
        call = self._method("ReceiveMessage", "unary_stream")(
            request, metadata=self._metadata(), timeout=POLL_S + REQUEST_TIMEOUT_S
        )
        code = "OK"
        try:
            async for reply in call:
                if reply.HasField("message"):
                    found.append(reply.message)
                elif reply.HasField("status") and reply.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                    code = pb.Code.Name(reply.status.code)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        if code != "OK":
            self._refusals[f"ReceiveMessage {code}"] += 1
            await asyncio.sleep(RECONNECT_S)
        return found

    def _metadata(self) -> Metadata:
        return (("x-mq-client-id", self._client_id), *self._sign())

    def _method(self, name: str, kind: str) -> Any:
        method = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
        request, reply = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
        return getattr(self._channel, kind)(
            f"/{SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )


@final
class ProxiedApplication:
    """Sends at a fixed rate and receives everything. Owned by one loop."""

    def __init__(self, endpoint: str, topic: str, group: str, tls: tuple[bytes, str] | None) -> None:
        host, _, port = endpoint.rpartition(":")
        address = pb.Address(host=host, port=int(port))
        self._endpoints: Final = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[address])
        self._topic: Final = pb.Resource(name=topic)
        self._group: Final = pb.Resource(name=group)
        self._run: Final = f"{time.time_ns():x}"
        """Distinguishes the messages of this run from older ones of the topic."""

        self.refusals: Final[Counter[str]] = Counter()
        self.sent: Final[set[str]] = set()
        self.acknowledged: Final[dict[str, float]] = {}
        """When each acknowledgement arrived, in seconds of the monotonic clock."""

        self.received: Final[Counter[str]] = Counter()
        self.corrupt = 0
        self.failed: Final[list[str]] = []
        self.is_first_poll_over: Final = asyncio.Event()
        """Whether a receive has ended, so that the group exists at every queue: it begins with their ends."""

        self._changed: Final = asyncio.Condition()
        clients = (
            *(("producer", self._producer_settings()) for _ in range(PRODUCERS)),
            *(("consumer", self._consumer_settings()) for _ in range(CONSUMERS)),
        )
        self.clients: Final = [
            SdkClient(endpoint, f"{kind}-{number}-{self._run}", settings, tls, self.refusals)
            for number, (kind, settings) in enumerate(clients)
        ]

    def _producer_settings(self) -> pb.Settings:
        return pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[self._topic]))

    def _consumer_settings(self) -> pb.Settings:
        entry = pb.SubscriptionEntry(topic=self._topic, expression=pb.FilterExpression(expression="*"))
        subscription = pb.Subscription(group=self._group, subscriptions=[entry])
        return pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)

    # -- sending -------------------------------------------------------------------------------------------------------

    async def send_forever(self, stop: asyncio.Event) -> None:
        """Send at a fixed rate until ``stop`` is set."""
        async with asyncio.TaskGroup() as sends:
            for number in itertools.count():
                if stop.is_set():
                    return
                sends.create_task(self._send(number))
                await asyncio.sleep(1 / SENDS_PER_S)

    async def _send(self, number: int) -> None:
        key = f"{self._run}-{number}"
        self.sent.add(key)
        system = pb.SystemProperties(message_id=key, body_encoding=pb.IDENTITY, message_type=pb.NORMAL)
        message = pb.Message(topic=self._topic, body=make_body(key, PADDING), system_properties=system)
        try:
            await self.clients[number % PRODUCERS].call("SendMessage", pb.SendMessageRequest(messages=[message]))
        except CallFailed as error:
            self.failed.append(str(error))
            return
        self.acknowledged[key] = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    async def wait_acknowledged(self, count: int) -> None:
        """Wait until so many sends are acknowledged. Raises TimeoutError."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.acknowledged) >= count)

    def longest_pause(self, since_s: float) -> float:
        """Return the longest time between two acknowledgements since a time of the monotonic clock."""
        times = sorted(at for at in self.acknowledged.values() if at >= since_s)
        return round(max((after - before for before, after in itertools.pairwise(times)), default=0.0), 2)

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def receive_forever(self, client: SdkClient) -> None:
        """Receive and acknowledge messages until cancelled."""
        await client.wait_registered()
        while True:
            try:
                reply = await client.call(
                    "QueryAssignment",
                    pb.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints),
                )
            except CallFailed:
                await asyncio.sleep(RECONNECT_S)
                continue
            for assignment in reply.assignments:
                await self._receive_once(client, assignment.message_queue)
            self.is_first_poll_over.set()

    async def _receive_once(self, client: SdkClient, queue: pb.MessageQueue) -> None:
        request = pb.ReceiveMessageRequest(
            group=self._group, message_queue=queue, batch_size=32, invisible_duration=Duration(seconds=INVISIBLE_S),
            long_polling_timeout=Duration(seconds=POLL_S),
        )  # fmt: skip
        messages = await client.receive(request)
        if not messages:
            return
        for message in messages:
            self._note(message)
        entries = [
            pb.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in messages
        ]
        with suppress(CallFailed):  # what is not acknowledged is received again
            await client.call("AckMessage", pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries))
        async with self._changed:
            self._changed.notify_all()

    def _note(self, message: pb.Message) -> None:
        key = read_key(message.body)
        if key is None:
            self.corrupt += 1
        elif key.startswith(f"{self._run}-"):
            self.received[key] += 1

    async def wait_received(self) -> None:
        """Wait until every acknowledged message was received, or the limit is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_SECONDS_MAX), self._changed:
                await self._changed.wait_for(lambda: self.acknowledged.keys() <= self.received.keys())

    def findings(self) -> list[str]:
        """Return the violations of what is guaranteed."""
        return judge(self.sent, self.acknowledged, self.received, self.corrupt)


def judge(sent: Collection[str], acknowledged: Collection[str], received: Collection[str], corrupt: int) -> list[str]:
    """Return a finding for each message that is lost, that was never sent, or whose body has changed.

    A message may arrive several times, and one whose send failed may arrive or not.
    """
    found = [f"acknowledged and never received: {key}" for key in sorted(set(acknowledged) - set(received))]
    found += [f"received and never sent: {key}" for key in sorted(set(received) - set(sent))]
    return found + ([f"{corrupt} bodies have changed"] if corrupt else [])


@asynccontextmanager
async def running(application: ProxiedApplication) -> AsyncIterator[None]:
    """Keep all clients registered and the consumers receiving during the context."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.keep_registered()) for client in application.clients]
        tasks += [group.create_task(application.receive_forever(one)) for one in application.clients[PRODUCERS:]]
        try:
            for client in application.clients:
                await client.wait_registered()
            await application.is_first_poll_over.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
    for client in application.clients:
        await client.close()


async def serve_requests(application: ProxiedApplication, lines: asyncio.StreamReader) -> None:
    """Answer requests for reports, until one to finish."""
    since_s, failures = time.monotonic(), 0
    while line := await lines.readline():
        match json.loads(line):
            case {"report": int(more)}:
                await application.wait_acknowledged(len(application.acknowledged) + more)
                print_document(
                    acknowledged=len(application.acknowledged), failures=len(application.failed) - failures,
                    failed=application.failed[failures:][:FINDINGS_MAX], pause=application.longest_pause(since_s),
                )  # fmt: skip
                since_s, failures = time.monotonic(), len(application.failed)
            case {"finish": _}:
                return
            case other:
                raise SystemExit(f"unknown request {other}; expected report or finish")


async def run_application(arguments: argparse.Namespace) -> None:
    """Run the application until its input has the request to finish."""
    tls = None if arguments.tls_ca is None else (arguments.tls_ca.read_bytes(), arguments.tls_name)
    application = ProxiedApplication(arguments.endpoint, arguments.topic, arguments.group, tls)
    stop, lines = asyncio.Event(), await open_line_reader(sys.stdin)
    async with running(application):
        sending = asyncio.create_task(application.send_forever(stop))
        await application.wait_acknowledged(FIRST_ACKNOWLEDGEMENTS)
        print_document(acknowledged=len(application.acknowledged))
        await serve_requests(application, lines)
        stop.set()
        await sending
        await application.wait_received()
    received = application.received
    print_document(
        sent=len(application.sent), acknowledged=len(application.acknowledged), received=len(received),
        copies=received.total(), failures=len(application.failed), failed=dict(Counter(application.failed)),
        refusals=dict(application.refusals),
        findings=application.findings()[:FINDINGS_MAX],
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Parse the arguments and run the application."""
    parser = argparse.ArgumentParser(prog="gantry_histories.proxied")
    parser.add_argument("--endpoint", required=True, help="the address of the proxies, host:port")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True, help="a consumer group that has no other members")
    parser.add_argument("--tls-ca", type=Path, help="use TLS, with certificates that this authority has signed")
    parser.add_argument("--tls-name", default="", help="the name in the certificate, if it is not that of the endpoint")
    asyncio.run(run_application(parser.parse_args(words)))


if __name__ == "__main__":
    main()
