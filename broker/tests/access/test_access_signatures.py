"""Signatures of requests: RocketMQ's scheme byte for byte, with what it does not cover, and the strict one.

Where the expected texts come from: one is in the tests of Apache's own client, for its signer alone. The others were
made with `openssl dgst -hmac` over bytes written by hand. Frames that a Java client has signed are still wanted among
the golden ones.
"""

from __future__ import annotations

from dataclasses import replace

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
    """A request signed strictly."""
    command = Command(code=code, opaque=7, ext=fields or {"a": "group"}, body=body)
    command.ext = sign_strict(command, ORDERS, CLAIM)
    return command


# ------- v1


def test_the_signer_makes_what_apaches_signer_makes() -> None:
    """The pair of text and signature in Apache's AclSignerTest."""
    assert signature_v1(b"12345678", b"RocketMQ") == b"IUc8rrO/0gDch8CjObLQsW2rsiA="


@given(secret=st.binary(max_size=200), content=st.binary(max_size=300))
def test_a_prepared_secret_signs_the_same(secret: bytes, content: bytes) -> None:
    """Also one longer than a block of the hash, and again with the same preparation."""
    keyed = KeyedV1(secret)

    assert keyed.signature(content) == keyed.signature(content) == signature_v1(secret, content)
    assert len(secret) < 8 or secret.hex() not in repr(keyed)  # the hex of a short one may be part of any word


def test_values_are_signed_in_the_order_of_their_names() -> None:
    """AccessKey comes before every lower-case name; the body comes last; the signature is not in itself."""
    signed = sign_v1(FIELDS, b"hello", ORDERS)

    assert content_v1(signed, b"hello") == b"orders-keygroupTopicTest0hello"
    assert signed == {**FIELDS, "AccessKey": "orders-key", "Signature": "pHAtZ7RfchR1QUBKv5TIyAgfZag="}
    assert is_signed_v1(signed, b"hello", SECRET)


def test_a_token_is_signed_behind_the_access_key() -> None:
    """SecurityToken, where there is one, is a field like the others."""
    signed = sign_v1({"a": "group"}, b"", Credentials("orders-key", "orders-secret", "token"))

    assert content_v1(signed, b"") == b"orders-keytokengroup"


@pytest.mark.parametrize(
    ("change", "body"),
    [({"b": "Other"}, b"hello"), ({"z": "more"}, b"hello"), ({"AccessKey": "other-key"}, b"hello"), ({}, b"hellO")],
    ids=["a value", "another field", "the account", "the body"],
)
def test_what_v1_covers_cannot_be_changed(change: dict[str, str], body: bytes) -> None:
    """Values and body are signed."""
    signed = sign_v1(FIELDS, b"hello", ORDERS)

    assert not is_signed_v1({**signed, **change}, body, SECRET)


def test_v1_does_not_cover_the_borders_between_fields() -> None:
    """A weakness by inheritance, kept in sight: bytes may move from one field to the next, or into the body."""
    one = sign_v1({"queueId": "12", "queueOffset": "3"}, b"", ORDERS)
    other = {**one, "queueId": "1", "queueOffset": "23"}

    assert is_signed_v1(other, b"", SECRET)
    assert is_signed_v1({**one, "queueOffset": ""}, b"3", SECRET)


def test_another_secret_makes_another_signature() -> None:
    """Nobody signs for somebody else, and no signature is no signature."""
    signed = sign_v1(FIELDS, b"hello", replace(ORDERS, secret_key="another-secret"))

    assert not is_signed_v1(signed, b"hello", SECRET)
    assert not is_signed_v1({**signed, "Signature": ""}, b"hello", SECRET)
    assert not is_signed_v1({**signed, "Signature": "ä\ud800"}, b"hello", SECRET)


def test_queries_of_older_clients_are_believed() -> None:
    """Clients up to 4.9.3 add the mark of a query by unique key behind their signature, later ones before it."""
    later = sign_v1({"key": "k", UNIQUE_KEY_QUERY: "true"}, b"", ORDERS)
    older = {**sign_v1({"key": "k"}, b"", ORDERS), UNIQUE_KEY_QUERY: "true"}

    assert is_signed_v1(later, b"", SECRET)
    assert is_signed_v1(older, b"", SECRET)


def test_a_request_that_is_sent_again_is_signed_anew() -> None:
    """What the first signature put there is no part of the second."""
    once = sign_v1(FIELDS, b"hello", ORDERS)

    assert sign_v1(once, b"hello", ORDERS) == once


def test_text_that_is_no_unicode_is_signed_as_java_signs_it() -> None:
    """Half of a surrogate pair becomes a question mark in Java's UTF-8."""
    assert content_v1({"a": "x\ud800y"}, b"") == b"x?y"


# ------- strict


def test_the_strict_statement_is_what_the_documentation_says() -> None:
    """Every part has its length in front of it; the signature was made by another program."""
    signed = strict_request()

    assert signed.ext["GantrySignature"] == "SCaHMB2HpyRyn57wGhm5s1vmhO56knlTf3Ac1nwPAoo="
    assert is_signed_strict(signed, SECRET)
    assert strict_claim(signed.ext) == CLAIM


@pytest.mark.parametrize(
    "changed",
    [
        replace(strict_request(), code=215),
        replace(strict_request(), opaque=8),
        replace(strict_request(), flag=2),
        replace(strict_request(), body=b"hellO"),
        replace(strict_request(), ext={**strict_request().ext, "a": "grouP"}),
        replace(strict_request(), ext={**strict_request().ext, "z": ""}),
        replace(strict_request(), ext={**strict_request().ext, "GantryTime": "1700000000001"}),
        replace(strict_request(), ext={**strict_request().ext, "GantryNumber": "2"}),
        replace(strict_request(), ext={**strict_request().ext, "GantrySession": "b" * SESSION_CHARACTERS}),
        replace(strict_request(), ext={**strict_request().ext, "AccessKey": "other-key"}),
        replace(strict_request(), ext={**strict_request().ext, "GantrySignature": ""}),
    ],
    ids=["code", "opaque", "flag", "body", "value", "field", "time", "number", "session", "account", "signature"],
)
def test_nothing_that_decides_what_a_request_does_can_be_changed(changed: Command) -> None:
    """Code, opaque, flags, every field and the body are covered."""
    assert not is_signed_strict(changed, SECRET)


def test_strict_signatures_cover_the_borders_between_fields() -> None:
    """What v1 lets pass: bytes that moved from one field to the next, a name that moved, a field in the body."""
    signed = strict_request(queueId="12", queueOffset="3")
    moved = {**signed.ext, "queueId": "1", "queueOffset": "23"}
    renamed = {name.replace("queueId", "queueIx"): value for name, value in signed.ext.items()}

    assert not is_signed_strict(replace(signed, ext=moved), SECRET)
    assert not is_signed_strict(replace(signed, ext=renamed), SECRET)


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
def test_a_malformed_claim_is_none(broken: dict[str, str]) -> None:
    """Time and number are plain numbers, a session has its length."""
    assert strict_claim({**strict_request().ext, **broken}) is None


def test_a_strict_connection_counts_its_requests() -> None:
    """Each connection has a session of its own; numbers rise, a request that is written twice included."""
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


def test_whoever_has_no_account_signs_nothing() -> None:
    """Without credentials there is nothing to put among the fields."""
    assert signer(None, SignatureKind.STRICT) is None


def test_no_repr_holds_a_secret() -> None:
    """Credentials may end up in a log or a traceback."""
    assert "orders-secret" not in repr(ORDERS)
    assert "token" not in repr(Credentials("a", "b", "token"))
