"""``gantry-operator``: options, and one process. Every option has an environment variable, which the chart sets."""

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
from gantry_operator.settings import OperatorSettings, names_of, own_namespace, pairs_of, role_of


@click.command(context_settings={"show_default": True})
@click.option("--image", envvar="GANTRY_BROKER_IMAGE", required=True,
              help="Of brokers, sidecars and name servers, where a group names none.")  # fmt: skip
@click.option("--pull-policy", envvar="GANTRY_BROKER_PULL_POLICY", default="IfNotPresent",
              type=click.Choice(["Always", "IfNotPresent", "Never"]), help="Of images.")  # fmt: skip
@click.option("--pull-secrets", envvar="GANTRY_PULL_SECRETS", default="",
              help="Secrets to pull images with, separated by commas.")  # fmt: skip
@click.option("--pipeline-image", envvar="GANTRY_PIPELINE_IMAGE", default="",
              help="Of pipelines, where one names none. Empty: each has to.")  # fmt: skip
@click.option("--pipeline-pull-policy", envvar="GANTRY_PIPELINE_PULL_POLICY", default="IfNotPresent",
              type=click.Choice(["Always", "IfNotPresent", "Never"]), help="Of that image.")  # fmt: skip
@click.option("--executors-role", envvar="GANTRY_EXECUTORS_ROLE", default="",
              help="ClusterRole/NAME or Role/NAME by which Spark makes executors. Empty: none may.")  # fmt: skip
@click.option("--namespaces", envvar="GANTRY_NAMESPACES", default="",
              help="Whose groups are looked after, separated by commas. Empty: the whole cluster.")  # fmt: skip
@click.option("--machines/--no-machines", "machines", envvar="GANTRY_LOOK_AT_MACHINES", default=True,
              help="Whether Nodes and PersistentVolumes may be looked at.")  # fmt: skip
@click.option("--name", envvar="GANTRY_OPERATOR_NAME", default="gantry-operator",
              help="Of the leader's Lease; the Secret with its key has this name and -key.")  # fmt: skip
@click.option("--namespace", envvar="POD_NAMESPACE", default=None,
              help="Its own, where Lease and key are.  [default: that of its pod]")  # fmt: skip
@click.option("--labels", envvar="GANTRY_OPERATOR_LABELS", default="app.kubernetes.io/name=gantry-operator",
              help="Of its own pods, by which groups' policies let it in.")  # fmt: skip
@click.option("--prometheus-labels", envvar="GANTRY_PROMETHEUS_LABELS", default="app.kubernetes.io/name=prometheus",
              help="Of pods that may ask brokers for metrics.")  # fmt: skip
@click.option(
    "--listen", default=None, help="Where /livez, /readyz and /metrics are answered.  [default: 0.0.0.0:8090]"
)
@click.option("--port", envvar="GANTRY_HTTP_PORT", type=click.IntRange(0, 65_535), default=8090,
              help="The same, on every address.")  # fmt: skip
@click.option("--stale-after", envvar="GANTRY_STALE_AFTER", type=click.FloatRange(1, 3600), default=60.0,
              help="Seconds without a look at a group; then this process is not live any more.")  # fmt: skip
@click.option("--log-level", envvar="GANTRY_LOG_LEVEL", default="info",
              type=click.Choice(["debug", "info", "warning", "error"]),
              help="What is logged, as JSON, to standard error.")  # fmt: skip
@click.option("--kubeconfig", type=click.Path(dir_okay=False), default=None, help="Instead of the pod's own account.")
@click.option("--context", default=None, help="Of the kubeconfig.")
def main(**options: object) -> None:
    """Look after every BrokerGroup: make its pods, keep its shards mastered, roll, grow and mend them.

    And after every TopicArchive, LogAudit and TopicAnalytics: have Spark run it when it is due, and say how it went.

    Run two of them: one leads, the other waits for its Lease. SIGTERM gives the Lease back.
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
    """What the options say. Raises ``SettingsError``."""
    text = {name: "" if value is None else str(value) for name, value in options.items()}
    return OperatorSettings(
        image=text["image"],
        pull_policy=text["pull_policy"],
        pull_secrets=names_of(text["pull_secrets"]),
        pipeline_image=text["pipeline_image"],
        pipeline_pull_policy=text["pipeline_pull_policy"],
        executors_role=role_of(text["executors_role"], "--executors-role"),
        namespaces=names_of(text["namespaces"]),
        looks_at_machines=bool(options["machines"]),
        name=text["name"],
        namespace=text["namespace"] or own_namespace(),
        operator_labels=pairs_of(text["labels"], "--labels"),
        prometheus_labels=pairs_of(text["prometheus_labels"], "--prometheus-labels"),
        listen=text["listen"] or f"0.0.0.0:{text['port']}",
        stale_s=float(text["stale_after"]),
        log_level=text["log_level"],
        kubeconfig=text["kubeconfig"] or None,
        context=text["context"] or None,
    )


async def _run(settings: OperatorSettings) -> None:
    await Operator(settings).run()


STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "settings"}
NOISY: Final = ("kopf", "aiohttp.access", "urllib3", "kubernetes")


@final
class JsonFormatter(logging.Formatter):
    """One line for each record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in STANDARD and not key.startswith("k8s")}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(level: str) -> None:
    """Write log lines of the whole process as JSON to standard error: one fact each, with keys, and no secret."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
