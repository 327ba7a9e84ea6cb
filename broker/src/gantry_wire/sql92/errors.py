"""What can be wrong with a filter: its text, or a message that it is asked about."""


class ExpressionFault(ValueError):
    """The text is no filter. Whoever subscribes must be told."""


class EvaluationFault(Exception):
    """This message cannot be judged: a text that is no number is compared with one. It does not match."""
