"""The protocol: the generated module is up to date, and its numbers are those that SDKs send."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_testing.tree import ROOT

FILES = ("rocketmq_pb2.py", "rocketmq_pb2.pyi")
PACKAGE = Path("gantry_proxy/protocol")


def test_generated_module_is_up_to_date(tmp_path: Path) -> None:
    """`scripts/protos` makes exactly the committed files of rocketmq.proto."""
    subprocess.run([ROOT / "scripts" / "protos", tmp_path], check=True, timeout=300, cwd=ROOT)

    for name in FILES:
        assert (tmp_path / PACKAGE / name).read_text() == (ROOT / "broker/src" / PACKAGE / name).read_text()


def test_service_and_messages_have_the_names_of_rocketmq() -> None:
    """SDKs find methods by these names; another package would be another service."""
    service = pb.DESCRIPTOR.services_by_name["MessagingService"]

    assert service.full_name == "apache.rocketmq.v2.MessagingService"
    assert len(service.methods) == 17
    streams = {method.name for method in service.methods if method.server_streaming}
    assert streams == {"ReceiveMessage", "PullMessage", "Telemetry"}


def test_fields_have_the_numbers_of_rocketmq() -> None:
    """Some bytes that an SDK sends, written out by hand: field 1 is the topic with its name in field 2, 4 the body."""
    message = pb.Message(topic=pb.Resource(name="invoices"), body=b"body")
    entry = pb.AckMessageEntry(message_id="a", receipt_handle="b")

    assert message.SerializeToString() == b"\x0a\x0a\x12\x08invoices\x22\x04body"
    assert entry.SerializeToString() == b"\x0a\x01a\x12\x01b"
    assert pb.Status(code=pb.OK).SerializeToString() == b"\x08\xa0\x9c\x01"
