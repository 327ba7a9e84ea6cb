"""Errors of clusters, and of the commands that make and use them. A message names the remedy, if there is one."""

from __future__ import annotations


class ClusterError(Exception):
    """The root of these errors: a cluster could not be made, used or ended. A broken guarantee is no such error."""


class MissingTool(ClusterError):
    """A program or another requirement is missing on this machine; the message names the remedy."""


class CommandFailed(ClusterError):
    """A program failed or could not be started; its error output, or the end of its log, is in the message."""


class DeadlineExceeded(ClusterError):
    """An event did not happen in time; if the message names a log, read it."""


class ClusterIsUp(ClusterError):
    """This machine carries a cluster already, and can carry only one; use it or end it."""


class NoCluster(ClusterError):
    """There is no cluster on this machine, or it did not start; the message names the remedy."""


class BadChoice(ClusterError):
    """The options contradict each other, are incomplete or have an invalid value; the message names the remedy."""


class ApiRefused(ClusterError):
    """The API server answered with an error; `status` and `reason` are Kubernetes' own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
