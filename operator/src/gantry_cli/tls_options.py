"""The TLS options of commands, and the TLS settings of their clients.

Every command with the option -n for name servers has them, and no command handles them itself: their values are kept in
click's context, from which `client_tls` reads them. All of them can be set in the environment, too.
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
    """Add --tls and the options that belong to it."""
    for option in reversed(_options()):
        command = option(command)
    return command


def is_tls_given() -> bool:
    """Return whether an option or variable requests TLS."""
    context = click.get_current_context(silent=True)
    given: dict[str, Any] = {} if context is None else context.meta.get(_GIVEN, {})
    return any(given.get(name) for name in ("tls", "tls_ca", "tls_cert", "tls_key"))


def client_tls() -> ClientTlsSettings | None:
    """Return the TLS settings of this command; None for plain text.

    Raises ValueError for a certificate or a key without the other, and click's UsageError for --tls-verify without TLS.
    """
    if not is_tls_given():
        context = click.get_current_context(silent=True)
        if context is not None and context.get_parameter_source("tls_verify") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--tls-verify has no effect without --tls: set both or neither")
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
    """Return the TLS context for a channel without a client, or None for plain text.

    Raises the errors of `client_tls`, and OSError for unusable files.
    """
    tls = client_tls()
    if tls is None:
        return None
    source = tls.source("servers")
    source.load()
    return source.current


def _options() -> list[Callable[[Any], Any]]:
    file = click.Path(exists=True, dir_okay=False)
    return [
        _option("--tls", is_flag=True, help="Use TLS; implied by --tls-ca, --tls-cert and --tls-key."),
        _option("--tls-ca", type=file, help="CA certificates to verify servers with [default: the system's]."),
        _option("--tls-cert", type=file, help="Client certificate, for servers that require one."),
        _option("--tls-key", type=file, help="Private key of the client certificate."),
        _option("--tls-verify", type=click.Choice(VERIFICATIONS), default="full", show_default=True,
                help="Verification of servers: CA and host name (full), CA only, or none."),
    ]  # fmt: skip


def _option(name: str, **attributes: Any) -> Callable[[Any], Any]:
    variable = "GANTRY_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, expose_value=False, callback=_save_option, **attributes)


def _save_option(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    assert parameter.name is not None, "click sets the name of every option"
    context.meta.setdefault(_GIVEN, {})[parameter.name] = value
    return value
