"""The sidecar beside a broker that has an IPv6 address, and at one of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from admin_scene import READ_TOKEN, broker_process, sidecar_process, write_token_files

from gantry_testing.local import TOPIC, Dialogue, properties_text


@pytest.mark.verify
def test_sidecar_works_over_ipv6(tmp_path: Path) -> None:
    """It finds its broker by the page, listens on an address in brackets, and shows hosts correctly."""
    tokens, store = write_token_files(tmp_path), tmp_path / "store"
    with (
        broker_process(store, bindAddress="::1", brokerIP1="::1") as broker,
        sidecar_process(store, *tokens, "--log-listen", "[::1]:0", listen="[::1]:0") as sidecar,
    ):
        asyncio.run(send(broker.address.replace("127.0.0.1", "[::1]"), b"hello"))
        sidecar.wait_ready()
        topics = sidecar.get("/v1/topics", token=READ_TOKEN)
        shown = sidecar.get(f"/v1/queues/{TOPIC}/0/messages", token=READ_TOKEN)
        assert shown.status_code == 200, shown.text
        (message,) = shown.json()["messages"]
        by_id = sidecar.get(f"/v1/messages?id={message['offset_message_id']}", token=READ_TOKEN)
        by_key = sidecar.get(f"/v1/messages?topic={TOPIC}&key=order-1", token=READ_TOKEN)
        log = sidecar.get("/v1/log/bytes", token=READ_TOKEN, at_log_port=True, Range="bytes=0-7")

        assert sidecar.address.startswith("[::1]:") and sidecar.log_address.startswith("[::1]:")
        assert topics.status_code == 200 and TOPIC in topics.text
        assert message["body"]["shown"] == "hello"
        assert message["born_host"].startswith("[::1]:") and message["store_host"].startswith("[::1]:")
        assert len(message["offset_message_id"]) == 56
        assert (by_id.json()["source"], by_id.json()["messages"]) == ("disk", [message])
        assert (by_key.json()["source"], by_key.json()["messages"]) == ("broker", [message])
        assert log.status_code == 206 and len(log.content) == 8


async def send(address: str, body: bytes) -> None:
    one = await Dialogue.open(address)
    await one.send_ok(body, properties=properties_text(KEYS="order-1"))
    await one.close()
