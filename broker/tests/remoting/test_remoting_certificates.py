"""Certificates that are replaced while somebody uses them: what is taken, what is refused, what is said about it."""

import logging
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gantry_remoting import CertificateSource, peer_contexts
from gantry_remoting.tls_contexts import server_context
from gantry_remoting.tls_layer import subject_text
from gantry_remoting.validity import NoCertificate, chain_validity
from gantry_testing.certificates import Party, chain_of

DAY_S = 86_400.0


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def party(tmp_path: Path, authority: trustme.CA) -> Party:
    return Party(tmp_path / "server", authority)


@pytest.fixture
def source(party: Party) -> CertificateSource[ssl.SSLContext]:
    """Loaded, and looking only when it is told to."""
    source = party.server().source("clients")
    source.load()
    return source


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    message = "certificate not replaced; the old one stays"
    return [record.__dict__["reason"] for record in caplog.records if record.getMessage() == message]


# ------- what is taken


def test_files_that_say_the_same_are_no_change(party: Party, source: CertificateSource[ssl.SSLContext]) -> None:
    """Writing the same bytes again, or touching a file, makes no new context."""
    first = source.current

    party.chain.write_bytes(party.chain.read_bytes())
    os.utime(party.key, (1, 1))

    assert not source.look()
    assert source.current is first


def test_a_new_pair_is_taken_whatever_its_times_say(
    party: Party, authority: trustme.CA, source: CertificateSource[ssl.SSLContext]
) -> None:
    """The content counts: a pair that was written in place with the old times is seen."""
    first, times = source.current, (os.stat(party.chain).st_mtime, os.stat(party.key).st_mtime)

    party.replace(authority)
    os.utime(party.chain, (times[0], times[0]))
    os.utime(party.key, (times[1], times[1]))

    assert source.look()
    assert source.current is not first
    assert not source.look(), "and once only"


