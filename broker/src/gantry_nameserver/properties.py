"""Java's properties text, as configuration travels and as `.conf` files are written: `key=value` lines."""


def read_properties(text: str) -> dict[str, str]:
    """The entries of `text`; later ones win. Raises ValueError for a line that is none."""
    entries: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        ends = [end for end in (stripped.find("="), stripped.find(":")) if end > 0]
        if not ends:
            raise ValueError(f"line {number} is no key=value: {stripped[:60]!r}")
        entries[stripped[: min(ends)].strip()] = stripped[min(ends) + 1 :].strip()
    return entries


def write_properties(entries: dict[str, str]) -> str:
    """`entries` as lines, sorted."""
    return "".join(f"{key}={value}\n" for key, value in sorted(entries.items()))
