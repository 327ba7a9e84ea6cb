"""SQL92 filters over message properties, with the verdicts of RocketMQ 5.3.3's evaluator.

    text --tokens--> words --parser--> terms --SqlFilter--> True, False, None (unknown), or a fault

A term is a closure that is composed while the text is parsed; there is no tree to walk for each message. What is
legal, what compares with what and which text is a number are Java's rules, oddities included: a consumer that moves
here must get the messages that it got there. `docs/filters.md` tells users; decision 0012 says what we gave up.

No I/O, no clock. Nothing here knows of topics or subscriptions.
"""

from gantry_wire.sql92.errors import EvaluationFault, ExpressionFault
from gantry_wire.sql92.filter import SqlFilter, parse_sql_filter
from gantry_wire.sql92.limits import EXPRESSION_CHARACTERS_MAX, EXPRESSION_WORDS_MAX, NESTING_MAX

__all__ = [
    "EXPRESSION_CHARACTERS_MAX",
    "EXPRESSION_WORDS_MAX",
    "NESTING_MAX",
    "EvaluationFault",
    "ExpressionFault",
    "SqlFilter",
    "parse_sql_filter",
]
