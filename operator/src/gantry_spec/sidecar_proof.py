"""How a sidecar proves that the certificate it shows is its own, to somebody who knows its token and no authority.

    who asks                                       sidecar
    connects, believes nobody        --TLS-->      shows certificate C
    a nonce, and no token            ------->
                                     <-------      HMAC(token, purpose, nonce, SHA-256(C))
    the same from the C it was shown? Then, and only then, the token goes to whoever shows C.

Somebody in between shows a certificate of his own, for which he cannot compute this, and the answer of the real sidecar
is for the real one's. A nonce is new each time, so no old answer helps, and the purpose keeps the answer from being
taken for anything else. So whoever gives orders needs no right to read the Secret with certificate, key and authority.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from typing import Final

PURPOSE: Final = b"gantry sidecar certificate 1\0"
NONCE_CHARACTERS: Final = 64
"""Of a nonce as it is sent: hexadecimal."""


def fingerprint_of(certificate_pem: str) -> bytes:
    """SHA-256 of the first certificate of a file, as a client sees it. Raises ValueError if there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start = certificate_pem.find(begin)
    stop = certificate_pem.find(end, start)
    if start < 0 or stop < 0:
        raise ValueError("there is no certificate in it")
    return hashlib.sha256(binascii.a2b_base64(certificate_pem[start + len(begin) : stop])).digest()


def proof_of(token: str, nonce: str, fingerprint: bytes) -> str:
    """What only somebody with the token can say of that certificate."""
    assert len(nonce) == NONCE_CHARACTERS and len(fingerprint) == hashlib.sha256().digest_size, "both have one length"
    return hmac.new(token.encode(), PURPOSE + bytes.fromhex(nonce) + fingerprint, hashlib.sha256).hexdigest()


def is_proven(proof: object, token: str, nonce: str, fingerprint: bytes) -> bool:
    """Compared in constant time; anything may have been answered."""
    return isinstance(proof, str) and hmac.compare_digest(
        proof.encode("utf-8", "replace"), proof_of(token, nonce, fingerprint).encode()
    )
