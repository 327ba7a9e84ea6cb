"""The command `gantry doctor`: observes, decides, and shows what is wrong and how to repair it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from rich.console import RenderableType

from gantry_cli.account import client_settings, credentials
from gantry_cli.doctor.checks import CHECK_IDS, CHECKS, decide_all
from gantry_cli.doctor.facts import Facts
from gantry_cli.doctor.gathering import observe_cluster
from gantry_cli.doctor.kube_checks import KubeFacts, decide_kube
from gantry_cli.doctor.local_facts import LocalGroup, find_local_group, observe_local_group
from gantry_cli.doctor.results import CheckResult, DoctorDocument, Finding, Outcome, count
from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.kube.api_errors import ApiError, cli_error_of
from gantry_cli.kube.cluster import Target, open_group
from gantry_cli.kube.group_observer import GroupObserver, document_of, group_from
from gantry_cli.kube.options import cluster_options, complete_cluster_group, no_exec, parse_group_argument
from gantry_cli.kube.sidecars import STATUS, SidecarClient
from gantry_cli.local.buffers import huge_mounts
from gantry_cli.options import data_option, name_server_option
from gantry_cli.output import OutputFormat, output_option, show, show_names, table
from gantry_cli.progress import spinner
from gantry_cli.text import plural
from gantry_cli.tls_options import is_tls_given
from gantry_client import ClientSettings
from gantry_client.settings import parse_name_servers
from gantry_wire.version import VERSION

TIMEOUT_S: Final = 3.0
"""The default timeout of one connection or answer: that of RocketMQ's clients for a connection."""


