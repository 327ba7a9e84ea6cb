"""The error of a file of accounts or credentials."""

from typing import final


@final
class AccessFileError(ValueError):
    """A file of accounts or credentials is unusable. An administrator should correct it.

    The text names the file, and the account and field or the line where possible. It never contains a secret, and so
    never quotes a line.
    """
