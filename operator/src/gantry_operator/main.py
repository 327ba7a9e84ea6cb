"""The command ``gantry-operator``: it parses the options and runs one operator process.

The chart sets most options through environment variables.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any, Final, final

import click
import uvloop

from gantry_operator.errors import OperatorError, SettingsError
from gantry_operator.process import Operator
from gantry_operator.settings import OperatorSettings, own_namespace, parse_names, parse_pairs, parse_role


@click.command(context_settings={"show_default": True})
@click.option("--image", envvar="GANTRY_BROKER_IMAGE", required=True,
              help="Image of brokers, sidecars and name servers of groups that set no image.")  # fmt: skip
@click.option("--pull-policy", envvar="GANTRY_BROKER_PULL_POLICY", default="IfNotPresent",
              type=click.Choice(["Always", "IfNotPresent", "Never"]),
              help="Pull policy of the images of brokers, sidecars and name servers.")  # fmt: skip
@click.option("--pull-secrets", envvar="GANTRY_PULL_SECRETS", default="",
              help="Names of the Secrets to pull images with, separated by commas.")  # fmt: skip
@click.option("--pipeline-image", envvar="GANTRY_PIPELINE_IMAGE", default="",
              help="Image of pipelines that set no image. Empty: every pipeline must set one.")  # fmt: skip
@click.option("--pipeline-pull-policy", envvar="GANTRY_PIPELINE_PULL_POLICY", default="IfNotPresent",
              type=click.Choice(["Always", "IfNotPresent", "Never"]),
              help="Pull policy of the images of pipelines.")  # fmt: skip
@click.option("--executors-role", envvar="GANTRY_EXECUTORS_ROLE", default="",
              help="Role with which Spark drivers create executors, as ClusterRole/NAME or Role/NAME."
                   " Empty: pipelines cannot use executors.")  # fmt: skip
@click.option("--namespaces", envvar="GANTRY_NAMESPACES", default="",
              help="Namespaces whose resources are reconciled, separated by commas. Empty: all.")  # fmt: skip
@click.option("--machines/--no-machines", "machines", envvar="GANTRY_OBSERVE_MACHINES", default=True,
              help="Read Nodes and PersistentVolumes, to detect cordons and lost disks.")  # fmt: skip
@click.option("--name", envvar="GANTRY_OPERATOR_NAME", default="gantry-operator",
              help="Name of the leader Lease. The Secret with the operator's key is named NAME-key.")  # fmt: skip
@click.option("--namespace", envvar="POD_NAMESPACE", default=None,
              help="Namespace of the leader Lease and the key.  [default: the pod's namespace]")  # fmt: skip
@click.option("--labels", envvar="GANTRY_OPERATOR_LABELS", default="app.kubernetes.io/name=gantry-operator",
              help="Labels of the operator's pods. The network policies of groups admit these pods.")  # fmt: skip
@click.option("--prometheus-labels", envvar="GANTRY_PROMETHEUS_LABELS", default="app.kubernetes.io/name=prometheus",
              help="Labels of the Prometheus pods that may scrape the sidecars of groups.")  # fmt: skip
@click.option(
    "--listen", default=None, help="Address on which to serve /livez, /readyz and /metrics.  [default: [::]:8090]"
)
@click.option("--port", envvar="GANTRY_HTTP_PORT", type=click.IntRange(0, 65_535), default=8090,
              help="Port on which to serve them, on all IPv4 and IPv6 addresses, if --listen is not set.")  # fmt: skip
@click.option("--stale-after", envvar="GANTRY_STALE_AFTER", type=click.FloatRange(1, 3600), default=60.0,
              help="Seconds after which a resource that was not reconciled fails the liveness probe.")  # fmt: skip
@click.option("--log-level", envvar="GANTRY_LOG_LEVEL", default="info",
              type=click.Choice(["debug", "info", "warning", "error"]),
              help="Lowest level of log records, which are written to standard error as JSON.")  # fmt: skip
@click.option("--kubeconfig", type=click.Path(dir_okay=False), default=None,
              help="Kubeconfig file to use instead of the pod's service account.")  # fmt: skip
@click.option("--context", default=None, help="Context of the kubeconfig to use.")
def main(**options: object) -> None:
    """Reconcile BrokerGroups: create their pods, keep a master in every shard, and roll, scale and repair them.

    TopicArchives, LogAudits and TopicAnalytics are reconciled, too: Spark runs them when they are due, and their status
    reports the result.

    Run two replicas: one is the leader, and the other waits for the leader Lease. SIGTERM releases the Lease.
    """
    try:
        settings = settings_of(options)
        set_up_logging(settings.log_level)
        uvloop.run(_run(settings))
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    except (asyncio.CancelledError, OperatorError) as error:
        click.echo(f"gantry-operator: {error}", err=True)
        sys.exit(1)


def settings_of(options: dict[str, object]) -> OperatorSettings:
    """Return the settings that the command line options describe. Raises ``SettingsError``."""
    text = {name: "" if value is None else str(value) for name, value in options.items()}
    return OperatorSettings(
        image=text["image"],
        pull_policy=text["pull_policy"],
        pull_secrets=parse_names(text["pull_secrets"]),
        pipeline_image=text["pipeline_image"],
        pipeline_pull_policy=text["pipeline_pull_policy"],
        executors_role=parse_role(text["executors_role"], "--executors-role"),
        namespaces=parse_names(text["namespaces"]),
        can_read_nodes=bool(options["machines"]),
        name=text["name"],
        namespace=text["namespace"] or own_namespace(),
        operator_labels=parse_pairs(text["labels"], "--labels"),
        prometheus_labels=parse_pairs(text["prometheus_labels"], "--prometheus-labels"),
        listen=text["listen"] or f"[::]:{text['port']}",
        stale_s=float(text["stale_after"]),
        log_level=text["log_level"],
        kubeconfig=text["kubeconfig"] or None,
        context=text["context"] or None,
    )


async def _run(settings: OperatorSettings) -> None:
    await Operator(settings).run()


STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "settings"}
"""The attributes of a log record that are not its ``extra`` fields. Kopf adds ``settings``."""

NOISY_LOGGERS: Final = ("kopf", "aiohttp.access", "urllib3", "kubernetes")
"""The loggers whose records below the level warning are dropped."""


@final
class JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON, with the record's ``extra`` fields as keys."""

    def format(self, record: logging.LogRecord) -> str:
        moment = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = {key: value for key, value in vars(record).items() if key not in STANDARD_ATTRIBUTES}
        line |= {key: value for key, value in extra.items() if not key.startswith("k8s")}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(level: str) -> None:
    """Write the log records of the whole process to standard error as JSON lines. Records never contain secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
