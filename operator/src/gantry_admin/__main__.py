"""`python -m gantry_admin --page FILE --control SOCKET --store DIR`: one sidecar until a signal stops it.

Most of its start is spent on importing the HTTP server: a hundred thousand objects that live as long as the process.
These modules are imported only after the options were validated, and with garbage collection paused, which saves a
tenth of the time.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final

import uvloop

from gantry_admin.bundle import RecentLines
from gantry_admin.errors import SettingsError
from gantry_admin.settings import (
    AccessSettings,
    BrokerPaths,
    BrokerTls,
    HealthSettings,
    LeaseSettings,
    LogSettings,
    PeerSettings,
    SidecarSettings,
    option_of,
    parse_address,
    validate_settings,
)
from gantry_remoting.audit import enable_audit_log
from gantry_remoting.file_access import limit_new_files
from gantry_remoting.http_admission import HttpLimitSettings
from gantry_wire.structs import make_structs_ready

EXIT_SETTINGS: Final = 2
"""The exit code for invalid or contradictory options."""

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

log = logging.getLogger("gantry_admin")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options; ``settings`` gives the reason of each default."""
    made = argparse.ArgumentParser(
        prog="gantry sidecar",
        description="Run the admin sidecar of one broker: probes, status, metrics, log ranges, role changes over HTTP.",
        epilog="Example: gantry sidecar --page STORE/status --control STORE/control.sock --store STORE",
        allow_abbrev=False,
    )
    made.add_argument("--page", required=True, type=Path, metavar="FILE", help="the broker's status page")
    made.add_argument("--control", required=True, type=Path, metavar="SOCKET", help="the broker's control socket")
    made.add_argument("--store", required=True, type=Path, metavar="DIR", help="the broker's storePathRootDir")
    made.add_argument("--broker", metavar="HOST:PORT", help="the broker's port [default: as the broker reports it]")
    made.add_argument(
        "--broker-log", type=Path, metavar="FILE", help="the broker's log file; its end goes into bundles"
    )
    made.add_argument("--broker-credentials", type=Path, metavar="FILE", help="accessKey and secretKey for requests")
    _broker_tls_options(made.add_argument_group("TLS with the broker"))
    made.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="address of the main port")
    made.add_argument(
        "--topics-file", type=Path, metavar="FILE", help="topics and groups to create on a master, as JSON"
    )
    made.add_argument(
        "--state", type=Path, metavar="DIR", help="the sidecar's own directory, for the history of consumer lag"
    )
    made.add_argument("--openapi", action="store_true", help="serve /openapi.json and /docs")
    made.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    made.add_argument("--ignore-unknown", action="store_true", help="ignore options of newer versions, with a warning")
    _access_options(made.add_argument_group("access control"))
    _http_options(made.add_argument_group("limits of connections"))
    _log_options(made.add_argument_group("ranges of the log"))
    _group_options(made.add_argument_group("readiness and the group"))
    _lease_options(made.add_argument_group("the shard's Lease in Kubernetes"))
    return made


def _access_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--token-file", type=Path, metavar="FILE", help="tokens with every permission, name:token lines")
    group.add_argument("--read-token-file", type=Path, metavar="FILE", help="tokens that may view and read messages")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="the sidecar's certificate: use TLS")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="key of the sidecar's certificate")
    group.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="authority of client certificates with every permission (mTLS)",
    )
    group.add_argument("--open-reads", action="store_true", help="on loopback, view and read messages without a token")


def _broker_tls_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--broker-tls", action="store_true", help="use TLS; each of the three files turns it on")
    group.add_argument("--broker-tls-ca", type=Path, metavar="FILE", help="authority of the broker's certificate")
    group.add_argument("--broker-tls-cert", type=Path, metavar="FILE", help="client certificate, if required")
    group.add_argument("--broker-tls-key", type=Path, metavar="FILE", help="key of the client certificate")
    group.add_argument(
        "--broker-tls-verify", default="full", choices=["full", "authority", "none"], help="[default: full]"
    )


def _http_options(group: argparse._ArgumentGroup) -> None:
    texts = {
        "connections_max": ("N", "connections to the main port"),
        "connections_per_address_max": ("N", "connections from one address"),
        "probe_connections": ("N", "additional connections, for probes only"),
        "handshake_timeout_ms": ("MS", "timeout of a TLS handshake"),
        "head_timeout_ms": ("MS", "timeout for the head of a request"),
        "body_timeout_ms": ("MS", "timeout for the body of a request"),
        "idle_timeout_ms": ("MS", "timeout between two requests"),
        "reader_timeout_ms": ("MS", "timeout of an answer that the client does not read"),
    }
    for one in fields(HttpLimitSettings):
        unit, text = texts[one.name]
        group.add_argument(
            f"--http-{option_of(one.name)}", type=int, default=one.default, metavar=unit, help=f"{text} [%(default)s]"
        )


def _log_options(group: argparse._ArgumentGroup) -> None:
    defaults = LogSettings()
    group.add_argument("--log-listen", metavar="HOST:PORT", help="ranges by sendfile [default: the next port]")
    group.add_argument(
        "--log-rate", type=int, default=defaults.bytes_per_second, metavar="BYTES", help="limit per second; 0: none"
    )
    group.add_argument(
        "--log-burst", type=int, default=defaults.burst_bytes, metavar="BYTES", help="burst after a pause"
    )
    group.add_argument("--log-nice", type=int, default=defaults.niceness, metavar="0-19", help="niceness of readers")
    group.add_argument("--log-readers", type=int, default=defaults.readers_max, metavar="N", help="concurrent ranges")
    group.add_argument(
        "--log-range-max", type=int, default=defaults.range_bytes_max, metavar="BYTES", help="longest range per answer"
    )


