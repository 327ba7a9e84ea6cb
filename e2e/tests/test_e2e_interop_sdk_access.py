"""RocketMQ's Python SDK with an account through Gantry's proxy: both kinds of access control at the brokers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_interop import sdk_programs
from proxy_clusters import access_settings, file_cluster, stored_cluster

from gantry_testing.accounts import signed_dialogue
from gantry_testing.ports import free_port
from gantry_wire.commands.admin import CreateTopic
from gantry_wire.fastjson import dumps

SUFFIX = "_acl"
CLIENTS = """\
accounts:
  - accessKey: sdk-allowed
    secretKey: allowed-secret
    topicPerms: [sdk-normal_acl=PUB|SUB]
    groupPerms: [sdk-normal_acl=SUB]
  - accessKey: sdk-denied
    secretKey: denied-secret
    topicPerms: [another=PUB|SUB]
    groupPerms: [another=SUB]
"""
MESSAGES = 5
RUN_SECONDS_MAX = 400.0


@asynccontextmanager
async def proxy_process(folder: Path, name_server: str) -> AsyncIterator[int]:
    """Run Gantry's proxy as a process with the accounts of clients and its own; yield its port."""
    conf, port = folder / "proxy.yaml", free_port()
    listen = {"address": f"127.0.0.1:{port}", "httpAddress": ""}
    access = access_settings(folder, CLIENTS)
    conf.write_text(json.dumps({"nameServers": [name_server], "listen": listen, "access": access}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gantry_proxy", "--config", conf,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            assert b"proxy listening" in await process.stdout.readline()
        yield port
    finally:
        process.kill()
        await process.wait()


async def run_flow(port: int, key: str, secret: str) -> dict[str, Any]:
    """Run the SDK's program with an account; return the verdict of its flow."""
    command = await asyncio.to_thread(sdk_programs.command, "python", Path.cwd())
    options = [f"127.0.0.1:{port}", SUFFIX, f"normal:{MESSAGES}", "--access-key", key, "--secret-key", secret]
    process = await asyncio.create_subprocess_exec(
        *command, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    [line] = [line for line in output.decode().splitlines() if line.startswith("{")]
    verdict: dict[str, Any] = json.loads(line)
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [file_cluster, stored_cluster])
async def test_python_sdk_does_what_its_account_may(tmp_path: Path, cluster: Any) -> None:
    """The permitted account sends and consumes everything; one without permission, and one with a wrong secret, send
    nothing that is stored."""
    topic = CreateTopic(
        topic=f"sdk-normal{SUFFIX}", default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=6,
        topic_filter_type="SINGLE_TAG", order=False, attributes="+message.type=NORMAL",
    )  # fmt: skip
    async with cluster(tmp_path) as (address, broker, administrator), signed_dialogue(broker, administrator) as admin:
        assert (await admin.ask(17, topic.write())).code == 0
        assert (await admin.ask(200, body=dumps({"groupName": f"sdk-normal{SUFFIX}"}))).code == 0
        async with proxy_process(tmp_path, address) as port:
            allowed = await run_flow(port, "sdk-allowed", "allowed-secret")
            before = [broker.core.readable_range(topic.topic, queue_id) for queue_id in range(2)]
            refused = [
                await run_flow(port, "sdk-denied", "denied-secret"),
                await run_flow(port, "sdk-allowed", "another-secret"),
            ]
            after = [broker.core.readable_range(topic.topic, queue_id) for queue_id in range(2)]

    assert (allowed["ok"], allowed["received"]) == (True, MESSAGES)
    assert [verdict["ok"] for verdict in refused] == [False, False]
    assert after == before
