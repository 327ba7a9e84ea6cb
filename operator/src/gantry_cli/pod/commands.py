"""`gantry pod broker`, `nameserver`, `sidecar`, `proxy`, ...: the commands in the containers of the operator's pods.

The operator writes their settings; by hand they are of use only to examine how a container works.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.pod.certificates import VALIDITY, IssueSettings, PodCertificate, issue_certificate
from gantry_cli.pod.member import Addresses, BrokerWatchdog, merge_conf, parse_pod_name
from gantry_cli.pod.sidecar_query import READ_TOKENS, SIDECAR_PORT, TOKENS, query_sidecar
from gantry_cli.pod.supervisor import PodServer, PodSupervisor
from gantry_spec.cluster_objects import PROXY_HTTP_PORT, place_of_pod, proxy_pods_name

ALIVE_PORT: Final = 10913
"""The port of the liveness probe, on which this process accepts connections."""
PEERS: Final = "peers"
"""The file in the group's ConfigMap with the URLs of sidecars."""
SIDECAR_STATE: Final = Path(tempfile.gettempdir()) / "gantry-sidecar"
"""The directory for the files of the pod's sidecar, in the volume for temporary files: they survive a restart of the
container. It is chosen here and not in the pod's template, a change of which would replace the pods of all groups."""
PASSTHROUGH: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""The settings of click for a command that passes its options on."""
TOLERANT: Final = {"ignore_unknown_options": True}
"""The operator that wrote a pod's arguments may be newer than the pod's image: unknown options are ignored with a note.
Each server is started with the same rule for its settings."""
CODES_PATH: Final = "/v1/console/codes"
IGNORE_UNKNOWN_SETTINGS: Final = {"ignoreUnknownSettings": "true"}

alive_option = click.option(
    "--alive", type=click.IntRange(0, 65535), default=ALIVE_PORT, show_default=True,
    help="Port that accepts connections while this process works; 0 for none.",
)  # fmt: skip
url_option = click.option(
    "--url", default=f"http://127.0.0.1:{SIDECAR_PORT}", show_default=True, help="Address of the sidecar."
)
ignored_arguments = click.argument("ignored", nargs=-1, type=click.UNPROCESSED, metavar="")
folder = click.Path(file_okay=False, path_type=Path)


def certificate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the certificate that a pod issues for itself."""
    for option in reversed(
        (
            click.option("--authority", type=folder,
                         help="Folder with ca.crt and ca.key of the group's authority. With it the pod issues a"
                              " certificate for itself, and renews it."),
            click.option("--certificates", type=folder, default=Path("/etc/gantry/certificates"), show_default=True,
                         help="Folder in which tls.crt, tls.key and ca.crt are written."),
            click.option("--certificate-host", "certificate_hosts", metavar="NAME", multiple=True,
                         help="Host name in the certificate, together with its addresses; may be given several"
                              " times. POD_IPS has the addresses of the pod."),
            click.option("--certificate-names", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                         help="File with further names and addresses, one a line."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(
    epilog=examples(
        ("gantry pod broker", "run the broker of a pod that the operator created"),
        ("gantry pod nameserver --data DIR", "run a name server"),
    )
)
def pod() -> None:
    """Run one server as the first process of a container.

    A server that exits is restarted: at once up to five times in a minute, then with a delay. With exit code 2, or
    after twelve short runs, the container ends. On SIGTERM the server is stopped and waited for. The operator's pods
    run these commands; on your own machine, use `gantry up`. Unknown options and settings of a newer version are
    ignored, and named on standard error.
    """


@pod.command(
    "broker",
    context_settings=TOLERANT,
    epilog=examples(
        ("gantry pod broker", "in a pod that the operator created"),
        ("gantry pod broker --alive 0", "without an alive port"),
    ),
)
@click.option("--run", "run_folder", type=folder, default=Path("/run/gantry"), show_default=True,
              help="Folder for the pod's own files and the broker's status page.")  # fmt: skip
@click.option("--stall-timeout", "stalled_s", type=click.IntRange(0, 3600), default=60, show_default=True,
              metavar="SECONDS",
              help="Kill a broker that has published no status for this long; 0 for never.")  # fmt: skip
@alive_option
@ignored_arguments
def broker(run_folder: Path, stalled_s: int, alive: int, ignored: tuple[str, ...]) -> None:
    """Run the broker of this pod.

    POD_NAME determines the member; GANTRY_BROKER_CONF has the settings that the pod was created with. As a slave the
    broker registers with the address of the Service that has the pod's name, as the master with that of its shard.
    """
    _report_ignored(ignored)
    member = parse_pod_name(_variable(os.environ, "POD_NAME"))
    if member is None:
        name = os.environ["POD_NAME"]
        remedy = "set it to GROUP-SHARD-master-0 or GROUP-SHARD-slave-ORDINAL"
        raise CliError(f"POD_NAME={name} is not the name of a broker's pod", remedy)
    addresses = Addresses(run_folder, _variable(os.environ, "POD_NAMESPACE"))
    start_settings = _variable(os.environ, "GANTRY_BROKER_CONF")

    def command() -> list[str]:
        own = {
            "brokerId": str(member.number),
            "brokerIP1": addresses.address_of(member.own_service),
            "brokerMasterIP": addresses.address_of(member.role_service),
            "memoryScope": os.environ.get("POD_UID", ""),
        }
        path = run_folder / "broker.conf"
        path.write_text(merge_conf(start_settings, own | IGNORE_UNKNOWN_SETTINGS))
        return ["gantry_broker", "-c", str(path)]

    watchdog = BrokerWatchdog(run_folder / "status", stalled_s)
    _run_server(PodServer(name="broker", command=command, is_stalled=watchdog.is_stalled, alive=_alive(alive)))


@pod.command(
    "nameserver",
    context_settings=TOLERANT,
    epilog=examples(("gantry pod nameserver --data DIR", "with GANTRY_NAMESERVER_CONF=listenPort=9876")),
)
@click.option(
    "--data",
    type=folder,
    default=Path("/var/lib/gantry"),
    show_default=True,
    help="Folder of the name server's tables.",
)
@click.option("--run", "run_folder", type=folder, default=Path("/tmp"), show_default=True,
              help="Folder for its settings file.")  # fmt: skip
@certificate_options
@alive_option
@ignored_arguments
def nameserver(data: Path, run_folder: Path, alive: int, ignored: tuple[str, ...], **certificate: Any) -> None:
    """Run the name server of this pod, with the settings in GANTRY_NAMESERVER_CONF."""
    _report_ignored(ignored)
    text = _variable(os.environ, "GANTRY_NAMESERVER_CONF")
    own = _own_certificate(**certificate)

    def command() -> list[str]:
        own.require()
        path = run_folder / "namesrv.conf"
        path.write_text(merge_conf(text, IGNORE_UNKNOWN_SETTINGS))
        return ["gantry_nameserver", "--data", str(data), "-c", str(path)]

    _run_server(PodServer(name="name server", command=command, keep=own.keep, alive=_alive(alive)))


@pod.command(
    "proxy",
    context_settings=PASSTHROUGH,
    epilog=examples(("gantry pod proxy --authority DIR -- --config proxy.yaml", "issue a certificate, and serve")),
)
@certificate_options
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def proxy(arguments: tuple[str, ...], **certificate: Any) -> None:
    """Run the gRPC proxy of this pod: `gantry proxy` with ARGUMENTS."""
    own = _own_certificate(**certificate)

    def command() -> list[str]:
        own.require()
        return ["gantry_proxy", *arguments]

    _run_server(PodServer(name="proxy", command=command, keep=own.keep))


@pod.command(
    "sidecar",
    context_settings=PASSTHROUGH,
    epilog=examples(("gantry pod sidecar -- --page RUN/status --control RUN/control.sock --store STORE", "by hand")),
)
@click.option("--group", "configuration", type=folder, default=Path("/etc/gantry/group"), show_default=True,
              help="Folder with the list of peers.")  # fmt: skip
@certificate_options
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sidecar(configuration: Path, arguments: tuple[str, ...], **certificate: Any) -> None:
    """Run the sidecar of this pod: `gantry sidecar` with ARGUMENTS and with the group's other sidecars as its peers.

    It shows the gRPC proxies of the group, if there are some. When the group grows or shrinks, the sidecar is restarted
    with the new peers, without a restart of its pod.
    """
    path = configuration / PEERS
    started_with: list[str] = [""]
    own_certificate = _own_certificate(**certificate)

    def command() -> list[str]:
        own_certificate.require()
        started_with[0] = _text(path)
        own = f"//{os.environ.get('POD_NAME', '')}."
        peers = [word for url in started_with[0].split() if own not in url for word in ("--peer", url)]
        ours = ["gantry_admin", "--ignore-unknown", "--state", str(SIDECAR_STATE)]
        return [*ours, *arguments, *peers, *_proxy_options(os.environ)]

    def is_changed() -> bool:
        return _text(path) != started_with[0]

    _run_server(PodServer(name="sidecar", command=command, keep=own_certificate.keep, is_changed=is_changed))


@pod.command(
    "certificate",
    epilog=examples(
        ("gantry pod certificate --authority DIR --certificate-host orders-0.shop.svc", "write to the default folder")
    ),
)
@certificate_options
def certificate(**options: Any) -> None:
    """Issue a certificate for this pod once.

    It is valid for 30 days, for the names and addresses of the pod. The other commands run this one every ten days, and
    when the authority or a name changes. Servers load the new files without a restart.
    """
    settings = _issue_settings(**options)
    if settings is None:
        raise click.UsageError("Missing option '--authority'.")
    unresolved = issue_certificate(settings, os.environ, datetime.now(UTC))
    click.echo(f"issued a certificate for {VALIDITY.days} days: {settings.folder}", err=True)
    for host in unresolved:
        click.echo(f"cannot resolve {host}: the certificate has no address of it; trying again in a minute", err=True)


@pod.command(
    "get",
    epilog=examples(
        ("gantry pod get /v1/status", "in a sidecar's container: the status of its broker"),
        ("gantry pod get --raw /v1/bundle > bundle.tar.gz", "save the sidecar's bundle"),
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@url_option
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), default=READ_TOKENS, show_default=True,
              help="File with the token to send.")  # fmt: skip
@click.option("--raw", "is_raw", is_flag=True, help="With one PATH, write the answer unchanged.")
def get(paths: tuple[str, ...], url: str, token_file: Path, is_raw: bool) -> None:
    """Send GET requests to the sidecar of this pod, with the token that is mounted here.

    A user who may run programs in the pod needs no token of his own, and the token does not leave the pod. Prints one
    JSON object with the answer to each PATH, or, with --raw, the one answer unchanged. Cannot give orders.
    """
    _print_answers(paths, url, token_file, is_raw=is_raw, content="body")


def _print_answers(paths: tuple[str, ...], url: str, token_file: Path, *, is_raw: bool, content: str) -> None:
    if is_raw and len(paths) > 1:
        raise click.UsageError("--raw needs exactly one PATH")
    answers = {path: query_sidecar(url, path, token_file) for path in paths}
    if not is_raw:
        click.echo(msgspec.json.encode({path: answer.as_document(content) for path, answer in answers.items()}))
        return
    [answer] = answers.values()
    if answer.status != 200:
        raise CliError(answer.reason)
    sys.stdout.buffer.write(answer.body)


# The former name of `get`, and of what it prints: a `kubectl gantry` of an earlier version runs it in these pods.
_ask = partial(_print_answers, content="said")
pod.add_command(click.Command("ask", callback=_ask, params=get.params, help=get.help, epilog=get.epilog, hidden=True))


@pod.command(
    "console-code",
    epilog=examples(("gantry pod console-code", "in a sidecar's container: make a code that can read")),
)
@click.option("--may-change", is_flag=True, help="Make a code that also permits changes, such as resending messages.")
@url_option
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path),
              help=f"File with the token to send [default: {READ_TOKENS}, with --may-change {TOKENS}].")  # fmt: skip
def console_code(may_change: bool, url: str, token_file: Path | None) -> None:
    """Make a one-time code for the console of the sidecar of this pod, with the token that is mounted here.

    Prints one JSON object: the code, its lifetime in seconds, and the SHA-256 of the sidecar's certificate, which is
    empty without TLS. `gantry console bg/GROUP` runs this command in the pod, so that the token does not leave it.
    """
    answer = query_sidecar(url, CODES_PATH, token_file or (TOKENS if may_change else READ_TOKENS), method="POST")
    document = answer.as_document()
    if not isinstance(document.get("body"), dict):
        raise CliError(f"the sidecar made no code: {document['reason']}", "check the sidecar's log and its token file")
    click.echo(msgspec.json.encode({**document["body"], "certificate_sha256": answer.certificate_sha256}))


def _proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Return the options for the proxies of this pod's group, which share one name; none outside of a broker's pod."""
    found = place_of_pod(environment.get("POD_NAME", ""))
    namespace = environment.get("POD_NAMESPACE", "")
    if found is None or not namespace:
        return []
    return ["--proxy", f"http://{proxy_pods_name(found[0])}.{namespace}.svc:{PROXY_HTTP_PORT}"]


def _issue_settings(
    authority: Path | None,
    certificates: Path,
    certificate_hosts: tuple[str, ...],
    certificate_names: Path | None,
) -> IssueSettings | None:
    """Return the settings that the options of a command give; None where the pod issues no certificate."""
    if authority is None:
        return None
    return IssueSettings(
        authority=authority, folder=certificates, hosts=certificate_hosts, names_file=certificate_names
    )


def _own_certificate(**options: Any) -> PodCertificate:
    return PodCertificate(_issue_settings(**options))


def _run_server(server: PodServer) -> None:
    sys.exit(PodSupervisor(server).run())


def _report_ignored(words: tuple[str, ...]) -> None:
    """Print the names of ignored options, without their values, which may be secret."""
    if words:
        found = ", ".join(word.partition("=")[0] for word in words if word.startswith("-")) or "an argument"
        click.echo(f"gantry pod: ignored options that this version does not know: {found}", err=True)


def _alive(port: int) -> tuple[str, int] | None:
    return ("", port) if port else None


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise CliError(f"{name} is not set", "set it as in the pods that the operator creates")
    return value


def _text(path: Path) -> str:
    """Return the text of a mounted file, empty if it is missing, since the file is optional."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
