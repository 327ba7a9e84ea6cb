"""SQL92 filters over message properties, with the results of RocketMQ 5's evaluator.

    text --tokens--> tokens --parser--> terms --SqlFilter--> True, False, None (unknown), or a fault

A term is a closure that is composed while the text is parsed, so there is no tree to walk for each message. Which
expressions are legal, which values can be compared and which texts are numbers follows Java's rules, oddities included:
a consumer that moves from RocketMQ must get the same messages. `docs/filters.md` is the user's page;
`broker/docs/decisions/0012-filters-are-closures-by-hand.md` names the features of RocketMQ that it leaves out.

The package has no I/O and no clock, and does not depend on topics or subscriptions.
"""

from gantry_wire.sql92.errors import EvaluationFault, ExpressionFault
from gantry_wire.sql92.filter import SqlFilter, parse_sql_filter
from gantry_wire.sql92.limits import EXPRESSION_CHARACTERS_MAX, EXPRESSION_TOKENS_MAX, NESTING_MAX

__all__ = [
    "EXPRESSION_CHARACTERS_MAX",
    "EXPRESSION_TOKENS_MAX",
    "NESTING_MAX",
    "EvaluationFault",
    "ExpressionFault",
    "SqlFilter",
    "parse_sql_filter",
]
