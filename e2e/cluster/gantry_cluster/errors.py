"""What can go wrong before a test has begun; each message names the remedy."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster could not be made, reached or ended; says nothing about what was to run on it."""


class MissingTool(ClusterError):
    """This machine lacks something; install what the message names."""


class CommandFailed(ClusterError):
    """A program ended badly; its last words are in the message."""


class DeadlineExceeded(ClusterError):
    """Something did not happen in its time; read the log that the message names."""


class ClusterIsUp(ClusterError):
    """This machine carries a cluster already, and carries one at a time; use it or take it down."""


class NoCluster(ClusterError):
    """There is no cluster on this machine; make one with `up`."""


class BadChoice(ClusterError):
    """Options that say two things at once, or too little; the message says what to write."""


class ApiRefused(ClusterError):
    """The API server answered with an error; `status` and `reason` are Kubernetes' own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
