"""Files of bearer tokens: one token per line, ``name:token`` or a bare token; ``#`` begins a comment line.

The sidecar accepts every token of its file; clients of a sidecar present the first token of their own file.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOKEN_CHARACTERS_MIN: Final = 16
"""A shorter token is refused: it could be guessed."""
NAME_CHARACTERS_MAX: Final = 64
"""Limit of the name of a token."""


class BearerToken(NamedTuple):
    """A token and its name, one line of a token file."""

    name: str
    token: str


def parse_tokens(text: str) -> tuple[BearerToken, ...]:
    """Return the tokens of a file. Raises ValueError that names the line, never its content."""
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
                f"line {number}: a token needs at least {TOKEN_CHARACTERS_MIN} ASCII characters, and no space"
            )
        found.append(BearerToken(name[:NAME_CHARACTERS_MAX], token))
    if not found:
        raise ValueError("the file contains no token")
    return tuple(found)


def first_token(text: str) -> str:
    """Return the token that a client presents to a sidecar. Raises ValueError as `parse_tokens` does."""
    return parse_tokens(text)[0].token
