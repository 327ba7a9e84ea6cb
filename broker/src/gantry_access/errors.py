"""What can be wrong with a file of accounts or credentials."""

from typing import final


@final
class AccessFileError(ValueError):
    """A file of accounts or credentials cannot be used. The operator should mend it.

    The text names the file, and the account and field or the line where there is one. It never holds a secret, and so
    never quotes a line.
    """
