"""How large a filter may be. RocketMQ has no limits but the frame and Java's stack.

A filter is evaluated on the broker's one loop for every message, and parsed there when somebody subscribes; so its
size must be bounded by us. Parsing the largest takes some milliseconds.
"""

from typing import Final

EXPRESSION_CHARACTERS_MAX: Final = 32_768
EXPRESSION_WORDS_MAX: Final = 2_048
"""Words: names, literals, operators, brackets. A list of a thousand texts for IN fits."""

NESTING_MAX: Final = 64
"""Of brackets, and of operators applied to each other; AND and OR in a row count once."""
