"""Options by which commands name a group in a cluster. `-n` is not among them: it is the name server of clients."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from gantry_cli.errors import Mistyped
from gantry_cli.kube.cluster import Target
from gantry_cli.kube.naming import group_word
from gantry_cli.options import refuse_ignored
from gantry_cli.tls_options import TLS_PARAMETERS

F = TypeVar("F", bound=Callable[..., Any])

LOCAL_ONLY: Final = frozenset({"data", "name_server", "with_internal", "page"}) | TLS_PARAMETERS
"""Parameters of commands that know groups here and groups in a cluster, which say nothing of the latter."""

HERE: Final = "a local group is named with --data; one in a cluster is named bg/GROUP"


def target_options(*namespace: str, of: str = "", context_help: str) -> Callable[[F], F]:
    """Return a decorator that adds --namespace, --context and --kubeconfig and passes them on as a ``target``.

    ``namespace`` are the words of the first one, ``of`` begins the help of options that only a named group has.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_target(
            *arguments: Any, kubeconfig: str | None, context: str | None, namespace: str | None, **others: Any
        ) -> Any:
            return command(*arguments, target=Target(kubeconfig, context, namespace), **others)

        file_help = (
            f"Of {of}  [default: KUBECONFIG or ~/.kube/config]." if of else "[default: KUBECONFIG or ~/.kube/config]"
        )
        place_help = f"Where {of} is  [default: the context's]." if of else "[default: the context's]"
        decorated = click.option("--kubeconfig", metavar="FILE", type=click.Path(), help=file_help)(with_target)
        decorated = click.option("--context", metavar="NAME", shell_complete=complete_context, help=context_help)(
            decorated
        )
        decorated = click.option(*namespace, metavar="NAME", shell_complete=complete_namespace, help=place_help)(
            decorated
        )
        return decorated  # type: ignore[return-value]  # the same command, called with a target

    return decorate


cluster_options: Final = target_options("--namespace", of="bg/GROUP", context_help="Of the kubeconfig, for bg/GROUP.")
"""For `gantry`, where `-n` is the name server of clients."""


def no_exec(help_text: str) -> Callable[[F], F]:
    """--no-exec: leave the insides of pods alone."""
    return click.option("--no-exec", "may_exec", is_flag=True, flag_value=False, default=True, help=help_text)


def group_named(word: str | None, target: Target) -> str | None:
    """The group in `bg/NAME`; None where no group was named. Raises Mistyped for anything else."""
    if word is None:
        if target != Target():
            raise Mistyped("--namespace, --context and --kubeconfig are for a group in a cluster", HERE)
        refuse_ignored("without bg/GROUP", ignored={"may_exec"})
        return None
    name = group_word(word)
    if not name:
        raise Mistyped(f"{word!r} names no group", HERE)
    refuse_ignored(f"with bg/{name}", ignored=LOCAL_ONLY)
    return name


# -- names for the Tab key ---------------------------------------------------------------------------------------------
# Names for the Tab key: groups, namespaces and contexts, as `kubectl` finds them, at once or not at all.
#
# `kubectl` is asked, since it starts in the time in which our own way to a cluster would still be importing, and knows
# how to log in. Nothing here may fail or last: whoever presses Tab has asked for no command. Without a `kubectl` there
# is nothing to offer.


ANSWER_S: Final = 1.5
OFFERED_MAX: Final = 500


def complete_cluster_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`bg/NAME`, once somebody has begun to type that."""
    if not incomplete.startswith(("b", "bg/")):
        return []
    return _items((f"bg/{name}" for name in names(context, "brokergroups.gantry.dev")), incomplete)


def complete_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Plain names, for the plugin."""
    return _items(names(context, "brokergroups.gantry.dev"), incomplete)


def complete_namespace(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the cluster."""
    return _items(names(context, "namespaces", is_namespaced=False), incomplete)


def complete_context(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the kubeconfig."""
    file = context.params.get("kubeconfig")
    words = ["config", "get-contexts", "--output=name", *([f"--kubeconfig={file}"] if file else [])]
    return _items(_lines(words), incomplete)


def names(context: click.Context, kind: str, *, is_namespaced: bool = True) -> list[str]:
    """Of all objects of a kind, where the options typed so far say."""
    given = [("--kubeconfig", "kubeconfig"), ("--context", "context")]
    given += [("--namespace", "namespace")] if is_namespaced else []
    words = [f"{option}={value}" for option, name in given if (value := context.params.get(name))]
    found = _lines(["get", kind, "--output=name", f"--request-timeout={ANSWER_S}s", *words])
    return [line.rpartition("/")[2] for line in found]


def _lines(words: Sequence[str]) -> list[str]:
    nowhere = subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            ["kubectl", *words], stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, text=True,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError):
        return []
    with child:
        try:
            output, _ = child.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # and whatever it has started to log in with
            return []
    return output.split() if child.returncode == 0 else []


def _items(found: object, incomplete: str) -> list[CompletionItem]:
    assert hasattr(found, "__iter__"), "names, one after another"
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:OFFERED_MAX]
