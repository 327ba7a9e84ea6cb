"""Names for the Tab key: groups, namespaces and contexts, as `kubectl` finds them, at once or not at all.

`kubectl` is asked, since it starts in the time in which our own way to a cluster would still be importing, and knows
how to log in. Nothing here may fail or last: whoever presses Tab has asked for no command. Without a `kubectl` there is
nothing to offer.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

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
