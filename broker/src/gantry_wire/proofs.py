"""Proofs that a peer knows a shared secret, without sending the secret.

One side sends a nonce, and the other one answers with the proof for it. A proof also covers the role of the side that
makes it and both nonces, so that it can neither be sent back to its maker nor be used on another connection.
"""

import hmac


def compute_proof(secret: bytes, *words: str) -> str:
    """Return a proof of knowledge of the secret that does not reveal it; empty without a secret."""
    return hmac.digest(secret, "\0".join(words).encode(), "sha256").hex() if secret else ""


def is_valid_proof(proof: str, secret: bytes, *words: str) -> bool:
    """Return whether the peer knows the secret, in constant time; without a secret an empty proof is valid."""
    return is_same_proof(proof, compute_proof(secret, *words))


def is_same_proof(proof: str, expected: str) -> bool:
    """Return whether a peer's proof is the expected one, in constant time."""
    return hmac.compare_digest(expected.encode(), proof.encode())
