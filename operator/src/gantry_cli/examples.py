"""Examples at the end of the help of a command: commands and their meanings."""

from typing import Final

COLUMNS_MAX: Final = 92
"""The widest line of a help text, in characters."""


def examples(*pairs: tuple[str, str]) -> str:
    """Return a help epilog with the examples: in two columns if they fit, otherwise one below the other."""
    width = max(len(command) for command, _ in pairs)
    if width + 3 + max(len(meaning) for _, meaning in pairs) <= COLUMNS_MAX:
        lines = [f"  {command.ljust(width)}   {meaning}" for command, meaning in pairs]
    else:
        lines = [line for command, meaning in pairs for line in (f"  {command}", f"      {meaning}")]
    return "\b\nExamples:\n" + "\n".join(lines)
