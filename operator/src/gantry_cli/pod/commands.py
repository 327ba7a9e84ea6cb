"""`gantry pod broker`, `gantry pod nameserver`, `gantry pod sidecar`: what the operator's containers run.

The operator writes what they read; by hand they are of use only to look at how a container works.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import msgspec

from gantry_cli.errors import CliError
from gantry_cli.examples import examples
from gantry_cli.pod.asking import READ_TOKENS, SIDECAR_PORT, asked
from gantry_cli.pod.member import Addresses, Pulse, member_of_pod, with_own
from gantry_cli.pod.supervisor import PodServer, PodSupervisor

ALIVE_PORT: Final = 10913
PEERS: Final = "peers"
PASS_ON: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
TOLERANT: Final = {"ignore_unknown_options": True}
"""The operator that wrote a pod's words may be newer than the pod's image: what this version does not know is left out,
and said. Each server gets the same order for what it reads."""
LEAVE_OUT: Final = {"ignoreUnknownSettings": "true"}

alive_option = click.option(
    "--alive", type=click.IntRange(0, 65535), default=ALIVE_PORT, show_default=True,
    help="Port that is open as long as this process works; 0 for none.",
)  # fmt: skip
newer_words = click.argument("newer", nargs=-1, type=click.UNPROCESSED, metavar="")
folder = click.Path(file_okay=False, path_type=Path)


@click.group(
    epilog=examples(
        ("gantry pod broker", "in the operator's pods, with what it wrote there"),
        ("gantry pod nameserver --data DIR", "the same for a name server"),
    )
)
def pod() -> None:
    """Run one server as the first process of a container.

    It is started again at once when it dies, asked to end at SIGTERM, and waited for. These commands are what pods of
    the operator run; on a machine of your own, `gantry up` is what you want. Options and settings of a newer version
    are left out, and named on standard error.
    """


@pod.command(
    "broker",
    context_settings=TOLERANT,
    epilog=examples(
        ("gantry pod broker", "in a pod that the operator made"),
        ("gantry pod broker --alive 0", "without a port that says that it works"),
    ),
)
@click.option("--run", "run_folder", type=folder, default=Path("/run/gantry"), show_default=True,
              help="Folder for what the pod remembers, and with the broker's status page.")  # fmt: skip
@click.option("--still", type=click.IntRange(0, 3600), default=60, show_default=True, metavar="SECONDS",
              help="Kill a broker that has published nothing for so long; 0 for never.")  # fmt: skip
@alive_option
@newer_words
def broker(run_folder: Path, still: int, alive: int, newer: tuple[str, ...]) -> None:
    """Run the broker of this pod.

    POD_NAME says which member it is, GANTRY_BROKER_CONF what the pod was made with. It is registered as a slave under
    the address of the Service that has the pod's name, and as the master under that of its shard's.
    """
    _leave_out(newer)
    member = member_of_pod(_variable(os.environ, "POD_NAME"))
    if member is None:
        raise CliError(f"POD_NAME={os.environ['POD_NAME']} is no broker's", "it is like GROUP-SHARD-slave-ORDINAL")
    addresses = Addresses(run_folder, _variable(os.environ, "POD_NAMESPACE"))
    cold = _variable(os.environ, "GANTRY_BROKER_CONF")

    def command() -> list[str]:
        own = {
            "brokerId": str(member.number),
            "brokerIP1": addresses.of(member.own_service),
            "brokerMasterIP": addresses.of(member.role_service),
            "memoryScope": os.environ.get("POD_UID", ""),
        }
        path = run_folder / "broker.conf"
        path.write_text(with_own(cold, own | LEAVE_OUT))
        return ["gantry_broker", "-c", str(path)]

    pulse = Pulse(run_folder / "status", still)
    _keep(PodServer(name="broker", command=command, is_still=pulse.is_still, alive=_alive(alive)))


@pod.command(
    "nameserver",
    context_settings=TOLERANT,
    epilog=examples(("gantry pod nameserver --data DIR", "with GANTRY_NAMESERVER_CONF=listenPort=9876")),
)
@click.option("--data", type=folder, default=Path("/var/lib/gantry"), show_default=True, help="Folder of its tables.")
@click.option("--run", "run_folder", type=folder, default=Path("/tmp"), show_default=True,
              help="Folder for its settings file.")  # fmt: skip
@alive_option
@newer_words
def nameserver(data: Path, run_folder: Path, alive: int, newer: tuple[str, ...]) -> None:
    """Run the name server of this pod, with the settings in GANTRY_NAMESERVER_CONF."""
    _leave_out(newer)
    text = _variable(os.environ, "GANTRY_NAMESERVER_CONF")

    def command() -> list[str]:
        path = run_folder / "namesrv.conf"
        path.write_text(with_own(text, LEAVE_OUT))
        return ["gantry_nameserver", "--data", str(data), "-c", str(path)]

    _keep(PodServer(name="name server", command=command, alive=_alive(alive)))


@pod.command(
    "sidecar",
    context_settings=PASS_ON,
    epilog=examples(("gantry pod sidecar -- --page RUN/status --control RUN/control.sock --store STORE", "by hand")),
)
@click.option("--group", "configuration", type=folder, default=Path("/etc/gantry/group"), show_default=True,
              help="Folder with the file of peers.")  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sidecar(configuration: Path, arguments: tuple[str, ...]) -> None:
    """Run the sidecar of this pod: `gantry sidecar` with ARGUMENTS and with the group's other sidecars as its peers.

    When the group grows or shrinks it is started again with the peers of then, and no pod has to be.
    """
    path = configuration / PEERS
    started_with: list[str] = [""]

    def command() -> list[str]:
        started_with[0] = _text(path)
        own = f"//{os.environ.get('POD_NAME', '')}."
        peers = [word for url in started_with[0].split() if own not in url for word in ("--peer", url)]
        return ["gantry_admin", "--ignore-unknown", *arguments, *peers]

    _keep(PodServer(name="sidecar", command=command, is_changed=lambda: _text(path) != started_with[0]))


@pod.command(
    "ask",
    epilog=examples(
        ("gantry pod ask /v1/status", "in a sidecar's container: what it says of its broker"),
        ("gantry pod ask --raw /v1/bundle > bundle.tar.gz", "what it packs, as it is"),
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--url", default=f"http://127.0.0.1:{SIDECAR_PORT}", show_default=True, help="Of the sidecar.")
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), default=READ_TOKENS, show_default=True,
              help="With the token that is shown.")  # fmt: skip
@click.option("--raw", "is_raw", is_flag=True, help="Of one PATH: the answer as it is.")
def ask(paths: tuple[str, ...], url: str, token_file: Path, is_raw: bool) -> None:
    """Ask the sidecar of this pod, with the token that is mounted here.

    So whoever may run something in the pod need not be shown a token, and none leaves it. One JSON object with what was
    answered to each PATH, or, with --raw, the one answer as it is. Only questions are asked, no orders given.
    """
    if is_raw and len(paths) > 1:
        raise click.UsageError("--raw is for one PATH")
    answers = {path: asked(url, path, token_file) for path in paths}
    if not is_raw:
        click.echo(msgspec.json.encode({path: answer.as_document() for path, answer in answers.items()}))
        return
    [answer] = answers.values()
    if answer.status != 200:
        raise CliError(answer.reason)
    sys.stdout.buffer.write(answer.body)


def _keep(charge: PodServer) -> None:
    sys.exit(PodSupervisor(charge).run())


def _leave_out(words: tuple[str, ...]) -> None:
    """Name what is for a newer version; no values, which may be anything."""
    if words:
        found = ", ".join(word.partition("=")[0] for word in words if word.startswith("-")) or "a word"
        click.echo(f"gantry pod: options are left out that this version does not know: {found}", err=True)


def _alive(port: int) -> tuple[str, int] | None:
    return ("", port) if port else None


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise CliError(f"{name} is not set", "it is set in the pods that the operator makes")
    return value


def _text(path: Path) -> str:
    """Of a mounted file; nothing if it is not there, since what is optional may be."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
