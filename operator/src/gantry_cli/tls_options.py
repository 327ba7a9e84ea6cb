"""The options with which a command speaks TLS, and what its clients are told because of them.

They belong to every command that talks to a cluster, and no command has to know them: what was given is kept in click's
context, and `client_tls` finds it there. All of them may stand in the environment, for a shell that always talks
to the same cluster.
"""

import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gantry_client import ClientTlsSettings

F = TypeVar("F", bound=Callable[..., Any])

TLS_PARAMETERS: Final = frozenset({"tls", "tls_ca", "tls_cert", "tls_key", "tls_verify"})
_GIVEN: Final = "gantry_cli.tls"
VERIFICATIONS: Final = ("full", "authority", "none")


def tls_options(command: F) -> F:
    """--tls and what belongs to it."""
    for option in reversed(_options()):
        command = option(command)
    return command


def is_tls_given() -> bool:
    """Whether this command was told to speak TLS."""
    context = click.get_current_context(silent=True)
    given: dict[str, Any] = {} if context is None else context.meta.get(_GIVEN, {})
    return any(given.get(name) for name in ("tls", "tls_ca", "tls_cert", "tls_key"))


def client_tls() -> ClientTlsSettings | None:
    """How this command speaks TLS; None is plain text. Raises ValueError when the options contradict each other."""
    if not is_tls_given():
        context = click.get_current_context(silent=True)
        if context is not None and context.get_parameter_source("tls_verify") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--tls-verify has no effect without --tls: give both, or leave it out")
        return None
    given = click.get_current_context().meta[_GIVEN]
    verification = given.get("tls_verify") or VERIFICATIONS[0]
    return ClientTlsSettings(
        authority_file=given.get("tls_ca"),
        certificate_file=given.get("tls_cert"),
        key_file=given.get("tls_key"),
        is_server_verified=verification != "none",
        is_host_name_checked=verification == "full",
        names=("--tls-ca", "--tls-cert", "--tls-key"),
    )


def tls_context() -> ssl.SSLContext | None:
    """The same, for a channel that is made by hand. Raises OSError for files that cannot be used."""
    tls = client_tls()
    if tls is None:
        return None
    source = tls.source("servers")
    source.load()
    return source.current


def _options() -> list[Callable[[Any], Any]]:
    file = click.Path(exists=True, dir_okay=False)
    return [
        _option("--tls", is_flag=True, help="Speak TLS; any of the following asks for it, too."),
        _option("--tls-ca", type=file, help="Authority of the servers' certificates [default: the system's]."),
        _option("--tls-cert", type=file, help="Our own certificate, for servers that ask for one."),
        _option("--tls-key", type=file, help="Its key."),
        _option("--tls-verify", type=click.Choice(VERIFICATIONS), default="full", show_default=True,
                help="What a server must prove: authority and host name, authority, nothing."),
    ]  # fmt: skip


def _option(name: str, **attributes: Any) -> Callable[[Any], Any]:
    variable = "GANTRY_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, expose_value=False, callback=_keep, **attributes)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    assert parameter.name is not None, "click names every option"
    context.meta.setdefault(_GIVEN, {})[parameter.name] = value
    return value
