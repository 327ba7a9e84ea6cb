"""Sizes as text for people, in one format everywhere: broker, command line, and the reasons of decisions."""


def bytes_text(size: int | None) -> str:
    """Return a size in RocketMQ's format, with a binary unit and one decimal: `1536` -> `1.5 KiB`.

    An unknown size, None, is never shown as zero.
    """
    if size is None:
        return "an unknown number of bytes"
    power = min(max(abs(size).bit_length() - 1, 0) // 10, 6)
    return f"{size} B" if power == 0 else f"{size / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