def _group_options(group: argparse._ArgumentGroup) -> None:
    defaults = HealthSettings()
    for name, default, text in (
        ("--stale-after", defaults.stale_ms, "time without a publication until the broker counts as stalled"),
        ("--down-after", defaults.down_after_ms, "time of failing checks until a broker is not ready"),
        ("--up-after", defaults.up_after_ms, "time of passing checks until a broker is ready"),
    ):
        group.add_argument(name, type=int, default=default, metavar="MS", help=text)
    group.add_argument(
        "--max-lag", type=int, default=defaults.lag_bytes_max, metavar="BYTES", help="maximum lag of a ready slave"
    )
    group.add_argument(
        "--peer", action="append", default=[], metavar="URL", help="another sidecar of the group, repeatable"
    )
    group.add_argument(
        "--proxy", action="append", default=[], metavar="URL", help="HTTP port of gRPC proxies to show, repeatable"
    )
    group.add_argument("--peer-token-file", type=Path, metavar="FILE", help="token for requests to peers")
    group.add_argument("--peer-ca", type=Path, metavar="FILE", help="authority of the peers' certificates")
    group.add_argument("--peer-verify", default="full", choices=["full", "authority"], help="[default: full]")


def _lease_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--lease", metavar="NAMESPACE/NAME", help="Lease to renew while it names this broker as master")
    defaults = LeaseSettings(name="")
    group.add_argument("--lease-server", default=defaults.server, metavar="URL", help="[default: %(default)s]")
    group.add_argument(
        "--lease-token-file", type=Path, default=defaults.token_file, metavar="FILE", help="[default: %(default)s]"
    )
    group.add_argument("--lease-ca", type=Path, default=defaults.ca, metavar="FILE", help="[default: %(default)s]")
    group.add_argument("--regain", action="store_true", help="let a restarted broker regain its role")


def _lease_of(options: argparse.Namespace) -> LeaseSettings | None:
    if options.lease is None:
        if options.regain:
            raise SettingsError("--regain needs --lease, because role changes are recorded in the Lease")
        return None
    return LeaseSettings(
        name=options.lease, server=options.lease_server, token_file=options.lease_token_file, ca=options.lease_ca,
        regains=options.regain,
    )  # fmt: skip


def settings_of(options: argparse.Namespace) -> SidecarSettings:
    """Return the validated settings of parsed options. Raises ``SettingsError``."""
    log_listen = options.log_listen
    broker_tls = BrokerTls(
        is_requested=options.broker_tls, authority=options.broker_tls_ca, certificate=options.broker_tls_cert,
        key=options.broker_tls_key, verify=options.broker_tls_verify,
    )  # fmt: skip
    return validate_settings(
        SidecarSettings(
            broker=BrokerPaths(
                page=options.page, control=options.control, store=options.store, log_file=options.broker_log,
                address=options.broker, credentials=options.broker_credentials, tls=broker_tls,
            ),
            listen=parse_address(options.listen, "--listen"),
            access=AccessSettings(
                token_file=options.token_file, read_token_file=options.read_token_file, tls_cert=options.tls_cert,
                tls_key=options.tls_key, tls_client_ca=options.tls_client_ca, open_reads=options.open_reads,
            ),
            log=LogSettings(
                listen=None if log_listen is None else parse_address(log_listen, "--log-listen"),
                bytes_per_second=options.log_rate, burst_bytes=options.log_burst,
                readers_max=options.log_readers, range_bytes_max=options.log_range_max, niceness=options.log_nice,
            ),
            http=HttpLimitSettings(
                **{
                    one.name: getattr(options, f"http_{option_of(one.name).replace('-', '_')}")
                    for one in fields(HttpLimitSettings)
                }
            ),
            health=HealthSettings(
                stale_ms=options.stale_after, down_after_ms=options.down_after, up_after_ms=options.up_after,
                lag_bytes_max=options.max_lag,
            ),
            peers=PeerSettings(
                urls=tuple(options.peer), token_file=options.peer_token_file, ca=options.peer_ca,
                verify=options.peer_verify,
            ),
            proxies=tuple(options.proxy),
            lease=_lease_of(options),
            topics_file=options.topics_file,
            state=options.state,
            openapi=options.openapi,
        )
    )  # fmt: skip


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the names of unknown ones that were ignored. Exits the process for invalid options."""
    made = parser()
    options, unknown = made.parse_known_args(arguments)
    if unknown and not options.ignore_unknown:
        made.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options, [word.partition("=")[0] for word in unknown if word.startswith("-")]


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, and exempt all objects that are created meanwhile from it for good."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main(arguments: list[str] | None = None) -> int:
    options, left_out = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    formatter = logging.Formatter(LOG_FORMAT)
    recent = RecentLines(formatter)
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(formatter)
    logging.basicConfig(level=options.log_level.upper(), handlers=[shown, recent])
    enable_audit_log()
    if left_out:
        log.warning("ignored options that this version does not know: %s", ", ".join(left_out))
    limit_new_files()
    try:
        settings = settings_of(options)
        with paused_garbage_collection():
            from gantry_admin.server import serve
        make_structs_ready()
        uvloop.run(serve(settings, recent))
    except SettingsError as error:
        print(f"gantry sidecar: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
