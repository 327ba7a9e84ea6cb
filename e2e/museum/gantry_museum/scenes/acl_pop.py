"""Nothing is popped with access control: broker and proxy require accounts, and an SDK's calls go through the proxy.

    gRPC calls, signed by an account -> proxy -> signed requests of the proxy -> broker, which stores the accounts

The calls are those of a simple consumer: settings on a Telemetry stream, QueryAssignment, ReceiveMessage. One receive
comes before the sends, so that the group begins at the ends of the queues.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, final

import grpc
from gantry_interop import apache_servers, proxy_accounts
from gantry_interop.admin import guarded
from gantry_interop.processes import wait_until
from google.protobuf.duration_pb2 import Duration

from gantry_access import Credentials
from gantry_museum.exhibit import RELEASES, Exhibit, Outcome, Stage, System, Thread
from gantry_museum.servers import CLUSTER, READY_SECONDS_MAX, plan_broker, start_name_server
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_testing.ports import free_port_run

TOPIC: Final = proxy_accounts.ALLOWED
GROUP: Final = "museum-group"
ACCOUNT: Final = Credentials("museum-user", "secret-of-the-museum")
SENDS: Final = 10
POLLS_MAX: Final = 24
"""How many long polls are made for the messages; each takes up to `POLL_S`."""
POLL_S: Final = 5
CALL_S: Final = 15.0
SERVICE: Final = "apache.rocketmq.v2.MessagingService"


def run(stage: Stage) -> Outcome:
    """Send and receive through the proxy with an account that may do both."""
    names = start_name_server(stage)
    kind = "gantry" if stage.system not in RELEASES else f"apache-{RELEASES[stage.system]}"
    account_settings = guarded.settings(kind, stage.directory / "accounts")
    broker = plan_broker(stage, names.address, account_settings)
    broker.launch()
    administration = proxy_accounts.Administration(names.address, broker.address)
    wait_until("the broker", lambda: _creates_topics(administration), READY_SECONDS_MAX)
    rules = {f"Topic:{TOPIC}": ["Pub", "Sub"]} | ({} if stage.is_twin else {f"Group:{GROUP}": ["Sub"]})
    administration.create_user(ACCOUNT, rules)
    client = SdkClient(_start_proxy(stage, names.address))
    wait_until("the account", lambda: client.send(b"first") == "OK", READY_SECONDS_MAX)
    client.receive()
    sent = Counter(client.send(b"%d" % number) for number in range(SENDS))
    assert sent == Counter({"OK": SENDS}), sent
    received: set[bytes] = set()
    for _ in range(POLLS_MAX):
        received |= client.receive()
        if len(received - {b"first"}) == SENDS:
            break
    refusals = ", ".join(f"{count} times {text}" for text, count in client.refusals.most_common(3))
    return Outcome(
        len(received - {b"first"}) < SENDS,
        (
            f"{SENDS} of {SENDS} messages were sent through the proxy, and {len(received - {b'first'})} received.",
            *([f"Other answers: {refusals}."] if refusals else []),
        ),
    )


def _start_proxy(stage: Stage, name_server: str) -> str:
    """Start the system's own proxy, which reads accounts from the broker, and return its endpoints."""
    place, own = stage.directory / "proxy", proxy_accounts.ADMINISTRATOR
    place.mkdir(parents=True, exist_ok=True)
    if stage.system in RELEASES:
        inner = json.dumps({"accessKey": own.access_key, "secretKey": own.secret_key})
        settings = {**guarded.proxy_settings(), "innerClientAuthenticationCredentials": inner}
        return apache_servers.start_proxy(
            stage.nursery, RELEASES[stage.system], name_server, CLUSTER, place, settings
        ).grpc
    credentials, conf, port = place / "own.yml", place / "proxy.yaml", free_port_run(2)
    credentials.write_text(f"accessKey: {own.access_key}\nsecretKey: {own.secret_key}\n")
    document = {
        "nameServers": [name_server],
        "listen": {"address": f"127.0.0.1:{port}", "httpAddress": f"127.0.0.1:{port + 1}"},
        "access": {"accountsSource": "brokers", "credentialsFile": str(credentials)},
    }
    conf.write_text(json.dumps(document))
    child = stage.nursery.start("proxy", [sys.executable, "-m", "gantry_proxy", "--config", str(conf)], os.environ)
    wait_until("the proxy", lambda: apache_servers.is_listening(port), READY_SECONDS_MAX, child)
    return f"127.0.0.1:{port}"


def _creates_topics(administration: proxy_accounts.Administration) -> bool:
    with suppress(Exception):
        administration.create_topics()
        return True
    return False