def complete_check(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of checks."""
    return [CompletionItem(one.id, help=one.title) for one in CHECKS if one.id.startswith(incomplete)]


@click.command(
    epilog=examples(
        ("gantry doctor", "check the local group of `gantry up`, or 127.0.0.1:9876"),
        ("gantry doctor -n ns.example:9876", "check any cluster, RocketMQ or Gantry"),
        ("gantry --credentials admin.yml doctor -n ns:9876 --tls", "with an account and TLS"),
        ("gantry doctor --only tls --only acl", "run some checks"),
        ("gantry doctor --list", "list the checks"),
        ("gantry doctor bg/orders --namespace shop", "check a group in a Kubernetes cluster"),
        ("gantry doctor --output json | jq '.checks[] | select(.outcome==\"fault\")'", "for programs"),
    )
)
@click.argument("group", required=False, metavar="[bg/GROUP]", shell_complete=complete_cluster_group)
@name_server_option
@data_option
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(CHECK_IDS),
    metavar="CHECK",
    shell_complete=complete_check,
    help="Run this check; repeatable [default: all].",
)
@click.option("--list", "is_listing", is_flag=True, help="List the checks, and run none.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 60),
    default=TIMEOUT_S,
    show_default=True,
    help="How long to wait for each connection and each answer, in seconds.",
)
@cluster_options
@no_exec("Do not query the sidecars of bg/GROUP: a query runs a program in its pods.")
@output_option
def doctor(
    group: str | None, target: Target, may_exec: bool, name_server: str, data: Path, only: Sequence[str],
    is_listing: bool, timeout_s: float, form: OutputFormat,
) -> None:  # fmt: skip
    """Find common set-up faults, and show the remedy of each.

    The command checks name servers, the registered addresses of brokers, certificates, accounts, versions, clocks,
    disks, huge pages, slaves and the subscriptions of consumer groups. It changes nothing. A check that could not be
    made is shown as skipped, with the reason. With access control, use an administrator's account.

    For the local group of `gantry up`, its files and sidecars are read, too, and its own account is used unless you
    name another one. For bg/GROUP, the checks read the group's status, pods and sidecars; what only a client can see
    is skipped.

    Exit codes: 0 no fault was found (there may be warnings, and skipped checks), 1 a fault was found.
    """
    name = parse_group_argument(group, target)
    if is_listing:
        show_names(form, [f"{one.id:<18}{one.title}" for one in CHECKS] if not form.is_document else CHECK_IDS, "")
        return
    if name is not None:
        document = _examine_kube(target, name, only, may_exec=may_exec)
    else:
        document = _examine(name_server, data, only, int(timeout_s * 1000))
    show(form, document, lambda: render(document, is_wide=form.is_wide))
    if document.faults:
        raise click.exceptions.Exit(1)


def _examine(name_server: str, data: Path, only: Sequence[str], timeout_ms: int) -> DoctorDocument:
    local = find_local_group(data)
    is_default = click.get_current_context().get_parameter_source("name_server") is ParameterSource.DEFAULT
    if local is not None and is_default:
        name_server = local.name_servers
    elif local is not None and set(parse_name_servers(name_server)) != set(local.record.addresses):
        local = None  # another cluster is examined
    try:
        settings = _settings(local)
        with spinner("examining the cluster"):
            facts = asyncio.run(_observe(name_server, settings, local, timeout_ms))
    except (ValueError, OSError) as error:  # unusable TLS files or options
        raise CliError(str(error), "check the --tls options") from error
    return _document(name_server, decide_all(facts, only))


def _settings(local: LocalGroup | None) -> ClientSettings:
    """Return the account and TLS settings of the command line, else those of the local group."""
    if local is None or credentials() is not None or is_tls_given():
        return client_settings()
    return local.client_settings()


async def _observe(name_server: str, settings: ClientSettings, local: LocalGroup | None, timeout_ms: int) -> Facts:
    known = () if local is None else local.places
    cluster = asyncio.create_task(observe_cluster(parse_name_servers(name_server), settings, timeout_ms, known))
    own = None if local is None else await asyncio.to_thread(observe_local_group, local)
    observed = await cluster
    return Facts(
        version=VERSION,
        has_account=settings.credentials is not None,
        uses_tls=settings.tls is not None,
        name_servers=observed.name_servers,
        brokers=observed.brokers,
        groups=observed.groups,
        groups_problem=observed.groups_problem,
        local=own,
        huge_mounts={str(mount.path): mount.free_bytes for mount in huge_mounts()},
        now_ms=time.time_ns() // 1_000_000,
    )


def _examine_kube(target: Target, name: str, only: Sequence[str], *, may_exec: bool) -> DoctorDocument:
    cluster, document = open_group(target, name)
    try:
        with spinner("examining the group"):
            observation = GroupObserver(cluster, SidecarClient(cluster, is_wanted=may_exec)).observe(document)
            status = document_of(cluster, observation)
    except ApiError as error:
        raise cli_error_of(error) from error
    objects = observation.objects
    answered = {pod: answer.documents.get(STATUS) for pod, answer in objects.answers.items()}
    group = group_from(document)
    facts = KubeFacts(
        version=VERSION,
        status=status,
        settings={} if group is None else dict(group.spec.broker),
        pods={str(pod["metadata"]["name"]): pod for pod in objects.pods},
        sidecars={pod: found for pod, found in answered.items() if isinstance(found, dict)},
        client_command="gantry doctor -n HOST:PORT, where clients of the group run",
    )
    return _document(f"bg/{name} (namespace {cluster.namespace}, context {cluster.context})", decide_kube(facts, only))


def _document(target: str, results: tuple[CheckResult, ...]) -> DoctorDocument:
    return DoctorDocument(
        at_ms=time.time_ns() // 1_000_000,
        target=target,
        version=VERSION,
        faults=count(results, Outcome.FAULT),
        warnings=count(results, Outcome.WARNING),
        checks=results,
    )


def render(document: DoctorDocument, *, is_wide: bool = False) -> Iterator[RenderableType]:
    """Yield one table of all checks, or of all findings if it is wide, and a paragraph for each fault and warning."""
    title = f"Checks of {document.target}"
    if is_wide:
        every = [(check.id, one) for check in document.checks for one in check.findings]
        found = [(name, str(one.outcome), one.subject, one.found) for name, one in every]
        yield table(title, ("check", "result", "subject", "found"), found)
    else:
        rows = [(check.id, str(check.outcome), _summary(check)) for check in document.checks]
        yield table(title, ("check", "result", "summary"), rows)
    for check in document.checks:
        for finding in check.findings:
            if finding.outcome in (Outcome.FAULT, Outcome.WARNING):
                yield f"{str(finding.outcome).upper()} {check.id}: {finding.subject}"
                yield f"  found:   {finding.found}"
                yield f"  meaning: {finding.meaning}"
                yield f"  remedy:  {finding.remedy}"
    yield f"{plural(document.faults, 'fault')}, {plural(document.warnings, 'warning')}"


def _summary(check: CheckResult) -> str:
    decisive = [finding for finding in check.findings if finding.outcome is check.outcome]
    if check.outcome in (Outcome.FAULT, Outcome.WARNING):
        return ", ".join(finding.subject for finding in decisive)
    first: Finding = decisive[0]
    text = first.found if first.subject == "-" else f"{first.subject}: {first.found}"
    text += f"; {first.remedy}" if first.remedy else ""
    return text if len(decisive) == 1 else f"{text} (and {len(decisive) - 1} more)"
