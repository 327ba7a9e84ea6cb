"""Kinds of settings that the `.conf` files of brokers and of name servers share: from text to a value and back.

Each parser raises a ValueError that describes valid values; `parse_setting` turns it into a SettingsError with the key.
"""

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final

from gantry_remoting.settings import TlsMode


class SettingsError(ValueError):
    """The settings cannot be used. The text names the keys and the remedy."""


def parse_setting(key: str, text: str, parse: Callable[[str], Any]) -> Any:
    """Return the value of one entry. Raises SettingsError that names key, text and valid values."""
    try:
        return parse(text)
    except ValueError as error:
        reason = "write a whole number" if str(error).startswith("invalid literal") else error
        raise SettingsError(f"{key}={text}: {reason}") from error


def format_value(value: Any) -> str:
    """Return the value as text, as in a `.conf` file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ";".join(str(part) for part in value)
    return str("" if value is None else value)


def ignores_unknown(entries: Mapping[str, str]) -> bool:
    """Return whether the entries have `ignoreUnknownSettings=true`, so that unknown keys are ignored."""
    return entries.get("ignoreUnknownSettings", "").lower() == "true"


def boolean(text: str) -> bool:
    """Parse `true` or `false`, in any case."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("write true or false")


def whole_number(minimum: int, maximum: int = 1 << 62) -> Callable[[str], int]:
    """Return a parser of whole numbers within these bounds."""

    def read(text: str) -> int:
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError(f"{minimum} to {maximum} is allowed")
        return value

    return read


def one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Return a parser of the names of an enumeration, in any case."""

    def read(text: str) -> StrEnum:
        try:
            return kind(text.upper())
        except ValueError as error:
            raise ValueError(f"write one of {', '.join(kind)}") from error

    return read


def tls_mode(text: str) -> TlsMode:
    """Parse one of RocketMQ's TLS modes."""
    try:
        return TlsMode(text.lower())
    except ValueError as error:
        raise ValueError(f"write one of {', '.join(mode.value for mode in TlsMode)}") from error


def check_budget(key: str, budget: int, largest_name: str, largest: int) -> None:
    """Check that a budget of bytes suffices for two honest connections, which could never be served otherwise.

    Raises SettingsError.
    """
    if budget < 2 * largest:
        raise SettingsError(f"{key}={budget} is too small: it must be at least twice {largest_name}, {2 * largest}")


PORT: Final = whole_number(1, 65535)
POSITIVE: Final = whole_number(1)
TURN_READ_BYTES: Final = whole_number(64 * 1024)
"""maxReadBytesPerTurn: no less than the step in which short reads are counted (`turns.SHORT_READS_STEP`)."""
ACL_TIME_WINDOW_MS: Final = whole_number(1_000, 3_600_000)
"""aclTimeWindow: from a second, about the difference of synchronized clocks, to an hour."""
