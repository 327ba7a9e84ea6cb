"""The certificate that a pod issues for itself: its names, when it is issued again, and a name server that uses it.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from objects_scene import group
from test_pod_servers import Containers, containers, wait_for

from gantry_cli.errors import CliError
from gantry_cli.pod import certificates
from gantry_cli.pod.certificates import IssueSettings, PodCertificate, issue_certificate
from gantry_cli.pod.commands import pod
from gantry_cli.pod.member import NotReadyError
from gantry_operator.objects import derive_authority
from gantry_testing.ports import free_ports

__all__ = ["containers"]

NOW = datetime.now(UTC)


def write_authority(folder: Path, name: str = "orders") -> None:
    """Write the authority of a group, as kubelet mounts it."""
    made = derive_authority(bytes(32), group(name=name), NOW - timedelta(days=100))
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_text(made.certificate)
    (folder / "ca.key").write_text(made.key)


@pytest.fixture
def settings(tmp_path: Path) -> IssueSettings:
    """The settings of a pod with one host name and a file of names."""
    write_authority(tmp_path / "authority")
    (tmp_path / "names").write_text("mq.example.com\n203.0.113.10\n")
    return IssueSettings(
        authority=tmp_path / "authority",
        folder=tmp_path / "certificates",
        hosts=("orders-0.shop.svc", "*.orders-0-master.shop.svc"),
        names_file=tmp_path / "names",
    )


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses of host names, instead of those of a DNS server."""
    known = {"orders-0.shop.svc": ["10.0.0.7"]}
    monkeypatch.setattr(certificates, "resolve", lambda host: known.get(host, []))
    return known


def names_in(folder: Path) -> set[str]:
    """Return the names and addresses of the certificate."""
    certificate = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(one.value) for one in found}


POD = {"POD_NAME": "orders-0-master-0", "POD_IPS": "10.1.0.4,fd00::4"}


# -- issuing -----------------------------------------------------------------------------------------------------------


def test_certificate_has_every_name_of_the_pod(settings: IssueSettings, resolved: dict[str, list[str]]) -> None:
    """Its own names in all spellings with their addresses, the pod's addresses, loopback, and the names of the file."""
    assert issue_certificate(settings, POD, NOW) == []

    assert names_in(settings.folder) == {
        *("orders-0-master-0", "orders-0.shop.svc", "orders-0.shop.svc.cluster.local", "orders-0.shop", "10.0.0.7"),
        *("*.orders-0-master.shop.svc", "*.orders-0-master.shop.svc.cluster.local", "*.orders-0-master.shop"),
        *("10.1.0.4", "fd00::4", "localhost", "127.0.0.1", "::1", "mq.example.com", "203.0.113.10"),
    }


def test_files_are_those_that_servers_read(settings: IssueSettings, resolved: dict[str, list[str]]) -> None:
    """Only the pod's user can read the key, and the authority is beside it."""
    issue_certificate(settings, POD, NOW)

    assert (settings.folder / "tls.key").stat().st_mode & 0o777 == 0o600
    assert (settings.folder / "ca.crt").read_bytes() == (settings.authority / "ca.crt").read_bytes()
    assert not (settings.folder / "ca.key").exists()