@final
class SdkClient:
    """A producer and simple consumer that signs its calls. Its Telemetry stream stays open."""

    def __init__(self, endpoints: str) -> None:
        host, _, port = endpoints.rpartition(":")
        self._endpoints: Final = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host=host, port=int(port))])
        self._channel: Final = grpc.insecure_channel(endpoints)
        self._topic: Final = pb.Resource(name=TOPIC)
        self._group: Final = pb.Resource(name=GROUP)
        self._stream: Any = None
        self.refusals: Final[Counter[str]] = Counter()
        """What receives were answered instead of messages."""

    def send(self, body: bytes) -> str:
        """Send a message, and return the code of the answer."""
        system = pb.SystemProperties(
            message_id=f"01{uuid.uuid4().hex[:32].upper()}", body_encoding=pb.IDENTITY, message_type=pb.NORMAL
        )
        message = pb.Message(topic=self._topic, body=body, system_properties=system)
        try:
            reply = self._call("SendMessage", "unary_unary", pb.SendMessageRequest(messages=[message]))
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(pb.Code.Name(reply.status.code))

    def receive(self) -> set[bytes]:
        """Return the bodies of the messages of one long poll of each assigned queue."""
        found: set[bytes] = set()
        try:
            self._register()
            request = pb.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints)
            reply = self._call("QueryAssignment", "unary_unary", request)
            if reply.status.code != pb.OK:
                self.refusals[f"QueryAssignment {pb.Code.Name(reply.status.code)}"] += 1
            for assignment in reply.assignments:
                found |= self._receive_from(assignment.message_queue)
        except grpc.RpcError as error:
            self.refusals[f"{error.code().name} ({error.details()})"] += 1
            self._stream = None
        return found

    def _receive_from(self, target: pb.MessageQueue) -> set[bytes]:
        request = pb.ReceiveMessageRequest(
            group=self._group, message_queue=target, batch_size=32, invisible_duration=Duration(seconds=60),
            long_polling_timeout=Duration(seconds=POLL_S),
        )  # fmt: skip
        found: set[bytes] = set()
        for reply in self._call("ReceiveMessage", "unary_stream", request):
            if reply.HasField("message"):
                found.add(reply.message.body)
            elif reply.HasField("status") and reply.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                self.refusals[f"{pb.Code.Name(reply.status.code)} ({reply.status.message[:120]})"] += 1
        return found

    def _register(self) -> None:
        """Open the Telemetry stream with the settings of a consumer, once, and wait for the proxy's answer."""
        if self._stream is not None:
            return
        entry = pb.SubscriptionEntry(topic=self._topic, expression=pb.FilterExpression(expression="*"))
        settings = pb.Settings(
            client_type=pb.SIMPLE_CONSUMER, subscription=pb.Subscription(group=self._group, subscriptions=[entry])
        )
        self._stream = self._method("Telemetry", "stream_stream")(
            _keep_open(pb.TelemetryCommand(settings=settings)), metadata=proxy_accounts.signed_headers(ACCOUNT)
        )
        for reply in self._stream:
            if reply.HasField("settings"):
                return

    def _call(self, name: str, kind: str, request: Any) -> Any:
        return self._method(name, kind)(request, metadata=proxy_accounts.signed_headers(ACCOUNT), timeout=CALL_S)

    def _method(self, name: str, kind: str) -> Any:
        method = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
        request, reply = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
        return getattr(self._channel, kind)(
            f"/{SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )


def _keep_open(first: pb.TelemetryCommand) -> Iterator[pb.TelemetryCommand]:
    """Yield the first command of a stream, and never end it. gRPC reads it in a thread that it ends itself."""
    yield first
    threading.Event().wait()


EXHIBIT: Final = Exhibit(
    name="acl-pop",
    title="Nothing is popped with access control",
    threads=(Thread("apache/rocketmq", (9518,)),),
    reported="""\
With access control (ACL 2.0) in the proxy and in the broker, clients could send, and consumers never got a message;
client, proxy and broker logged no error. The proxy leaves the time of the request to the broker. The broker set it in
the fields of the request, after the access control had already decoded them, so each request looked too old.""",
    scenario=f"""\
Broker and proxy require accounts, which the broker stores. An account that may send to the topic, and consume with the
group, sends {SENDS} messages through the proxy and receives. The failure occurs if not all of them arrive.""",
    run=run,
    systems=(System.APACHE, System.PREVIOUS, System.GANTRY, System.TWIN),
    twin="does not allow the account to consume",
)
