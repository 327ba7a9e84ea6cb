"""Limits on the size of a filter. RocketMQ has no limits but those of the frame and of Java's stack.

A filter is evaluated on the broker's single event loop for every message, and parsed there when a client subscribes, so
its size must be bounded. Parsing the largest allowed filter takes some milliseconds.
"""

from typing import Final

EXPRESSION_CHARACTERS_MAX: Final = 32_768
EXPRESSION_TOKENS_MAX: Final = 2_048
"""The number of names, literals, operators and brackets. A list of a thousand texts for IN fits."""

NESTING_MAX: Final = 64
"""The depth of brackets, and of operators applied to each other; a sequence of AND or OR counts once."""