def handshake(folder: Path, authority: Path, host: str) -> None:
    """Let a client verify the certificate for a host name. Raises ``ssl.SSLCertVerificationError``."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert ours.version() == "TLSv1.3"


@pytest.mark.parametrize(
    "host", ["orders-0.shop.svc", "10.0.0.7", "fd00::4", "orders-0-master-0.orders-0-master.shop.svc", "mq.example.com"]
)
def test_client_verifies_the_certificate_strictly(
    settings: IssueSettings, resolved: dict[str, list[str]], host: str
) -> None:
    """By every name and address under which a client can reach the pod."""
    issue_certificate(settings, POD, NOW)

    handshake(settings.folder, settings.authority / "ca.crt", host)


@pytest.mark.parametrize(("host", "group_name"), [("orders-1.shop.svc", "orders"), ("orders-0.shop.svc", "bills")])
def test_client_refuses_another_host_and_another_group(
    settings: IssueSettings, resolved: dict[str, list[str]], tmp_path: Path, host: str, group_name: str
) -> None:
    """The twin: a name of another shard, and the same name by the authority of another group."""
    issue_certificate(settings, POD, NOW)
    write_authority(tmp_path / "other", group_name)

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(settings.folder, tmp_path / "other" / "ca.crt", host)


def test_validity_is_within_that_of_the_authority(settings: IssueSettings, resolved: dict[str, list[str]]) -> None:
    """At the end of the authority a certificate is shorter, since a longer one would be refused."""
    end = NOW + timedelta(days=20 * 365 - 110)
    issue_certificate(settings, POD, end)
    late = x509.load_pem_x509_certificate((settings.folder / "tls.crt").read_bytes())
    issue_certificate(settings, POD, NOW)
    ordinary = x509.load_pem_x509_certificate((settings.folder / "tls.crt").read_bytes())

    assert late.not_valid_after_utc - end.replace(microsecond=0) < timedelta(days=11)
    assert ordinary.not_valid_after_utc == NOW.replace(microsecond=0) + timedelta(days=30)
    assert ordinary.not_valid_before_utc == NOW.replace(microsecond=0) - timedelta(hours=1)


def test_host_that_cannot_be_resolved_is_named(settings: IssueSettings, resolved: dict[str, list[str]]) -> None:
    """The certificate is issued without its address, and marked until it is complete."""
    resolved.clear()

    assert issue_certificate(settings, POD, NOW) == ["orders-0.shop.svc"]
    assert "orders-0.shop.svc" in names_in(settings.folder)
    assert (settings.folder / "unresolved").exists()

    resolved["orders-0.shop.svc"] = ["10.0.0.8"]
    assert issue_certificate(settings, POD, NOW) == []
    assert not (settings.folder / "unresolved").exists()


def break_key(folder: Path) -> None:
    """Write something that is not a key."""
    (folder / "ca.key").write_text("no key")


def swap_key(folder: Path) -> None:
    """Write the key of another authority."""
    (folder / "ca.key").write_text(derive_authority(bytes(32), group(name="bills"), NOW).key)


def remove_key(folder: Path) -> None:
    """Remove the key of the authority."""
    (folder / "ca.key").unlink()


@pytest.mark.parametrize("damage", [break_key, swap_key, remove_key])
def test_unusable_authority_is_an_error_that_names_the_folder(
    settings: IssueSettings, damage: Callable[[Path], None]
) -> None:
    """Nothing is written, so servers keep the certificate that they have."""
    damage(settings.authority)

    with pytest.raises(CliError, match=f"cannot use the authority in {settings.authority}"):
        issue_certificate(settings, POD, NOW)
    assert not settings.folder.exists()


def test_command_needs_an_authority() -> None:
    """The message names the option."""
    result = CliRunner().invoke(pod, ["certificate"])

    assert result.exit_code == 2
    assert "--authority" in result.output


# -- when a certificate is issued --------------------------------------------------------------------------------------


class Process:
    """A process that issues a certificate, as far as its caller sees it."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.code

    def kill(self) -> None:
        """End with the signal SIGKILL."""
        self.code = -9


