"""The command of the proxy: options and file to settings, signals to a drain.

Exit codes: 0 after a requested stop, 1 when it cannot start, 2 for an invalid option or setting, with the reason as one
line on standard error. One line on standard output reports the address when the proxy serves.
"""

import asyncio
import dataclasses
import logging
import signal
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from gantry_proxy.processes import ProxyProcesses
from gantry_proxy.proxy import Proxy, tune_garbage_collector
from gantry_proxy.settings import ProxySettings, check_settings, parse_settings, read_settings
from gantry_remoting.addresses import join_address, split_address
from gantry_remoting.file_access import limit_new_files
from gantry_remoting.logs import set_up_logs
from gantry_remoting.setting_kinds import SettingsError
from gantry_speedups import modules

log = logging.getLogger(__name__)

EXAMPLES: Final = """\b
Examples:
  gantry proxy                                          in front of the name server 127.0.0.1:9876, on port 8081
  gantry proxy -n 'ns1:9876;ns2:9876'                   in front of another cluster
  gantry proxy --config proxy.yaml                      with TLS, accounts and limits
  gantry proxy --config proxy.yaml --check              check a settings file

\b
A settings file:
  nameServers: [ns1.example:9876, ns2.example:9876]
  listen: {address: "0.0.0.0:8081", httpAddress: "0.0.0.0:9081"}
  tls: {certificate: /tls/tls.crt, key: /tls/tls.key}
  access: {accountsFile: /acl/plain_acl.yml, credentialsFile: /acl/proxy.yml}     or accountsSource: brokers
  limits: {clientsMax: 20000}
"""


class InvalidSettings(click.ClickException):
    """Settings with which no start can succeed, so that a restart would not help."""

    exit_code = 2


@click.command(
    name="gantry proxy",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXAMPLES,
)
@click.option("-c", "--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file, YAML.")
@click.option("-n", "--name-servers", metavar="HOST:PORT[;HOST:PORT]",
              help="Name servers of the cluster [default: the file's, else 127.0.0.1:9876].")  # fmt: skip
@click.option(
    "--listen", metavar="HOST:PORT", help="Address of the gRPC service [default: the file's, else 0.0.0.0:8081]."
)
@click.option("--http-listen", metavar="HOST:PORT",
              help="Address of probes and metrics [default: the file's, else 127.0.0.1:9081].")  # fmt: skip
@click.option("--check", is_flag=True, help="Check the settings, print them, and exit.")
@click.option(
    "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), default="INFO", show_default=True
)
def main(
    config: Path | None, name_servers: str | None, listen: str | None, http_listen: str | None, check: bool,
    log_level: str,
) -> None:  # fmt: skip
    """Run a gRPC proxy for RocketMQ 5 SDKs until SIGTERM or Ctrl-C.

    SDKs connect to it instead of to brokers. It keeps no state: run as many replicas as you need behind one address, or
    name several addresses in the SDK. On SIGTERM its clients move to other replicas before it ends.
    """
    try:
        settings = ProxySettings() if config is None else read_settings(config)
        settings = _with_options(settings, name_servers, listen, http_listen)
        if check:
            click.echo("\n".join(f"{key}: {value}" for key, value in _plain(settings).items()))
            return
        set_up_logs(log_level)
        limit_new_files()
        uvloop.run(_serve(settings, log_level))
    except SettingsError as error:
        raise InvalidSettings(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot start: {error}") from error


async def _serve(settings: ProxySettings, log_level: str) -> None:
    proxy = ProxyProcesses(settings, log_level) if settings.listen.processes > 1 else Proxy(settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await proxy.start()
    tune_garbage_collector()
    host, _ = split_address(settings.listen.address, port_min=0)
    address = join_address(host, proxy.port)
    log.info(
        "proxy started",
        extra={
            "address": address, "http_port": proxy.http_port, "hot_path": modules.describe(),
            "settings": _plain(settings),
        },
    )  # fmt: skip
    if modules.is_degraded:
        log.warning("compiled hot path is unusable; using the Python path", extra={"reason": modules.reason})
    try:
        click.echo(f"proxy listening on {address}")
        await stopped.wait()
        await proxy.drain()
    finally:
        await proxy.close()


def _with_options(
    settings: ProxySettings, name_servers: str | None, listen: str | None, http_listen: str | None
) -> ProxySettings:
    if name_servers is not None:
        servers = parse_settings({"nameServers": name_servers}).name_servers
        settings = dataclasses.replace(settings, name_servers=servers)
    changes: dict[str, Any] = {}
    if listen is not None:
        changes["address"] = listen
    if http_listen is not None:
        changes["http_address"] = http_listen
    if changes:
        settings = dataclasses.replace(settings, listen=dataclasses.replace(settings.listen, **changes))
    check_settings(settings)
    return settings


def _plain(settings: ProxySettings) -> dict[str, Any]:
    """Return the settings by key; paths of secrets are no secrets."""
    return dataclasses.asdict(settings)
