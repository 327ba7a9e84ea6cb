"""Signatures of requests: RocketMQ's scheme byte for byte, with what it does not cover, and the strict one.

Where the expected texts come from: one is in the tests of Apache's own client, for its signer alone. The others were
made with `openssl dgst -hmac` over bytes written by hand. Frames that a Java client has signed are still wanted among
the golden ones.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_access import Credentials, SignatureKind, signer
from gantry_wire import Command
from gantry_wire.signatures import (
    SESSION_CHARACTERS,
    UNIQUE_KEY_QUERY,
    KeyedV1,
    StrictClaim,
    content_v1,
    is_signed_strict,
    is_signed_v1,
    sign_strict,
    sign_v1,
    signature_v1,
    strict_claim,
)

ORDERS = Credentials("orders-key", "orders-secret")
SECRET = b"orders-secret"
FIELDS = {"e": "0", "b": "TopicTest", "a": "group"}
CLAIM = StrictClaim(1_700_000_000_000, "a" * SESSION_CHARACTERS, 1)


def strict_request(code: int = 310, body: bytes = b"hello", **fields: str) -> Command:
    """Return a request with a strict signature."""
    command = Command(code=code, opaque=7, ext=fields or {"a": "group"}, body=body)
    command.ext = sign_strict(command, ORDERS, CLAIM)
    return command


# ------- v1


def test_v1_signature_matches_apaches_signer() -> None:
    """The text and signature are those of Apache's AclSignerTest."""
    assert signature_v1(b"12345678", b"RocketMQ") == b"IUc8rrO/0gDch8CjObLQsW2rsiA="


@given(secret=st.binary(max_size=200), content=st.binary(max_size=300))
def test_prepared_secret_gives_the_same_signature(secret: bytes, content: bytes) -> None:
    """This also holds for a secret longer than a block of the hash, and for repeated use."""
    keyed = KeyedV1(secret)

    assert keyed.signature(content) == keyed.signature(content) == signature_v1(secret, content)
    assert len(secret) < 8 or secret.hex() not in repr(keyed)  # the hex of a short secret may occur in any word


def test_values_are_signed_in_name_order() -> None:
    """AccessKey sorts before every lower-case name; the body is last; the signature itself is excluded."""
    signed = sign_v1(FIELDS, b"hello", ORDERS)

    assert content_v1(signed, b"hello") == b"orders-keygroupTopicTest0hello"
    assert signed == {**FIELDS, "AccessKey": "orders-key", "Signature": "pHAtZ7RfchR1QUBKv5TIyAgfZag="}
    assert is_signed_v1(signed, b"hello", SECRET)


def test_security_token_is_signed_after_the_access_key() -> None:
    """A SecurityToken is signed like any other field."""
    signed = sign_v1({"a": "group"}, b"", Credentials("orders-key", "orders-secret", "token"))

    assert content_v1(signed, b"") == b"orders-keytokengroup"


@pytest.mark.parametrize(
    ("change", "body"),
    [({"b": "Other"}, b"hello"), ({"z": "more"}, b"hello"), ({"AccessKey": "other-key"}, b"hello"), ({}, b"hellO")],
    ids=["a value", "another field", "the account", "the body"],
)
def test_v1_detects_changed_values_and_body(change: dict[str, str], body: bytes) -> None:
    """Values and body are signed."""
    signed = sign_v1(FIELDS, b"hello", ORDERS)

    assert not is_signed_v1({**signed, **change}, body, SECRET)


def test_v1_does_not_cover_field_boundaries() -> None:
    """A known weakness of RocketMQ's scheme: bytes may move from one field to the next, or into the body."""
    one = sign_v1({"queueId": "12", "queueOffset": "3"}, b"", ORDERS)
    other = {**one, "queueId": "1", "queueOffset": "23"}

    assert is_signed_v1(other, b"", SECRET)
    assert is_signed_v1({**one, "queueOffset": ""}, b"3", SECRET)


def test_other_secret_or_missing_signature_is_invalid() -> None:
    """No account can sign for another, and a missing signature is invalid."""
    signed = sign_v1(FIELDS, b"hello", replace(ORDERS, secret_key="another-secret"))

    assert not is_signed_v1(signed, b"hello", SECRET)
    assert not is_signed_v1({**signed, "Signature": ""}, b"hello", SECRET)
    assert not is_signed_v1({**signed, "Signature": "ä\ud800"}, b"hello", SECRET)


def test_queries_of_older_clients_are_accepted() -> None:
    """Clients up to 4.9.3 add the mark of a query by unique key after signing, later ones before it."""
    later = sign_v1({"key": "k", UNIQUE_KEY_QUERY: "true"}, b"", ORDERS)
    older = {**sign_v1({"key": "k"}, b"", ORDERS), UNIQUE_KEY_QUERY: "true"}

    assert is_signed_v1(later, b"", SECRET)
    assert is_signed_v1(older, b"", SECRET)