def test_a_mounted_secret_is_followed(tmp_path: Path, authority: trustme.CA) -> None:
    """Kubernetes turns the link `..data` to another folder; nothing else about the paths changes."""
    old, new = Party(tmp_path / "..old", authority), Party(tmp_path / "..new", authority)
    (tmp_path / "..data").symlink_to("..old")
    for name in ("chain.pem", "key.pem"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    paths = [str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")]
    source = CertificateSource("clients", paths, lambda: server_context(*paths), certificate=paths[0])
    source.load()
    first = source.current

    (tmp_path / "..next").symlink_to("..new")
    (tmp_path / "..next").replace(tmp_path / "..data")

    assert source.look()
    assert source.current is not first
    assert old.chain.read_bytes() != new.chain.read_bytes()


def test_both_directions_change_together(tmp_path: Path, authority: trustme.CA) -> None:
    """A pair of contexts is one thing: never is one direction new and the other old."""
    party = Party(tmp_path, authority)
    files = (str(party.chain), str(party.key), str(party.authority))
    source = CertificateSource("brokers", files, lambda: peer_contexts(*files), certificate=files[0])
    source.load()
    first = source.current

    party.replace(authority)
    source.look()

    assert source.current.server is not first.server and source.current.client is not first.client


# ------- what is refused


def test_a_key_that_does_not_fit_is_refused_and_named(
    party: Party, authority: trustme.CA, source: CertificateSource[ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """The old pair goes on; the log names both files, once; when the key comes, too, the new pair is taken."""
    first, new = source.current, party.issued(authority)
    party.chain.write_bytes(chain_of(new))

    assert not source.look()
    assert refusals(caplog) == [], "it may be that somebody is writing them just now"
    assert [source.look() for _ in range(3)] == [False] * 3
    assert source.current is first
    [reason] = refusals(caplog)
    assert str(party.chain) in reason and str(party.key) in reason and "not that of the certificate" in reason
    assert source.trouble == reason

    party.key.write_bytes(new.private_key_pem.bytes())
    assert source.look()
    assert source.trouble is None


BROKEN = {
    "nothing": b"",
    "no certificate": b"-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n",
    "nonsense": b"nonsense",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_certificate_is_refused(
    party: Party, source: CertificateSource[ssl.SSLContext], caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Whatever is in the file, the old certificate goes on, and the log says which file it is."""
    first = source.current
    party.chain.write_bytes(data)

    source.look()
    source.look()

    assert source.current is first
    assert [str(party.chain) in reason for reason in refusals(caplog)] == [True]


def test_files_that_vanish_are_no_reason_to_stop(
    party: Party, authority: trustme.CA, source: CertificateSource[ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is gone is said, and its old content goes on; put back, it is as if nothing had been."""
    first, text = source.current, party.key.read_bytes()
    party.key.unlink()

    source.look()
    source.look()
    assert source.current is first and len(refusals(caplog)) == 1

    party.key.write_bytes(text)
    assert not source.look()
    assert source.trouble is None


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_what_has_expired_replaces_nothing(
    party: Party,
    authority: trustme.CA,
    source: CertificateSource[ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_guarded: bool,
) -> None:
    """An expired certificate is worse than the old one; without the check it would be taken."""
    if not is_guarded:
        monkeypatch.setattr(CertificateSource, "_check", lambda self, validity: None)
    first, now = source.current, datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))

    source.look()
    source.look()

    assert (source.current is first) == is_guarded
    assert ["it ended" in reason for reason in refusals(caplog)] == ([True] if is_guarded else [])


def test_an_authority_is_replaced_beside_an_expired_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    """Whose own certificate has expired must still be able to stop believing somebody."""
    party, now = Party(tmp_path, authority), datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))
    source = party.server(needs_client=True).source("clients")
    source.load()

    party.trust(trustme.CA())

    assert source.look()


def test_what_is_not_valid_yet_waits_for_its_time(party: Party, authority: trustme.CA) -> None:
    """A certificate of tomorrow is refused today, and taken tomorrow without anybody touching the files."""
    now = [datetime.now(UTC).timestamp()]
    files = (str(party.chain), str(party.key))
    source = CertificateSource(
        "clients", files, lambda: server_context(*files), certificate=files[0], now=lambda: now[0]
    )
    source.load()
    tomorrow = datetime.fromtimestamp(now[0] + DAY_S, UTC)
    party.replace(authority, not_before=tomorrow, not_after=tomorrow + timedelta(days=30))

    assert not source.look()
    assert not source.look()
    assert source.trouble is not None and "it begins" in source.trouble
    now[0] += DAY_S + 1
    assert source.look()


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_files_that_move_while_they_are_read_are_not_used(
    party: Party, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """What was loaded must be what was seen before and after; otherwise a later change could go unnoticed."""
    others = iter([party.issued(authority), party.issued(authority)])

    def build() -> str:
        text = party.chain.read_text()
        if is_moving:
            other = next(others)
            party.chain.write_bytes(chain_of(other))
            party.key.write_bytes(other.private_key_pem.bytes())
        return text

    is_moving = False
    source = CertificateSource("clients", [str(party.chain), str(party.key)], build, certificate=str(party.chain))
    source.load()
    first = source.current
    party.replace(authority)
    is_moving = True
    if not is_guarded:
        monkeypatch.setattr(source, "_digest", lambda: b"always the same, and new")

    assert source.look() != is_guarded
    assert (source.current == first) == is_guarded
    if is_guarded:
        is_moving = False
        assert source.look()
        assert source.current == party.chain.read_text()


def test_a_locked_key_asks_nobody(party: Party) -> None:
    """A key with a password is an error that says so, not a prompt on a terminal."""
    key = serialization.load_pem_private_key(party.key.read_bytes(), None)
    party.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )

    with pytest.raises(OSError, match="locked with a password"):
        party.server().source("clients").load()


# ------- the end of a certificate


@pytest.fixture
def clock(party: Party, authority: trustme.CA) -> Iterator[list[float]]:
    """Thirty days before the end of the party's certificate."""
    now = datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=1), not_after=now + timedelta(days=30))
    yield [now.timestamp()]


def test_the_end_is_said_ahead_once_a_day(
    party: Party, authority: trustme.CA, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """From 14 days on a line a day, with the days that are left; an error after the end; silence for a new one."""
    files = (str(party.chain), str(party.key))
    source = CertificateSource(
        "clients", files, lambda: server_context(*files), certificate=files[0], now=lambda: clock[0]
    )
    source.load()
    began = clock[0]
    assert source.expires_at is not None and abs(source.expires_at - began - 30 * DAY_S) < 2

    lines = []
    for half_day in range(70):
        clock[0] = began + half_day * DAY_S / 2
        caplog.clear()
        source.look()
        lines += [(half_day, record.getMessage(), record.levelno) for record in caplog.records]

    soon = [half_day for half_day, text, _ in lines if text == "a certificate expires soon"]
    over = [half_day for half_day, text, _ in lines if text == "a certificate has expired"]
    assert len(soon) == 14 and soon[0] in (32, 33), soon
    assert len(over) == 5 and all(level == logging.ERROR for half_day, _, level in lines if half_day in over)
    now = datetime.fromtimestamp(clock[0], UTC)
    party.replace(authority, not_before=now - timedelta(days=1), not_after=now + timedelta(days=90))
    caplog.clear()
    assert source.look()
    clock[0] += 10 * DAY_S
    source.look()
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_one_that_has_expired_is_used_at_the_start(
    party: Party, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """A server with an expired certificate serves those who do not look; not starting would help nobody."""
    now = datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))

    source = party.server().source("clients")
    source.load()

    assert source.current is not None
    assert [record.getMessage() for record in caplog.records] == ["a certificate has expired"]


# ------- reading certificates


@pytest.mark.parametrize("year", [1999, 2049, 2050, 2999], ids=str)
def test_times_are_read_as_others_read_them(authority: trustme.CA, year: int) -> None:
    """Before 2050 a certificate writes its year with two digits, and with four from then on."""
    end = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    issued = authority.issue_cert("a.example", not_before=datetime(1980, 2, 3, 4, 5, 6, tzinfo=UTC), not_after=end)
    pem = issued.cert_chain_pems[0].bytes()
    other = x509.load_pem_x509_certificate(pem)

    validity = chain_validity(pem)

    assert validity.ends_at == other.not_valid_after_utc.timestamp() == end.timestamp()
    assert validity.begins_at == other.not_valid_before_utc.timestamp()


def test_a_chain_is_as_good_as_its_worst_link(authority: trustme.CA) -> None:
    """Of several certificates in a file the latest beginning and the earliest end count."""
    now = datetime.now(UTC).replace(microsecond=0)
    links = [
        authority.issue_cert("a", not_before=now - timedelta(days=before), not_after=now + timedelta(days=after))
        for before, after in ((9, 3), (2, 8))
    ]

    validity = chain_validity(b"\n".join(link.cert_chain_pems[0].bytes() for link in links))

    assert (validity.begins_at, validity.ends_at) == (
        (now - timedelta(days=2)).timestamp(), (now + timedelta(days=3)).timestamp(),
    )  # fmt: skip


def test_a_certificate_that_is_cut_is_none(authority: trustme.CA) -> None:
    """Whatever is missing, the answer is NoCertificate and never another error."""
    der = ssl.PEM_cert_to_DER_cert(authority.issue_cert("a").cert_chain_pems[0].bytes().decode())
    for length in range(len(der)):
        with pytest.raises(NoCertificate):
            chain_validity(ssl.DER_cert_to_PEM_cert(der[:length]).encode() if length else b"")


SUBJECTS = [
    ({"subject": ((("countryName", "DE"),), (("commonName", "billing"),))}, "CN=billing,C=DE"),
    ({"subject": ((("commonName", "a,b=c\n role=admin"),),)}, "CN=a\\,b\\=c\\0A\\20role\\=admin"),
    ({"subject": (), "subjectAltName": (("URI", "spiffe://x/y"), ("DNS", "z"))}, "URI:spiffe://x/y"),
    ({"subject": ((("commonName", "a"), ("userId", "b")),)}, "CN=a+UID=b"),
    ({}, ""),
]


@pytest.mark.parametrize(("certificate", "text"), SUBJECTS, ids=["parts", "hostile", "other name", "together", "none"])
def test_a_subject_is_one_word(certificate: dict[str, object], text: str) -> None:
    """Whoever chose it cannot end a field or a line of a log with it."""
    assert subject_text(certificate) == text
