"""Which processes get the token of a group from `gantry bundle` and `gantry console`.

Their token is sent to sidecars of this group on this machine only.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from local_group_kit import planned

from gantry_cli.console.http import SidecarUnavailable
from gantry_cli.console.local_groups import LocalSidecars
from gantry_cli.local.records import GroupRecord
from gantry_cli.local.state import GroupState
from gantry_cli.main import cli
from gantry_cli.processes import boot_id_of


class Listener(HTTPServer):
    """A server that answers every request, and records the tokens that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.shown: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_GET(self) -> None:
        self.server.shown.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"packed")

    def do_POST(self) -> None:
        self.server.shown.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"code": "one-time"}')

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, to keep the output of tests clean."""


@pytest.fixture
def listeners() -> Iterator[tuple[Listener, Listener]]:
    made = Listener(), Listener()
    for one in made:
        threading.Thread(target=one.serve_forever, daemon=True).start()
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


def of_one(folder: Path, sidecar: Listener, boot_id: str) -> GroupRecord:
    """Return a group whose first sidecar is recorded as this process, which listens on its port."""
    record = planned(folder, "{}")
    [first, *_] = record.members
    first.sidecar_pid, first.sidecar_boot_id = os.getpid(), boot_id
    first.sidecar_url = f"http://127.0.0.1:{sidecar.server_address[1]}"
    record.console_url = f"{first.sidecar_url}/console/"
    GroupState(folder).write_group(record)
    return record


def packed(folder: Path) -> dict[str, bytes]:
    """Return the contents of the bundle of a group, by file name."""
    target = folder / "b.tar.gz"
    result = CliRunner().invoke(cli, ["bundle", "--data", str(folder), "--to", str(target)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    with tarfile.open(fileobj=io.BytesIO(target.read_bytes())) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name.removeprefix("gantry-bundle/"): file.read() for name, file in files.items() if file is not None}


def test_bundle_contains_no_secret(tmp_path: Path) -> None:
    """A password in a broker's settings or in a log does not leave this machine."""
    GroupState(tmp_path).write_group(planned(tmp_path, "{}"))
    (tmp_path / "lease-0.json").write_text("{}")
    for name, text in (
        ("conf/master-0.conf", "tlsKeyPassword=hunter-two\n"),
        ("logs/up.log", "secretKey: hunter-two\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"listenPort=10911\n{text}")

    found = packed(tmp_path)

    assert b"listenPort=10911" in found["conf/master-0.conf"] and b"listenPort=10911" in found["logs/up.log"]
    assert {"group.json", "lease-0.json"} <= found.keys() and "token" not in found
    assert b"hunter-two" not in b"".join(found.values())


@pytest.mark.verify
def test_token_is_not_sent_to_an_environment_proxy(
    tmp_path: Path, listeners: tuple[Listener, Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`http_proxy` does not apply: sidecars are asked directly."""
    sidecar, proxy = listeners
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    of_one(tmp_path, sidecar, boot_id_of(os.getpid()))

    found = packed(tmp_path)

    assert proxy.shown == []
    assert sidecar.shown == [f"Bearer {GroupState(tmp_path).token()}"]
    assert "sidecars/master-0.tar.gz" in found


def test_token_is_not_sent_to_another_program_on_a_sidecar_port(
    tmp_path: Path, listeners: tuple[Listener, Listener]
) -> None:
    """The supervisor was killed and its record remains, but another program may have the port by now."""
    other_program, _ = listeners
    of_one(tmp_path, other_program, "1-1")

    found = packed(tmp_path)

    assert other_program.shown == [] and "sidecars/master-0.tar.gz" not in found
    assert found["left-out.txt"].startswith(b"sidecar of master-0: ")


@pytest.mark.parametrize("is_gone", [False, True], ids=["our sidecar", "another program"])
def test_console_code_is_requested_only_from_the_groups_sidecar(
    tmp_path: Path, listeners: tuple[Listener, Listener], is_gone: bool
) -> None:
    """After `gantry down` another program may listen on the console's port, and must not get the token."""
    listener, _ = listeners
    record = of_one(tmp_path, listener, "1-1" if is_gone else boot_id_of(os.getpid()))

    result = CliRunner().invoke(cli, ["console", "--data", str(tmp_path)])

    if is_gone:
        assert result.exit_code == 1 and listener.shown == []
    else:
        assert result.output == f"{record.console_url}#code=one-time\n"
        assert listener.shown == [f"Bearer {GroupState(tmp_path).token()}"]


@pytest.mark.parametrize("is_gone", [False, True], ids=["our sidecar", "another program"])
def test_list_of_groups_logs_in_only_at_the_groups_sidecar(
    tmp_path: Path, listeners: tuple[Listener, Listener], is_gone: bool
) -> None:
    """Neither the token nor a session is sent to another program on the port of a sidecar."""
    listener, _ = listeners
    record = of_one(tmp_path, listener, "1-1" if is_gone else boot_id_of(os.getpid()))
    record.members[0].sidecar_port = int(listener.server_address[1])
    GroupState(tmp_path).write_group(record)
    source = LocalSidecars(tmp_path)

    assert source.names() == ["master-0"]
    if is_gone:
        for request in (source.new_access, source.connect):
            with pytest.raises(SidecarUnavailable, match="the sidecar does not run"):
                request("master-0")
        assert listener.shown == []
    else:
        assert source.new_access("master-0") == ("one-time", b"")
        source.connect("master-0").close()
        assert listener.shown == [f"Bearer {GroupState(tmp_path).token()}"]