def test_resent_request_is_signed_again() -> None:
    """The fields of the first signature are not part of the second."""
    once = sign_v1(FIELDS, b"hello", ORDERS)

    assert sign_v1(once, b"hello", ORDERS) == once


def test_invalid_unicode_is_signed_like_java() -> None:
    """A lone surrogate becomes a question mark in Java's UTF-8."""
    assert content_v1({"a": "x\ud800y"}, b"") == b"x?y"


# ------- strict


def test_strict_signature_matches_the_documentation() -> None:
    """Every part is preceded by its length; the expected signature was made by another program."""
    signed = strict_request()

    assert signed.ext["GantrySignature"] == "SCaHMB2HpyRyn57wGhm5s1vmhO56knlTf3Ac1nwPAoo="
    assert is_signed_strict(signed, SECRET)
    assert strict_claim(signed.ext) == CLAIM


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(strict_request(), code=215),
        msgspec.structs.replace(strict_request(), opaque=8),
        msgspec.structs.replace(strict_request(), flag=2),
        msgspec.structs.replace(strict_request(), body=b"hellO"),
        msgspec.structs.replace(strict_request(), ext={**strict_request().ext, "a": "grouP"}),
        msgspec.structs.replace(strict_request(), ext={**strict_request().ext, "z": ""}),
        msgspec.structs.replace(strict_request(), ext={**strict_request().ext, "GantryTime": "1700000000001"}),
        msgspec.structs.replace(strict_request(), ext={**strict_request().ext, "GantryNumber": "2"}),
        msgspec.structs.replace(
            strict_request(), ext={**strict_request().ext, "GantrySession": "b" * SESSION_CHARACTERS}
        ),
        msgspec.structs.replace(strict_request(), ext={**strict_request().ext, "AccessKey": "other-key"}),
        msgspec.structs.replace(strict_request(), ext={**strict_request().ext, "GantrySignature": ""}),
    ],
    ids=["code", "opaque", "flag", "body", "value", "field", "time", "number", "session", "account", "signature"],
)
def test_strict_signature_covers_the_whole_request(changed: Command) -> None:
    """Code, opaque, flags, every field and the body are covered."""
    assert not is_signed_strict(changed, SECRET)


def test_strict_signature_covers_field_boundaries() -> None:
    """It detects what v1 does not: bytes moved between fields, and a renamed field."""
    signed = strict_request(queueId="12", queueOffset="3")
    moved = {**signed.ext, "queueId": "1", "queueOffset": "23"}
    renamed = {name.replace("queueId", "queueIx"): value for name, value in signed.ext.items()}

    assert not is_signed_strict(msgspec.structs.replace(signed, ext=moved), SECRET)
    assert not is_signed_strict(msgspec.structs.replace(signed, ext=renamed), SECRET)


@pytest.mark.parametrize(
    "broken",
    [
        {"GantryTime": ""},
        {"GantryTime": "-1"},
        {"GantryNumber": "x"},
        {"GantryNumber": "1" * 19},
        {"GantrySession": "a"},
    ],
    ids=["no time", "a negative time", "no number", "a long number", "a short session"],
)
def test_malformed_strict_claim_is_refused(broken: dict[str, str]) -> None:
    """Time and number must be plain numbers, and a session has a fixed length."""
    assert strict_claim({**strict_request().ext, **broken}) is None


def test_strict_signer_numbers_its_requests() -> None:
    """Each connection has its own session; numbers increase, also for a request that is written twice."""
    first, second = (signer(ORDERS, SignatureKind.STRICT, now_ms=lambda: 5) for _ in range(2))
    assert first is not None and second is not None
    command, other = Command(code=11), Command(code=11)

    first(command)
    one = strict_claim(command.ext)
    first(command)
    two = strict_claim(command.ext)
    second(other)
    three = strict_claim(other.ext)

    assert one is not None and two is not None and three is not None
    assert (one.number, two.number, three.number) == (1, 2, 1)
    assert one.session == two.session != three.session
    assert one.time_ms == 5
    assert is_signed_strict(command, SECRET)


def test_client_without_credentials_does_not_sign() -> None:
    """Without credentials no fields are added."""
    assert signer(None, SignatureKind.STRICT) is None


def test_credentials_repr_contains_no_secret() -> None:
    """Credentials may appear in a log or a traceback without revealing the secret."""
    assert "orders-secret" not in repr(ORDERS)
    assert "token" not in repr(Credentials("a", "b", "token"))
