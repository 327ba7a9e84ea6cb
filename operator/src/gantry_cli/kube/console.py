"""`gantry console` and `kubectl gantry console`: the consoles of local groups and of groups in a cluster.

    gantry console                               print an address of the local group's own sidecar, and end
    gantry console --data A --data B             serve a list of local groups
    gantry console bg/GROUP                      serve the console of a group in a cluster
    gantry console --namespace NS                serve a list of the groups of a namespace; --all-namespaces: of all

The token of a local group never leaves its file and this machine's sidecars, and that of a group in a cluster never
leaves its pods. A printed address has a one-time code: a copy in a terminal's history, a log or a pipe is worthless
once it has been used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gantry_cli.errors import CliError, InvalidInput, NotFoundError
from gantry_cli.examples import examples
from gantry_cli.kube.cluster import INSTALL, Target, connect, find_group
from gantry_cli.kube.commands import plain_name
from gantry_cli.kube.naming import group_name_in
from gantry_cli.kube.options import (
    LOCAL_HINT,
    cluster_options,
    complete_cluster_group,
    complete_group,
    target_options,
)
from gantry_cli.local.access import console_address
from gantry_cli.local.state import GroupState
from gantry_cli.options import refuse_ignored
from gantry_cli.stack import DEFAULT_DIRECTORY

F = TypeVar("F", bound=Callable[..., Any])

PORT_MAX: Final = 65_535


def _serve_options(command: F) -> F:
    """Add the options of a console that this program serves."""
    for option in (
        click.option("--read-only", "is_read_only", is_flag=True,
                     help="Permit no changes, such as resending dead letters."),
        click.option("--port", type=click.IntRange(0, PORT_MAX), default=0, show_default="a free one",
                     help="Port of this machine on which the console, or the list, is served."),
        click.option("--all-namespaces", "-A", "is_everywhere", is_flag=True,
                     help="List the groups of all namespaces."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog=examples(
        ("gantry console", "print an address of the console of the group that runs here"),
        ('xdg-open "$(gantry console)"', "open it in a browser"),
        ("gantry console --data a --data b", "serve a list of local groups, until Ctrl-C"),
        ("gantry console bg/orders --namespace shop", "serve the console of a group in a cluster, until Ctrl-C"),
        ("gantry console --namespace shop", "serve a list of the groups of a namespace"),
        ("gantry console --all-namespaces", "serve a list of all groups of a cluster"),
    )
)
@click.argument("group", required=False, metavar="[bg/GROUP]", shell_complete=complete_cluster_group)
@click.option("--data", "folders", multiple=True, metavar="DIRECTORY",
              type=click.Path(file_okay=False, path_type=Path),
              help=f"Folder of a local group; may be repeated  [default: {DEFAULT_DIRECTORY}].")  # fmt: skip
@_serve_options
@cluster_options
def console(
    group: str | None, folders: tuple[Path, ...], target: Target, is_everywhere: bool, port: int, is_read_only: bool
) -> None:
    """Open the console of a group, or a list of several groups.

    For one local group, prints an address of the group's own sidecar. It works once and for ten minutes; run the
    command again for another browser or tab. The page may then show the group, read messages and resend dead letters
    for twelve hours.

    For a group in a cluster, and for a list of groups, prints an address on this machine and serves it until Ctrl-C.
    The console uses a forwarded port of one of the group's pods. When that pod goes away, it uses another one, and this
    command reports that. The group's token does not leave its pods. Without bg/GROUP, --namespace, --context,
    --kubeconfig and --all-namespaces select the groups of a cluster.
    """
    in_cluster = group is not None or target != Target() or is_everywhere
    if in_cluster:
        refuse_ignored("with a group in a cluster", ignored={"folders"})
        serve_cluster(target, _name_in(group), port, is_everywhere=is_everywhere, is_read_only=is_read_only)
    elif len(folders) > 1:
        refuse_ignored("with --data", ignored={"is_read_only"})
        serve_folders(folders, port)
    else:
        refuse_ignored("with one local group", ignored={"is_read_only", "port"})
        print_local_address(folders[0] if folders else DEFAULT_DIRECTORY)


@click.command(
    "console",
    epilog=examples(
        ("kubectl gantry console orders -n shop", "serve the console of a group, until Ctrl-C"),
        ("kubectl gantry console -n shop", "serve a list of the groups of a namespace"),
        ("kubectl gantry console -A", "serve a list of all groups of the cluster"),
    ),
)
@click.argument("group", required=False, metavar="[GROUP]", shell_complete=complete_group)
@_serve_options
@target_options("-n", "--namespace", context_help="[default: the kubeconfig's]")
def kubectl_console(group: str | None, target: Target, is_everywhere: bool, port: int, is_read_only: bool) -> None:
    """Open the console of a group, or a list of all groups of the namespace.

    Prints an address on this machine and serves it until Ctrl-C. The console uses a forwarded port of one of the
    group's pods. When that pod goes away, it uses another one, and this command reports that. The group's token does
    not leave its pods. The address works once and for ten minutes.
    """
    serve_cluster(target, plain_name(group), port, is_everywhere=is_everywhere, is_read_only=is_read_only)


def _name_in(text: str | None) -> str | None:
    if text is None:
        return None
    name = group_name_in(text)
    if not name:
        raise InvalidInput(f"{text!r} is not the name of a group", LOCAL_HINT)
    return name


def serve_cluster(target: Target, name: str | None, port: int, *, is_everywhere: bool, is_read_only: bool) -> None:
    """Serve the console of a group, or without a name the list of groups. Raises CliError."""
    with optional_packages():
        from gantry_cli.console.run import serve_group, serve_groups
        from gantry_cli.kube.console_groups import ClusterDirectory, ClusterSidecars
    cluster = connect(target)
    if name is not None:
        refuse_ignored("with a group", ignored={"is_everywhere"})
        find_group(cluster, name)
        serve_group(ClusterSidecars(cluster, name, is_read_only=is_read_only), port)
        return
    if is_everywhere:
        refuse_ignored("with --all-namespaces", ignored={"namespace"})
    namespace = "" if is_everywhere else cluster.namespace
    serve_groups(ClusterDirectory(cluster, namespace, is_read_only=is_read_only), port)


def serve_folders(folders: Sequence[Path], port: int) -> None:
    """Serve the list of local groups. Raises CliError."""
    with optional_packages():
        from gantry_cli.console.local_groups import LocalDirectory
        from gantry_cli.console.run import serve_groups
    serve_groups(LocalDirectory(folders), port)


@contextmanager
def optional_packages() -> Iterator[None]:
    """Raise CliError with the remedy for a package that is not installed: brokers do not need those of a proxy."""
    try:
        yield
    except ImportError as error:
        raise CliError(f"the package {error.name}, which a served console needs, is not installed", INSTALL) from error


def print_local_address(data: Path) -> None:
    """Print an address that opens the console of a local group once, in one browser. Raises CliError."""
    state = GroupState(data)
    record = state.read_group()
    if record is None or not record.console_url:
        raise NotFoundError(f"no group with a console runs in {data}", "start one: gantry up")
    try:
        click.echo(console_address(record, state.token()))
    except OSError as error:
        raise CliError(
            f"the sidecar at {record.console_url} gave no code: {error}", "see `gantry status` and the sidecar's log"
        ) from error