class Scene:
    """A pod whose time and processes are under control."""

    def __init__(self, settings: IssueSettings) -> None:
        self.settings = settings
        self.seconds = 1_000.0
        self.processes: list[Process] = []
        self.start_error: OSError | None = None
        self.certificate = self.restarted()

    def restarted(self) -> PodCertificate:
        """Return the certificate as process 1 of a new container sees it."""
        start: Any = self._start
        return PodCertificate(self.settings, start=start, now=lambda: self.seconds, wall=self._wall)

    def _wall(self) -> float:
        return time.time() + self.seconds - 1_000.0

    def _start(self, words: list[str]) -> Process:
        assert words[:3] == ["gantry_cli", "pod", "certificate"]
        if self.start_error is not None:
            raise self.start_error
        self.processes.append(Process())
        return self.processes[-1]

    def end(self, *, is_issued: bool = True) -> None:
        """End the last process, which has issued a certificate or has failed."""
        if is_issued:
            issue_certificate(self.settings, POD, NOW)
            at = self._wall()
            os.utime(self.settings.folder / "tls.crt", (at, at))
        self.processes[-1].code = 0

    def run(self, seconds: float) -> int:
        """Let time pass, and return how many processes were started meanwhile."""
        before = len(self.processes)
        for _ in range(20):
            self.seconds += seconds / 20
            self.certificate.keep()
        return len(self.processes) - before


@pytest.fixture
def scene(settings: IssueSettings, resolved: dict[str, list[str]]) -> Scene:
    """A pod that has issued its first certificate."""
    made = Scene(settings)
    with pytest.raises(NotReadyError, match=r"tls\.crt is missing"):
        made.certificate.require()
    made.end()
    made.run(60)
    return made


def test_server_waits_for_its_first_certificate(settings: IssueSettings, resolved: dict[str, list[str]]) -> None:
    """One process is started at once, and the server starts when it has issued the certificate."""
    scene = Scene(settings)
    for _ in range(3):
        with pytest.raises(NotReadyError):
            scene.certificate.require()
    scene.end()

    scene.certificate.require()
    assert len(scene.processes) == 1


def test_certificate_is_renewed_after_a_third_of_its_validity(scene: Scene) -> None:
    """Until then nothing is started; then one process, and not another while it runs."""
    assert scene.run(9.9 * 86_400) == 0
    scene.seconds += 0.2 * 86_400
    assert scene.run(60) == 1
    scene.end()
    assert scene.run(9 * 86_400) == 0


def test_failed_process_is_tried_again_and_the_server_keeps_running(scene: Scene) -> None:
    """The old certificate stays valid for two thirds of its validity meanwhile."""
    scene.run(10.1 * 86_400)
    scene.end(is_issued=False)

    assert scene.run(30) == 1
    scene.certificate.require()


@pytest.mark.parametrize("what", ["names", "authority"])
def test_change_of_names_or_authority_issues_another_one(scene: Scene, what: str) -> None:
    """kubelet updates both in a running pod, for example after an external address was assigned."""
    if what == "names":
        assert scene.settings.names_file is not None
        scene.settings.names_file.write_text("mq.example.net\n")
    else:
        write_authority(scene.settings.authority, "bills")

    assert scene.run(30) == 1
    scene.end()
    assert scene.run(3_600) == 0
    assert ("mq.example.net" in names_in(scene.settings.folder)) is (what == "names")


def test_attempts_after_failures_are_further_and_further_apart(scene: Scene) -> None:
    """A damaged authority costs a process every few minutes, not every few seconds, and the reason is printed once."""
    scene.run(10.1 * 86_400)
    started = len(scene.processes)
    for _ in range(3_600):
        if scene.processes[-1].code is None:
            scene.end(is_issued=False)
        scene.seconds += 1
        scene.certificate.keep()

    assert 12 <= len(scene.processes) - started <= 20


def test_process_that_hangs_is_killed(scene: Scene) -> None:
    """The next attempt follows, and the server runs on."""
    scene.run(10.1 * 86_400)
    hanging = scene.processes[-1]
    scene.run(60)
    codes = [hanging.code]
    scene.run(100)
    codes.append(hanging.code)

    assert codes == [None, -9]
    assert scene.processes[-1] is not hanging


