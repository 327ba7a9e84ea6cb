"""The form of a hand-made fault: a programmer's mistake that breaks one promise to users, and compiles.

A fault replaces one exact piece of one source file. When the code around a piece changes, change ``before`` and
``after`` with it. A fault that has become impossible is replaced by another one of its package.

No fault is equivalent to the code that it replaces, and none changes only a log message.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple


class Fault(NamedTuple):
    """One fault to plant into the source code."""

    name: str
    file: str
    """The source file, from the root of the repository."""

    before: str
    """The original code, which occurs exactly once."""

    after: str
    """The code that replaces it."""

    promise: str
    """What users can rely on, and cannot with this fault."""

    process: tuple[str, ...] = ()
    """The test files, or tests, that start real processes and should see the fault."""

    judges: tuple[str, ...] = ()
    """The suites whose judges should see it in the history of what clients saw (``planted_suites``)."""

    is_about_messages: bool = False
    """Whether clients that only send and receive can notice it, so that a judge of histories should."""

    @property
    def fingerprint(self) -> str:
        """A short digest of the change, so that results of an earlier form of the fault do not count."""
        return sha256("\0".join((self.file, self.before, self.after)).encode()).hexdigest()[:12]


def mutated(fault: Fault, text: str) -> str:
    """Return the text of the file with the fault in it. Raises ValueError unless ``before`` occurs exactly once."""
    count = text.count(fault.before)
    if count != 1:
        raise ValueError(f'fault "{fault.name}": its piece occurs {count} times in {fault.file}, expected once')
    return text.replace(fault.before, fault.after)
