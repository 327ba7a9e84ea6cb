"""The command of the name server: options to settings, signals to a clean stop.

Exit codes: 0 after a requested stop, 1 when it cannot start, 2 for an invalid option or setting, with the reason as one
line on standard error. In a pod, a name server that ended with 2 is not restarted. One line on standard output reports
the listening address when the server is ready.
"""

import asyncio
import dataclasses
import signal
import ssl
from pathlib import Path
from typing import Final

import click
import uvloop

from gantry_nameserver.key_value_store import KeyValueCorrupt
from gantry_nameserver.server import DirectoryInUse, NameServer
from gantry_nameserver.settings import NameServerSettings, read_settings_file, with_entries
from gantry_remoting.addresses import PortInUse, join_address, split_address
from gantry_remoting.file_access import FileAccess, limit_existing_files, limit_new_files
from gantry_remoting.logs import set_up_logs
from gantry_remoting.setting_kinds import SettingsError
from gantry_remoting.settings import TlsMode

EXAMPLES: Final = """\b
Examples:
  gantry nameserver                                          on port 9876 of all addresses
  gantry nameserver --listen 127.0.0.1:9876 --data /var/lib/gantry/nameserver
  gantry nameserver -c namesrv.conf --tls permissive --tls-cert cert.pem --tls-key key.pem
  gantry nameserver --tls enforcing --tls-cert cert.pem --tls-key key.pem --tls-ca clients.pem
"""


class InvalidSettings(click.ClickException):
    """Settings with which no start can succeed, so that a restart would not help."""

    exit_code = 2


@click.command(
    name="gantry nameserver",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXAMPLES,
)
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on [default: 0.0.0.0:9876].")
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("nameserver-data"), show_default=True,
    help="Directory of the key-value table and of settings changed at run time.",
)  # fmt: skip
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), help="Settings file (namesrv.conf) with RocketMQ's keys."
)
@click.option("--tls", type=click.Choice([mode.value for mode in TlsMode]),
              help="What the port accepts: plain text (disabled), plain text and TLS (permissive), or TLS only "
              "(enforcing) [default: permissive; plain text only without a certificate].")  # fmt: skip
@click.option("--tls-cert", type=click.Path(), help="Certificate chain in PEM form; reloaded when it changes.")
@click.option("--tls-key", type=click.Path(), help="Private key in PEM form.")
@click.option("--tls-ca", type=click.Path(), help="CA of client certificates; requires clients to present one.")
@click.option(
    "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), default="INFO", show_default=True
)
def main(
    listen: str | None, data: Path, config: Path | None, tls: str | None, tls_cert: str | None, tls_key: str | None,
    tls_ca: str | None, log_level: str,
) -> None:  # fmt: skip
    """Run a name server until SIGTERM or Ctrl-C."""
    set_up_logs(log_level)
    try:
        entries = {} if config is None else read_settings_file(config)
        settings = with_entries(NameServerSettings(), _with_tls(entries, tls, tls_cert, tls_key, tls_ca))
        if listen is not None:
            host, port = _listen_address(listen)
            settings = dataclasses.replace(settings, bind_address=host, listen_port=port)
        limit_new_files()
        limit_existing_files(data, FileAccess.OWNER)
        uvloop.run(_serve(settings, data))
    except SettingsError as error:
        raise InvalidSettings(str(error)) from error
    except (KeyValueCorrupt, DirectoryInUse, ssl.SSLError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(_remedy(error, settings)) from error


async def _serve(settings: NameServerSettings, data: Path) -> None:
    server = NameServer(settings, data)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await server.start()
    try:
        click.echo(f"name server listening on {join_address(settings.bind_address, server.port)}")
        await stopped.wait()
    finally:
        await server.close()


def _listen_address(text: str) -> tuple[str, int]:
    try:
        return split_address(text, port_min=0)
    except ValueError as error:
        raise SettingsError(
            f"--listen takes host:port, for example 127.0.0.1:9876 or [::]:9876, not {text!r}"
        ) from error


def _with_tls(
    entries: dict[str, str], mode: str | None, certificate: str | None, key: str | None, authority: str | None
) -> dict[str, str]:
    """Return the entries of the settings file, overridden by the TLS options."""
    given = {
        "tlsMode": mode,
        "tlsServerCertPath": certificate,
        "tlsServerKeyPath": key,
        "tlsServerTrustCertPath": authority,
        "tlsServerNeedClientAuth": None if authority is None else "true",
    }
    merged = entries | {name: value for name, value in given.items() if value is not None}
    has_pair = {"tlsServerCertPath", "tlsServerKeyPath"} <= merged.keys()
    if mode not in (None, TlsMode.DISABLED.value) and not has_pair:
        raise SettingsError(f"--tls {mode} needs --tls-cert and --tls-key")
    return merged


def _remedy(error: OSError, settings: NameServerSettings) -> str:
    if isinstance(error, PortInUse):
        way = "--listen" if error.port == settings.listen_port else "externalListenPort"
        return f"port {error.port} is in use; choose another with {way}, or stop the process that listens on it"
    return f"cannot start: {error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