def test_process_that_cannot_be_started_does_not_end_the_server(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit of processes of the pod is reached for a while."""
    scene.start_error = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    scene.run(10.1 * 86_400)
    scene.run(600)
    assert capsys.readouterr().err.count("cannot start a process: Resource temporarily unavailable") == 1

    scene.start_error = None
    assert scene.run(600) >= 1


def test_missing_address_is_tried_again_after_a_minute(scene: Scene, resolved: dict[str, list[str]]) -> None:
    """A Service's name may be unknown to the DNS server when the first pod starts."""
    resolved.clear()
    issue_certificate(scene.settings, POD, NOW)
    at = scene._wall()
    os.utime(scene.settings.folder / "tls.crt", (at, at))

    assert scene.run(50) == 0
    assert scene.run(20) == 1


def test_clock_that_was_set_back_issues_another_one(scene: Scene) -> None:
    """A certificate from the future would not be valid yet for clients."""
    at = scene._wall() + 86_400
    os.utime(scene.settings.folder / "tls.crt", (at, at))

    assert scene.run(30) == 1


def test_new_container_waits_only_briefly_for_another_certificate(scene: Scene) -> None:
    """It must not read the new key with the old certificate. If issuing takes long, the old ones are good enough."""
    scene.certificate = scene.restarted()

    with pytest.raises(NotReadyError, match="is being issued"):
        scene.certificate.require()
    assert len(scene.processes) == 2
    scene.seconds += 11
    scene.certificate.require()


def test_pod_without_an_authority_does_nothing() -> None:
    """The certificates come from a Secret, or the group has no TLS."""
    certificate = PodCertificate(None, start=lambda words: pytest.fail("nothing is to be issued"))

    certificate.require()
    certificate.keep()


# -- processes ---------------------------------------------------------------------------------------------------------


def peer_certificate(port: int, authority: Path) -> bytes:
    """Return the certificate of a server, verified for ``localhost``; empty while nothing listens."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as channel,
        ):
            return channel.getpeercert(binary_form=True) or b""
    except OSError:
        return b""


def test_name_server_serves_the_certificate_that_it_issued(
    containers: Containers, settings: IssueSettings, tmp_path: Path
) -> None:
    """It waits for the first one, and serves the next one, with another name, without a restart."""
    [port] = free_ports(1)
    conf = f"listenPort={port}\nbindAddress=127.0.0.1\ntlsMode=enforcing\n"
    conf += f"tlsServerCertPath={settings.folder}/tls.crt\ntlsServerKeyPath={settings.folder}/tls.key\n"
    process = containers.start(
        *("nameserver", "--data", f"{tmp_path}/data", "--run", str(tmp_path), "--alive", "0"),
        *("--authority", str(settings.authority), "--certificates", str(settings.folder)),
        *("--certificate-host", "localhost", "--certificate-names", str(settings.names_file)),
        GANTRY_NAMESERVER_CONF=conf,
        POD_NAME="orders-nameserver-0",
    )
    wait_for(lambda: bool(peer_certificate(port, settings.authority / "ca.crt")))
    first = peer_certificate(port, settings.authority / "ca.crt")
    [server] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[:1]

    (tmp_path / "names").write_text("mq.example.net\n")
    wait_for(lambda: "mq.example.net" in names_in(settings.folder))
    wait_for(lambda: peer_certificate(port, settings.authority / "ca.crt") not in (first, b""))

    assert Path(f"/proc/{server}").exists()
    assert process.poll() is None
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "not ready: no certificate yet" in errors
    assert "issued a certificate for 30 days" in errors


def test_process_that_issues_names_the_reason_of_a_failure(settings: IssueSettings) -> None:
    """The container's log has one line, not a traceback."""
    break_key(settings.authority)
    words = [sys.executable, "-m", "gantry_cli", "pod", "certificate", *settings.arguments]
    result = subprocess.run(words, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert "cannot use the authority in" in result.stderr
    assert "Traceback" not in result.stderr
