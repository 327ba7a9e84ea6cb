"""An edit that is silently ignored: the storage class of a running group is changed, at a real API server.

The failure has occurred if the edit is accepted, since the class of existing volumes cannot change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from api_server import DEFINITION, GROUPS, ROOT, ApiServer, api_server, groups_server

from gantry_museum.exhibit import Exhibit, Need, Outcome, Stage, System, Thread
from gantry_museum.scenes.operator_claims import NOT_RUN
from gantry_spec.manifest.changes import FIXED

ACCEPTED, REFUSED = 200, 422
NEW_CLASS: Final = "ssd"
STRICT: Final = "?fieldValidation=Strict"


def run(stage: Stage) -> Outcome:
    """Change the storage class of a group, and return what the API server answers."""
    stage.directory.mkdir(parents=True, exist_ok=True)
    with _server(stage) as server:
        head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
        status, group = server.ask("POST", GROUPS + STRICT, head | {"spec": {"storage": {"size": "10Gi"}}})
        assert status == 201, group
        group["spec"]["storage"]["storageClassName"] = NEW_CLASS
        status, answer = server.ask("PUT", f"{GROUPS}/orders{STRICT}", group)
    assert status in (ACCEPTED, REFUSED), answer
    answered = f'refused: "{_message(answer)}"' if status == REFUSED else "accepted"
    fields = ", ".join(f"`{one.path}`" for one in FIXED)
    facts = (f"The edit of the storage class is {answered}.",)
    return Outcome(status == ACCEPTED, facts if stage.is_twin else (*facts, f"Fields with such a rule: {fields}."))


def _message(answer: Any) -> str:
    causes = (answer.get("details") or {}).get("causes") or [{}]
    text = str(causes[0].get("message", answer.get("message")))
    return text.removeprefix("Invalid value: ").removeprefix('"object": ')


@contextmanager
def _server(stage: Stage) -> Iterator[ApiServer]:
    """Run an API server with the definition of groups; for a twin, without the rules in it."""
    if not stage.is_twin:
        with groups_server(stage.directory) as server:
            yield server
        return
    with api_server(stage.directory) as server:
        definition = yaml.safe_load((Path(ROOT) / "manifests/crd.yaml").read_text())
        status, answer = server.apply(DEFINITION, _without_rules(definition))
        assert status == 201, answer
        assert server.apply("/api/v1/namespaces/shop", {"apiVersion": "v1", "kind": "Namespace"} | _NAME)[0] == 201
        while server.ask("GET", GROUPS)[0] != ACCEPTED:
            pass
        yield server


_NAME: Final = {"metadata": {"name": "shop"}}


def _without_rules(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_rules(one) for key, one in part.items() if key != "x-kubernetes-validations"}
    return [_without_rules(one) for one in part] if isinstance(part, list) else part


EXHIBIT: Final = Exhibit(
    name="ignored-edit",
    title="An edit that is silently ignored",
    threads=(Thread("rabbitmq/cluster-operator", (992,)),),
    reported="""\
A user changed the storage class of a running cluster. The edit was accepted, and changed nothing: neither the claims
nor the status nor an event showed that it could not be applied.""",
    scenario="""\
The storage class of a `BrokerGroup` is changed at a real API server with Gantry's definition. The failure occurs if the
edit is accepted.""",
    run=run,
    systems=(System.GANTRY, System.TWIN),
    needs=dict.fromkeys((System.GANTRY, System.TWIN), (Need.API_SERVER,)),
    absent={System.APACHE: NOT_RUN},
    twin="has no rules in its definition",
    remark="""\
A table of tests (`operator/tests/edit_world`) has every field: an edit restarts pods, changes running brokers, or is
refused. A field without a row fails a test.""",
)
