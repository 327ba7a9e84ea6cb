"""Errors that occur before a test has begun. Each message names the remedy."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster could not be made, reached or ended. The error is not one of the programs on it."""


class MissingTool(ClusterError):
    """A program is missing on this machine; install what the message names."""


class CommandFailed(ClusterError):
    """A program failed; the end of its output is in the message."""


class DeadlineExceeded(ClusterError):
    """An event did not happen in time; read the log that the message names."""


class ClusterIsUp(ClusterError):
    """This machine carries a cluster already, and can carry only one; use it or end it."""


class NoCluster(ClusterError):
    """There is no cluster on this machine; make one with `up`."""


class BadChoice(ClusterError):
    """The options contradict each other or are incomplete; the message names the remedy."""


class ApiRefused(ClusterError):
    """The API server answered with an error; `status` and `reason` are Kubernetes' own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
