"""Files of bearer tokens: one token per line, ``name:token`` or a bare token; ``#`` begins a comment line.

The sidecar admits every token of its file; programs that ask a sidecar show the first token of theirs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOKEN_CHARACTERS_MIN: Final = 16
NAME_CHARACTERS_MAX: Final = 64


class BearerToken(NamedTuple):
    """One line of a file of tokens."""

    name: str
    token: str


def parse_tokens(text: str) -> tuple[BearerToken, ...]:
    """Return the tokens of a file. Raises ValueError that names the line, and never what is in it."""
    found: list[BearerToken] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        name, separator, token = content.partition(":")
        if not separator:
            name, token = f"line-{number}", content
        if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError(
                f"line {number}: a token has at least {TOKEN_CHARACTERS_MIN} ASCII characters, and no space"
            )
        found.append(BearerToken(name[:NAME_CHARACTERS_MAX], token))
    if not found:
        raise ValueError("there is no token in it")
    return tuple(found)


def first_token(text: str) -> str:
    """Return the token to show to a sidecar. Raises ValueError as `parse_tokens` does."""
    return parse_tokens(text)[0].token
