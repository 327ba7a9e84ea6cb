"""``gantry-operator``: options, and one process. Every option has an environment variable, which charts set."""

from __future__ import annotations

import asyncio
import sys

import click
import uvloop

from gantry_operator import logs
from gantry_operator.errors import SettingsError
from gantry_operator.process import Operator
from gantry_operator.settings import PREFIX, Settings, own_namespace


@click.command(context_settings={"auto_envvar_prefix": PREFIX.rstrip("_"), "show_default": True})
@click.option("--image", required=True, help="Of brokers, sidecars and name servers, where a group names none.")
@click.option("--watch", "namespaces", multiple=True, help="A namespace to look after; repeatable. None: all of them.")
@click.option("--namespace", default=None, help="Its own, where the leader's Lease is. [default: that of its pod]")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), default=None, help="Instead of the pod's own account.")
@click.option("--context", default=None, help="Of the kubeconfig.")
@click.option("--pull-policy", type=click.Choice(["Always", "IfNotPresent", "Never"]), default="IfNotPresent",
              help="Of images.")  # fmt: skip
@click.option("--pull-secret", "pull_secrets", multiple=True, help="A Secret to pull images with; repeatable.")
@click.option("--probes", default="0.0.0.0:8081", help="Where /livez and /readyz are answered.")
@click.option("--metrics", default="0.0.0.0:8080", help="Where /metrics is answered.")
@click.option("--stale-after", type=float, default=60.0, help="Seconds without a look at a group: not live any more.")
@click.option("--lease", "lease_name", default="gantry-operator", help="Name of the leader's Lease.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              help="What is logged, as JSON, to standard error.")  # fmt: skip
def main(
    image: str, namespaces: tuple[str, ...], namespace: str | None, kubeconfig: str | None, context: str | None,
    pull_policy: str, pull_secrets: tuple[str, ...], probes: str, metrics: str, stale_after: float, lease_name: str,
    log_level: str,
) -> None:  # fmt: skip
    """Look after every BrokerGroup: make its pods, keep its shards mastered, roll, grow and mend them.

    Run two of them: one leads, the other waits for its Lease. SIGTERM gives the Lease back.
    """
    logs.set_up(log_level)
    settings = Settings(
        image=image, namespaces=namespaces, namespace=namespace or own_namespace(), kubeconfig=kubeconfig,
        context=context, pull_policy=pull_policy, pull_secrets=pull_secrets, probes=probes, metrics=metrics,
        stale_s=stale_after, lease_name=lease_name, log_level=log_level,
    )  # fmt: skip
    try:
        uvloop.run(_run(settings))
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        sys.exit(1)


async def _run(settings: Settings) -> None:
    await Operator(settings).run()
