"""Measures what idle clients cost a proxy: resident memory and CPU with many open Telemetry streams.

    python bench/grpc/idle_clients.py HOST:PORT PID TOPIC [--clients 2000]

The proxy must run already, with the process id PID, in front of a cluster that has TOPIC. Every client has a connection
of its own. It prints one JSON line.
"""

import argparse
import asyncio
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import grpc.aio

from gantry_proxy.protocol import rocketmq_pb2 as pb

METHOD = "/apache.rocketmq.v2.MessagingService/Telemetry"
REST_S = 10.0
CONCURRENT = 32


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def connect(address: str, topic: str, number: int) -> tuple[Any, Any]:
    """Open one client: its connection and its stream, with settings."""
    options = [("grpc.use_local_subchannel_pool", 1), ("gantry.client", number)]
    channel = grpc.aio.insecure_channel(address, options=options)
    stream: Any = channel.stream_stream(
        METHOD, request_serializer=pb.TelemetryCommand.SerializeToString,
        response_deserializer=pb.TelemetryCommand.FromString,
    )(metadata=(("x-mq-client-id", f"idle-{number}"),))  # fmt: skip
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name=topic)]))
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert (await stream.read()).status.code == pb.OK
    return channel, stream


async def measure(address: str, pid: int, topic: str, clients: int) -> dict[str, float]:
    before, slots, open_clients = resident_bytes(pid), asyncio.Semaphore(CONCURRENT), []

    async def add(number: int) -> None:
        async with slots:
            open_clients.append(await connect(address, topic, number))

    await asyncio.gather(*(add(number) for number in range(clients)))
    memory, cpu, started = resident_bytes(pid) - before, cpu_s(pid), time.monotonic()
    await asyncio.sleep(REST_S)
    share = (cpu_s(pid) - cpu) / (time.monotonic() - started)
    await asyncio.gather(*(channel.close() for channel, _ in open_clients))
    return {"clients": clients, "bytes_per_client": memory // clients, "cpu_share_at_rest": round(share, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("pid", type=int)
    parser.add_argument("topic")
    parser.add_argument("--clients", type=int, default=2000)
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print(json.dumps(asyncio.run(measure(options.address, options.pid, options.topic, options.clients))))


if __name__ == "__main__":
    main()
