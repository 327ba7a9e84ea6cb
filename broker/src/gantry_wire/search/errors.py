"""The error of an invalid search."""


class SearchFault(ValueError):
    """A condition is invalid. The text is for the user: it names the condition and, within a text, the position."""
