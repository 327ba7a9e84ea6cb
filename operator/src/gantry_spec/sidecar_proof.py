"""The proof that a certificate belongs to a sidecar, for clients that know the sidecar's token but no authority.

    client                                         sidecar
    connects without verification    --TLS-->      presents certificate C
    sends a nonce, and no token      ------->
                                     <-------      HMAC(token, purpose, nonce, SHA-256(C))
    The client computes the same with the presented C. Only if both are equal it sends the token, over this connection
    or another one on which the same C is presented.

A man in the middle presents a certificate of its own, for which it cannot compute the proof, and the real sidecar's
answer is for the real certificate. Each nonce is new, so replayed answers are useless, and the purpose keeps the answer
from being used for anything else. So a client needs no right to read the Secret with certificate, key and authority.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from typing import Final

PURPOSE: Final = b"gantry sidecar certificate 1\0"
"""The constant part of the proof's input, which no other use of the token has."""

NONCE_CHARACTERS: Final = 64
"""The length of a nonce as it is sent, in hexadecimal digits."""


def fingerprint_of(certificate_pem: str) -> bytes:
    """Return the SHA-256 of the first certificate in a PEM file, in DER form. Raises ValueError if there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start = certificate_pem.find(begin)
    stop = certificate_pem.find(end, start)
    if start < 0 or stop < 0:
        raise ValueError("no certificate found in the PEM file")
    return hashlib.sha256(binascii.a2b_base64(certificate_pem[start + len(begin) : stop])).digest()


def proof_of(token: str, nonce: str, fingerprint: bytes) -> str:
    """Return the proof for a certificate, which only a holder of the token can compute."""
    assert len(nonce) == NONCE_CHARACTERS and len(fingerprint) == hashlib.sha256().digest_size, "both have one length"
    return hmac.new(token.encode(), PURPOSE + bytes.fromhex(nonce) + fingerprint, hashlib.sha256).hexdigest()


def is_proven(proof: object, token: str, nonce: str, fingerprint: bytes) -> bool:
    """Return whether an answer of any type is the right proof. The comparison takes constant time."""
    return isinstance(proof, str) and hmac.compare_digest(
        proof.encode("utf-8", "replace"), proof_of(token, nonce, fingerprint).encode()
    )
