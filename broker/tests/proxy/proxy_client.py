"""A whole proxy in this process in front of real servers, and a gRPC client of it, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from gantry_proxy.access import sign
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.proxy import Proxy
from gantry_proxy.service import SERVICE
from gantry_proxy.settings import parse_settings

CALL_TIMEOUT_S = 60.0
SIGNED_AT = "20270115T080000Z"
"""The time that clients sign; the proxies of tests accept every time."""


@asynccontextmanager
async def running_proxy(name_server: str, **more: Mapping[str, Any]) -> AsyncIterator[Proxy]:
    """Run a proxy; ``more`` has concerns of its settings file."""
    access = {"signatureWindowMs": 0, **more.pop("access", {})}
    document = {
        "nameServers": [name_server], "listen": {"address": "127.0.0.1:0", "httpAddress": "", "drainDelayMs": 0},
        "access": access, "limits": {"pollMsMin": 100}, **more,
    }  # fmt: skip
    proxy = Proxy(parse_settings(document))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


class GrpcClient:
    """One SDK client, with or without an account."""

    def __init__(self, proxy: Proxy, client_id: str, account: tuple[str, str] | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{proxy.server.port}")
        self.metadata: tuple[tuple[str, str], ...] = (("x-mq-client-id", client_id),)
        if account is not None:
            key, secret = account
            signed = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature="
            signature = sign(secret.encode(), SIGNED_AT)
            self.metadata += (("x-mq-date-time", SIGNED_AT), ("authorization", signed + signature))

    def method(self, name: str, kind: str = "unary_unary") -> Any:
        found = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
        request, reply = getattr(pb, found.input_type.name), getattr(pb, found.output_type.name)
        return getattr(self.channel, kind)(
            f"/{SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )

    async def call(self, name: str, request: Any) -> Any:
        return await self.method(name)(request, metadata=self.metadata, timeout=CALL_TIMEOUT_S)

    async def stream(self, name: str, request: Any) -> list[Any]:
        """Return all replies of a method with several."""
        call = self.method(name, "unary_stream")(request, metadata=self.metadata, timeout=CALL_TIMEOUT_S)
        return [reply async for reply in call]

    async def telemetry(self, settings: pb.Settings) -> Any:
        """Open the Telemetry stream, and return it after the settings of the proxy have come."""
        stream = self.method("Telemetry", "stream_stream")(metadata=self.metadata)
        await stream.write(pb.TelemetryCommand(settings=settings))
        reply = await stream.read()
        assert reply.status.code == pb.OK
        return stream
