"""Errors of filters: an invalid expression, or a message that cannot be evaluated."""


class ExpressionFault(ValueError):
    """The text is not a valid filter. The subscriber must get this text."""


class EvaluationFault(Exception):
    """The message cannot be evaluated, because a text that is no number is compared with one. It does not match."""
