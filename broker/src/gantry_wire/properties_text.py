"""Java's properties text, the form of settings in requests and of `.conf` files: `key=value` or `key:value` lines.

Java's escapes, continued lines and spaces as separators are not supported.
Errors give the number of a line and not its content, which may be a secret that was sent by mistake.
"""

from collections.abc import Iterator


def property_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, content) of every line that is neither blank nor a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            yield number, stripped


def split_property(line: str) -> tuple[str, str] | None:
    """Return the key and value of a line, or None if the line has no separator after a key."""
    ends = [end for end in (line.find("="), line.find(":")) if end > 0]
    return (line[: min(ends)].strip(), line[min(ends) + 1 :].strip()) if ends else None


def read_properties(text: str, *, is_duplicate_allowed: bool = True) -> dict[str, str]:
    """Return the entries of `text`. Of several entries with one key the last wins, as in Java.

    Raises ValueError for a line without a key and a separator, and for a duplicate key unless `is_duplicate_allowed`.
    """
    entries: dict[str, str] = {}
    for number, line in property_lines(text):
        entry = split_property(line)
        if entry is None:
            raise ValueError(f"line {number} is not key=value")
        key, value = entry
        if key in entries and not is_duplicate_allowed:
            raise ValueError(f"line {number}: {key} is set twice")
        entries[key] = value
    return entries


def read_valid_entries(text: str) -> dict[str, str]:
    """Return the entries of a text whose other lines are ignored; of several entries with one key the last wins."""
    found = (split_property(line) for _, line in property_lines(text))
    return dict(entry for entry in found if entry is not None)


def write_properties(entries: dict[str, str]) -> str:
    """Return `entries` as sorted lines."""
    return "".join(f"{key}={value}\n" for key, value in sorted(entries.items()))
