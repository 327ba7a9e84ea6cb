"""Certificates that are replaced while they are in use: which files are used, which are refused, and what is logged."""

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
    """A loaded source that checks its files only when it is called."""
    source = party.server().source("clients")
    source.load()
    return source


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    message = "certificate not replaced; the old one stays"
    return [record.__dict__["reason"] for record in caplog.records if record.getMessage() == message]


# ------- replacement


def test_unchanged_content_makes_no_new_context(party: Party, source: CertificateSource[ssl.SSLContext]) -> None:
    """Writing the same bytes again, or touching a file, makes no new context."""
    first = source.current

    party.chain.write_bytes(party.chain.read_bytes())
    os.utime(party.key, (1, 1))

    assert not source.reload_if_changed()
    assert source.current is first


def test_new_pair_is_used_despite_old_file_times(
    party: Party, authority: trustme.CA, source: CertificateSource[ssl.SSLContext]
) -> None:
    """The content decides: a pair that was written in place with the old file times is detected."""
    first, times = source.current, (os.stat(party.chain).st_mtime, os.stat(party.key).st_mtime)

    party.replace(authority)
    os.utime(party.chain, (times[0], times[0]))
    os.utime(party.key, (times[1], times[1]))

    assert source.reload_if_changed()
    assert source.current is not first
    assert not source.reload_if_changed(), "the same files were loaded twice"


def test_a_mounted_secret_is_followed(tmp_path: Path, authority: trustme.CA) -> None:
    """Kubernetes switches the link `..data` to another folder; the paths stay the same."""
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

    assert source.reload_if_changed()
    assert source.current is not first
    assert old.chain.read_bytes() != new.chain.read_bytes()


def test_both_directions_change_together(tmp_path: Path, authority: trustme.CA) -> None:
    """Server and client context are replaced together: never is one new and the other old."""
    party = Party(tmp_path, authority)
    files = (str(party.chain), str(party.key), str(party.authority))
    source = CertificateSource("brokers", files, lambda: peer_contexts(*files), certificate=files[0])
    source.load()
    first = source.current

    party.replace(authority)
    source.reload_if_changed()

    assert source.current.server is not first.server and source.current.client is not first.client


# ------- refusals


