"""Examples at the end of a command's help: what to type, and what it does."""

from typing import Final

COLUMNS_MAX: Final = 92


def examples(*pairs: tuple[str, str]) -> str:
    """An epilog with the examples: side by side where they fit, one below the other where they do not."""
    width = max(len(command) for command, _ in pairs)
    if width + 3 + max(len(meaning) for _, meaning in pairs) <= COLUMNS_MAX:
        lines = [f"  {command.ljust(width)}   {meaning}" for command, meaning in pairs]
    else:
        lines = [line for command, meaning in pairs for line in (f"  {command}", f"      {meaning}")]
    return "\b\nExamples:\n" + "\n".join(lines)
