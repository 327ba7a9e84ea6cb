"""The options that name a group in a cluster, and their shell completion.

`-n` is the namespace for `kubectl gantry` only: for `gantry` it is the name server of clients.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from gantry_cli.errors import InvalidInput
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.naming import group_name_in
from gantry_cli.options import refuse_ignored
from gantry_cli.tls_options import TLS_PARAMETERS

F = TypeVar("F", bound=Callable[..., Any])

LOCAL_OPTIONS: Final = frozenset({"data", "name_server", "with_internal", "page"}) | TLS_PARAMETERS
"""Parameters that have no effect on a group in a cluster, of commands for both local groups and clusters."""

LOCAL_HINT: Final = "name a local group with --data, a group in a cluster with bg/GROUP"
"""The remedy for an option that does not apply to this kind of group."""


def target_options(*namespace: str, group_text: str = "", context_help: str) -> Callable[[F], F]:
    """Return a decorator that adds --namespace, --context and --kubeconfig and passes them on as a ``target``.

    ``namespace`` has the names of the first option. ``group_text`` names the group in the help, if one is needed.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_target(
            *arguments: Any, kubeconfig: str | None, context: str | None, namespace: str | None, **others: Any
        ) -> Any:
            return command(*arguments, target=Target(kubeconfig, context, namespace), **others)

        file_default, place_default = "[default: KUBECONFIG or ~/.kube/config]", "[default: the context's]"
        file_help = f"Kubeconfig for {group_text}  {file_default}." if group_text else file_default
        place_help = f"Namespace of {group_text}  {place_default}." if group_text else place_default
        decorated = click.option("--kubeconfig", metavar="FILE", type=click.Path(), help=file_help)(with_target)
        decorated = click.option("--context", metavar="NAME", shell_complete=complete_context, help=context_help)(
            decorated
        )
        decorated = click.option(*namespace, metavar="NAME", shell_complete=complete_namespace, help=place_help)(
            decorated
        )
        return decorated  # type: ignore[return-value]  # the same command, called with a target

    return decorate


cluster_options: Final = target_options(
    "--namespace", group_text="bg/GROUP", context_help="Context of the kubeconfig, for bg/GROUP."
)
"""The options for `gantry`, where `-n` is the name server of clients."""


def no_exec(help_text: str) -> Callable[[F], F]:
    """Return the option --no-exec: run no program in pods."""
    return click.option("--no-exec", "may_exec", is_flag=True, flag_value=False, default=True, help=help_text)


def parse_group_argument(word: str | None, target: Target) -> str | None:
    """Return the group in `bg/NAME`; None if no group was named. Raises InvalidInput for any other text."""
    if word is None:
        if target != Target():
            raise InvalidInput("--namespace, --context and --kubeconfig are for a group in a cluster", LOCAL_HINT)
        refuse_ignored("without bg/GROUP", ignored={"may_exec"})
        return None
    name = group_name_in(word)
    if not name:
        raise InvalidInput(f"{word!r} is not the name of a group", LOCAL_HINT)
    refuse_ignored(f"with bg/{name}", ignored=LOCAL_OPTIONS)
    return name


# -- shell completion --------------------------------------------------------------------------------------------------
# Completes the names of groups, namespaces and contexts with `kubectl`, within a short timeout.
#
# `kubectl` starts faster than the Python client can be imported, and knows how to log in. Completion must neither fail
# nor hang, since the user has not run a command yet. Without `kubectl` there are no suggestions.


ANSWER_TIMEOUT_S: Final = 1.5
OFFERED_MAX: Final = 500
"""The most names that are offered at a time."""


def complete_cluster_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `bg/NAME` after its first letter."""
    if not incomplete.startswith(("b", "bg/")):
        return []
    return _items((f"bg/{name}" for name in names(context, "brokergroups.gantry.dev")), incomplete)


def complete_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete plain names of groups, for the plugin."""
    return _items(names(context, "brokergroups.gantry.dev"), incomplete)


def complete_namespace(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the namespaces of the cluster."""
    return _items(names(context, "namespaces", is_namespaced=False), incomplete)


def complete_context(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the contexts of the kubeconfig."""
    file = context.params.get("kubeconfig")
    words = ["config", "get-contexts", "--output=name", *([f"--kubeconfig={file}"] if file else [])]
    return _items(_lines(words), incomplete)


def names(context: click.Context, kind: str, *, is_namespaced: bool = True) -> list[str]:
    """Return the names of all objects of a kind, in the cluster and namespace of the options typed so far."""
    given = [("--kubeconfig", "kubeconfig"), ("--context", "context")]
    given += [("--namespace", "namespace")] if is_namespaced else []
    words = [f"{option}={value}" for option, name in given if (value := context.params.get(name))]
    found = _lines(["get", kind, "--output=name", f"--request-timeout={ANSWER_TIMEOUT_S}s", *words])
    return [line.rpartition("/")[2] for line in found]


def _lines(words: Sequence[str]) -> list[str]:
    null_device = subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            ["kubectl", *words], stdin=null_device, stdout=subprocess.PIPE, stderr=null_device, text=True,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError):
        return []
    with child:
        try:
            output, _ = child.communicate(timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with the login helpers that it has started
            return []
    return output.split() if child.returncode == 0 else []


def _items(found: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:OFFERED_MAX]