def test_key_of_another_certificate_is_refused_and_named(
    party: Party, authority: trustme.CA, source: CertificateSource[ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """The old pair stays in use and the log names both files, once; the matching key is then used."""
    first, new = source.current, party.issue(authority)
    party.chain.write_bytes(chain_of(new))

    assert not source.reload_if_changed()
    assert refusals(caplog) == [], "expected no refusal yet: the files may be in the middle of a write"
    assert [source.reload_if_changed() for _ in range(3)] == [False] * 3
    assert source.current is first
    [reason] = refusals(caplog)
    assert str(party.chain) in reason and str(party.key) in reason and "does not belong to the certificate" in reason
    assert source.reload_error == reason

    party.key.write_bytes(new.private_key_pem.bytes())
    assert source.reload_if_changed()
    assert source.reload_error is None


BROKEN = {
    "nothing": b"",
    "no certificate": b"-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n",
    "nonsense": b"nonsense",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_invalid_certificate_is_refused(
    party: Party, source: CertificateSource[ssl.SSLContext], caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """For any invalid content the old certificate stays in use, and the log names the file."""
    first = source.current
    party.chain.write_bytes(data)

    source.reload_if_changed()
    source.reload_if_changed()

    assert source.current is first
    assert [str(party.chain) in reason for reason in refusals(caplog)] == [True]


def test_missing_files_keep_the_old_certificate(
    party: Party, authority: trustme.CA, source: CertificateSource[ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """A missing file is logged, and its old content stays in use until it returns."""
    first, text = source.current, party.key.read_bytes()
    party.key.unlink()

    source.reload_if_changed()
    source.reload_if_changed()
    assert source.current is first and len(refusals(caplog)) == 1

    party.key.write_bytes(text)
    assert not source.reload_if_changed()
    assert source.reload_error is None


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_expired_certificate_is_not_used(
    party: Party,
    authority: trustme.CA,
    source: CertificateSource[ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_guarded: bool,
) -> None:
    """An expired certificate does not replace a valid one; without the check it would."""
    if not is_guarded:
        monkeypatch.setattr(CertificateSource, "_check", lambda self, validity: None)
    first, now = source.current, datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))

    source.reload_if_changed()
    source.reload_if_changed()

    assert (source.current is first) == is_guarded
    assert ["it ended" in reason for reason in refusals(caplog)] == ([True] if is_guarded else [])


def test_an_authority_is_replaced_beside_an_expired_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    """With an expired certificate of its own a server must still be able to revoke an authority."""
    party, now = Party(tmp_path, authority), datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))
    source = party.server(needs_client=True).source("clients")
    source.load()

    party.trust(trustme.CA())

    assert source.reload_if_changed()


def test_certificate_is_used_when_it_becomes_valid(party: Party, authority: trustme.CA) -> None:
    """A certificate that is not valid yet is refused, and used later without another change of the files."""
    now = [datetime.now(UTC).timestamp()]
    files = (str(party.chain), str(party.key))
    source = CertificateSource(
        "clients", files, lambda: server_context(*files), certificate=files[0], now=lambda: now[0]
    )
    source.load()
    tomorrow = datetime.fromtimestamp(now[0] + DAY_S, UTC)
    party.replace(authority, not_before=tomorrow, not_after=tomorrow + timedelta(days=30))

    assert not source.reload_if_changed()
    assert not source.reload_if_changed()
    assert source.reload_error is not None and "it begins" in source.reload_error
    now[0] += DAY_S + 1
    assert source.reload_if_changed()


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_files_that_change_during_a_load_are_not_used(
    party: Party, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """The loaded content must equal the digest before and after; otherwise a later change could be missed."""
    others = iter([party.issue(authority), party.issue(authority)])

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

    assert source.reload_if_changed() != is_guarded
    assert (source.current == first) == is_guarded
    if is_guarded:
        is_moving = False
        assert source.reload_if_changed()
        assert source.current == party.chain.read_text()


def test_encrypted_key_is_an_error_without_a_prompt(party: Party) -> None:
    """A key with a password is an error, and no prompt on a terminal."""
    key = serialization.load_pem_private_key(party.key.read_bytes(), None)
    party.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )

    with pytest.raises(OSError, match="the key is encrypted"):
        party.server().source("clients").load()


# ------- the end of a certificate


@pytest.fixture
def clock(party: Party, authority: trustme.CA) -> Iterator[list[float]]:
    """Thirty days before the end of the party's certificate."""
    now = datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=1), not_after=now + timedelta(days=30))
    yield [now.timestamp()]


def test_expiry_is_logged_once_a_day_in_advance(
    party: Party, authority: trustme.CA, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """From 14 days before the end there is one warning a day, then one error a day, and none for a new one."""
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
        source.reload_if_changed()
        lines += [(half_day, record.getMessage(), record.levelno) for record in caplog.records]

    soon = [half_day for half_day, text, _ in lines if text == "certificate expires soon"]
    over = [half_day for half_day, text, _ in lines if text == "certificate expired"]
    assert len(soon) == 14 and soon[0] in (32, 33), soon
    assert len(over) == 5 and all(level == logging.ERROR for half_day, _, level in lines if half_day in over)
    now = datetime.fromtimestamp(clock[0], UTC)
    party.replace(authority, not_before=now - timedelta(days=1), not_after=now + timedelta(days=90))
    caplog.clear()
    assert source.reload_if_changed()
    clock[0] += 10 * DAY_S
    source.reload_if_changed()
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_expired_certificate_is_used_at_the_start(
    party: Party, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """A server with an expired certificate serves clients that do not verify it; not starting would help no client."""
    now = datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))

    source = party.server().source("clients")
    source.load()

    assert source.current is not None
    assert [record.getMessage() for record in caplog.records] == ["certificate expired"]


# ------- reading certificates


@pytest.mark.parametrize("year", [1999, 2049, 2050, 2999], ids=str)
def test_validity_times_are_read_with_two_and_four_digit_years(authority: trustme.CA, year: int) -> None:
    """Certificates write years before 2050 with two digits, and later ones with four."""
    end = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    issued = authority.issue_cert("a.example", not_before=datetime(1980, 2, 3, 4, 5, 6, tzinfo=UTC), not_after=end)
    pem = issued.cert_chain_pems[0].bytes()
    other = x509.load_pem_x509_certificate(pem)

    validity = chain_validity(pem)

    assert validity.ends_at == other.not_valid_after_utc.timestamp() == end.timestamp()
    assert validity.begins_at == other.not_valid_before_utc.timestamp()


def test_validity_of_a_chain_is_the_intersection(authority: trustme.CA) -> None:
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


def test_truncated_certificate_raises_no_certificate(authority: trustme.CA) -> None:
    """Wherever it is cut, the error is NoCertificate and never another one."""
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
def test_subject_is_escaped(certificate: dict[str, object], text: str) -> None:
    """The name that an applicant chose cannot end a field or a line of a log."""
    assert subject_text(certificate) == text
