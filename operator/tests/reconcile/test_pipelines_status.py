"""The status of a pipeline: conditions with stable reasons, the last run, and the owner of each folder."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from aiohttp import web
from pipelines_scene import driver_report, ended, pipeline, pod_status, report_text, resource

from gantry_operator.pipelines.facts import EngineFacts, PipelineFacts, Problem, facts_or_problem, shared_folder
from gantry_operator.pipelines.observed import ObservedPipeline, pods_of
from gantry_operator.pipelines.pages import ANSWER_BYTES_MAX, HttpDriverPages
from gantry_operator.pipelines.status import QUEUES_MAX, View, events_of, is_worth_a_write, status_of
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.pipelines import pipeline_of
from gantry_spec.pipelines.status import PipelineStatus
from gantry_testing.http_server import application, http_server

CRON = {"schedule": "*/10 * * * *"}
NOW = "2026-01-01T01:00:00Z"


def pod(name: str = "orders-archive-0", created: str = "2026-01-01T00:00:00Z", **status: Any) -> dict[str, Any]:
    """Return a pod of a driver."""
    labels = {"app.kubernetes.io/component": "driver"}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels, "creationTimestamp": created}
    return {"metadata": metadata, "status": pod_status(**status)}


def view(kind: str = "TopicArchive", *pods: dict[str, Any], **known: Any) -> View:
    """Return the input of the status of a pipeline with these pods."""
    spec, page = known.pop("spec", {}), known.pop("page", None)
    flags = {name: known.pop(name) for name in ("is_done", "has_failed_for_good", "outdated_pods") if name in known}
    observed = ObservedPipeline(pods=pods_of(pods), page=page, **flags)
    return View(pipeline=pipeline(kind, **spec), observed=observed, now=NOW, **known)


def conditions(status: PipelineStatus) -> dict[str, tuple[str, str]]:
    """Return status and reason of all conditions, by type."""
    return {one.type: (one.status, one.reason) for one in status.conditions}


def edited(present: View) -> View:
    """Return the same observation of a pipeline whose spec the user has changed."""
    metadata = msgspec.structs.replace(present.pipeline.metadata, generation=2)
    return msgspec.structs.replace(present, pipeline=msgspec.structs.replace(present.pipeline, metadata=metadata))


NEW_RUN = {"start": "2026-01-01T02:50:00Z"}
RUNNING: dict[str, Any] = {"state": {"running": {}}}


@pytest.mark.parametrize(
    ("seen", "ready", "progressing", "phase"),
    [
        (view(), ("False", "Starting"), ("False", "Idle"), "Starting"),
        (view("TopicArchive", pod(**RUNNING)), ("False", "Starting"), ("True", "RunInProgress"), "Running"),
        (
            view("TopicArchive", pod(**RUNNING), page=driver_report(rows=7)),
            ("True", "Running"),
            ("True", "RunInProgress"),
            "Running",
        ),
        (
            view(
                "TopicArchive", pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(1), restarts=3)
            ),
            ("False", "DriverFailing"),
            ("True", "RunInProgress"),
            "Starting",
        ),
        (view(spec={"suspend": True}), ("False", "Suspended"), ("False", "Suspended"), "Suspended"),
        (view(spec=CRON), ("True", "Scheduled"), ("False", "Idle"), "Scheduled"),
        (
            view("TopicArchive", pod(phase="Failed", state=ended(1)), spec=CRON),
            ("False", "RunFailed"),
            ("False", "Idle"),
            "Failed",
        ),
        (view("LogAudit"), ("False", "RunInProgress"), ("False", "Idle"), "Starting"),
        (view("LogAudit", is_done=True), ("True", "Done"), ("False", "Idle"), "Done"),
        (
            view(problem=Problem("GroupNotFound", "BrokerGroup prod not found")),
            ("False", "GroupNotFound"),
            ("False", "GroupNotFound"),
            "Blocked",
        ),
        (view(unapplied="quota"), ("False", "NotApplied"), ("False", "Idle"), "Starting"),
        (
            view(outdated_pods=("orders-archive-0",), spec=CRON),
            ("True", "Scheduled"),
            ("True", "WaitingForOldRun"),
            "Scheduled",
        ),
    ],
    ids=[
        *("new", "silent", "running", "failing", "suspended", "scheduled", "failed", "begun", "done", "blocked"),
        *("unapplied", "waiting"),
    ],
)
def test_conditions_and_phase(seen: View, ready: tuple[str, str], progressing: tuple[str, str], phase: str) -> None:
    """They are Ready and Progressing, and one word as the phase."""
    status = status_of(seen)
    found = conditions(status)
    assert (found["Ready"], found["Progressing"], status.phase) == (ready, progressing, phase)


def test_report_of_an_ended_run_is_the_last_run() -> None:
    """Its termination message has counts, queues, lag and checkpoint."""
    text = report_text(
        driver_report(
            end="2026-01-01T00:05:00Z", rows=70, bytes=7000, files=3, reason="Done", text="70 messages",
            exitCode=0, lagRows=5, lagSeconds=2.5, checkpoint="/c", queuesTotal=1, queues=[["t", "b", 0, 70, 75, 2.5]],
            facts={"report": "/r"},
        )
    )  # fmt: skip
    status = status_of(view("TopicArchive", pod(phase="Succeeded", state=ended(0, text=text)), spec=CRON))

    run = status.last_run
    assert (run.rows, run.bytes, run.files, run.exit_code, run.message) == (70, 7000, 3, 0, "70 messages")
    assert (run.start, run.end, run.facts) == ("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z", {"report": "/r"})
    assert (status.lag.rows, status.lag.seconds, status.checkpoint) == (5, 2, "/c")
    assert [(one.topic, one.done, one.latest, one.lag_seconds) for one in status.queues] == [("t", 70, 75, 2)]


def test_lag_whose_age_is_unknown_is_not_shown_as_0_seconds() -> None:
    """A job that does not know the times of unread messages reports null."""
    report = driver_report(end="2026-01-01T00:05:00Z", lagRows=5, lagSeconds=None, queues=[["t", "b", 0, 70, 75, None]])
    pods = pod(phase="Succeeded", state=ended(0, text=report_text(report)))

    status = status_of(view("TopicArchive", pods, spec=CRON))

    assert (status.lag.rows, status.lag.seconds, status.queues[0].lag_seconds) == (5, -1, -1)


def test_driver_without_a_report_has_the_state_of_its_container() -> None:
    """It was killed for its memory, or its termination message is the end of a log."""
    oom = ended(137, text="java.lang.OutOfMemoryError", reason="OOMKilled")
    run = status_of(view("TopicArchive", pod(phase="Failed", state=oom), spec=CRON)).last_run
    assert (run.exit_code, run.reason, run.message) == (137, "OOMKilled", "java.lang.OutOfMemoryError")


def test_last_run_survives_its_pod() -> None:
    """Kubernetes deletes pods; the status keeps the run until there is a newer one."""
    text = report_text(driver_report(end="2026-01-01T00:05:00Z", rows=70, lagRows=5))
    before = msgspec.to_builtins(
        status_of(view("TopicArchive", pod(phase="Succeeded", state=ended(0, text=text)), spec=CRON))
    )

    later = status_of(view(spec=CRON, before=before))
    newer = report_text(driver_report(end="2026-01-01T00:15:00Z", rows=1))
    newest = pod("two", phase="Succeeded", state=ended(0, "2026-01-01T00:15:00Z", newer))
    assert (later.last_run.rows, later.lag.rows) == (70, 5)
    assert status_of(view("TopicArchive", newest, spec=CRON, before=before)).last_run.rows == 1


@pytest.mark.parametrize(
    ("report", "reason"),
    [({"exitCode": 5, "reason": "LogForked"}, "LogForked"), ({"exitCode": 0, "rowsLost": 7}, "RowsLost")],
    ids=["fork", "recorded"],
)
def test_data_loss_stays_reported_until_an_edit(report: dict[str, Any], reason: str) -> None:
    """The next successful run does not observe it; an edit of the resource acknowledges it."""
    code = report["exitCode"]
    lost = pod(phase="Failed", state=ended(code, text=report_text(driver_report(**report))))
    first = status_of(view("TopicArchive", lost, spec=CRON))
    clean = pod("two", phase="Succeeded", state=ended(0, "2026-01-01T02:00:00Z", report_text(driver_report())))
    again = view("TopicArchive", clean, spec=CRON, before=msgspec.to_builtins(first))

    assert conditions(first)["DataLoss"] == ("True", reason)
    assert conditions(status_of(again))["DataLoss"] == ("True", reason)
    assert conditions(status_of(edited(again)))["DataLoss"] == ("False", "NoneObserved")
    assert reason in [one.reason for one in events_of({}, first) if one.is_warning]

    # Usually the lossy run is still the last one when the edit is observed.
    acknowledged = status_of(edited(view("TopicArchive", lost, spec=CRON, before=msgspec.to_builtins(first))))
    assert conditions(acknowledged)["DataLoss"] == ("False", "NoneObserved")
    for pods in ((lost,), (lost, clean)):
        later = edited(view("TopicArchive", *pods, spec=CRON, before=msgspec.to_builtins(acknowledged)))
        assert conditions(status_of(later))["DataLoss"] == ("False", "NoneObserved")
    newer = pod(
        "three",
        phase="Failed",
        state=ended(code, "2026-01-01T03:00:00Z", report_text(driver_report(**report | NEW_RUN))),
    )
    lost_again = edited(view("TopicArchive", newer, spec=CRON, before=msgspec.to_builtins(acknowledged)))
    assert conditions(status_of(lost_again))["DataLoss"] == ("True", reason)


def test_edit_acknowledges_what_a_running_driver_has_lost() -> None:
    """The end of that run, which the edit may cause, reports no new loss; messages that are lost later are one."""
    running = pod(**RUNNING)
    first = status_of(view("TopicArchive", running, page=driver_report(rowsLost=7)))
    before = msgspec.to_builtins(first)
    acknowledged = status_of(edited(view("TopicArchive", running, page=driver_report(rowsLost=7), before=before)))
    known = msgspec.to_builtins(acknowledged)
    text = report_text(driver_report(end="2026-01-01T00:05:00Z", rowsLost=7))
    stopped = edited(view("TopicArchive", pod(phase="Failed", state=ended(143, text=text)), before=known))
    later = edited(view("TopicArchive", running, page=driver_report(rowsLost=9), before=known))

    assert conditions(first)["DataLoss"] == ("True", "RowsLost")
    assert conditions(acknowledged)["DataLoss"] == ("False", "NoneObserved")
    assert conditions(status_of(stopped))["DataLoss"] == ("False", "NoneObserved")
    assert conditions(status_of(later))["DataLoss"] == ("True", "RowsLost")


def test_run_that_does_not_answer_is_not_the_one_before() -> None:
    """Kubelet still shows how the run before it ended, whose loss would be reported as a new one."""
    lost = ended(5, "2026-01-01T00:05:00Z", report_text(driver_report(exitCode=5, reason="LogForked")))
    page = driver_report(start="2026-01-01T00:06:00Z", rows=3)
    running = status_of(view("TopicArchive", pod(**RUNNING, lastState=lost), page=page))
    silent = status_of(view("TopicArchive", pod(**RUNNING, lastState=lost), before=msgspec.to_builtins(running)))

    assert silent.last_run == running.last_run
    assert conditions(silent)["DataLoss"] == ("False", "NoneObserved")


def test_finding_of_an_audit_is_a_condition() -> None:
    """It has its own reason, and the Job ends with code 1."""
    text = report_text(driver_report(job="audit", exitCode=1, reason="DifferencesFound", text="3 chunks differ"))
    found = view("LogAudit", pod(phase="Failed", state=ended(1, text=text)), has_failed_for_good=True)
    status = status_of(found)
    assert conditions(status)["Degraded"] == ("True", "DifferencesFound")
    assert conditions(status)["Ready"] == ("False", "RunFailed")


def test_warning_of_a_run_is_a_condition() -> None:
    """It is reported while it holds, and not afterwards."""
    page = driver_report(warning={"reason": "SlavesBehind", "text": "no slave can be read"})
    assert conditions(status_of(view("TopicArchive", pod(**RUNNING), page=page)))["Degraded"] == (
        "True",
        "SlavesBehind",
    )
    calm = view("TopicArchive", pod(**RUNNING), page=driver_report())
    assert conditions(status_of(calm))["Degraded"] == ("False", "AsExpected")


def test_interrupted_run_has_not_failed() -> None:
    """A drain, or a suspended pipeline, ends it with exit code 143."""
    stopped = view("TopicArchive", pod(phase="Failed", state=ended(143)), spec=CRON)
    assert conditions(status_of(stopped))["Ready"] == ("True", "Scheduled")


@pytest.mark.parametrize(
    "page",
    [
        driver_report(
            rows="many", queues=[["t"], 7, ["t", "b", "x", None, float("nan"), True]], facts=[1], warning="no"
        ),
        driver_report(rows=1 << 80, lagSeconds=-5.0, queues=[["t" * 9000, "b", 0, 1, 2, 3.0]] * 500),
    ],
    ids=["nonsense", "too much"],
)
def test_any_page_results_in_a_valid_status(page: dict[str, Any]) -> None:
    """Drivers run users' classes; numbers stay numbers, and lists stay short."""
    status = status_of(view("TopicArchive", pod(**RUNNING), page=page))
    text = msgspec.json.encode(status)
    assert len(status.queues) <= QUEUES_MAX and len(text) < 64_000
    assert msgspec.json.decode(text, type=PipelineStatus) == status


def test_events_are_recorded_on_changes() -> None:
    """A done run and a blocked pipeline are recorded once, when they occur."""
    text = report_text(driver_report(end="2026-01-01T00:05:00Z", rows=70, text="70 messages"))
    done = status_of(view("TopicArchive", pod(phase="Succeeded", state=ended(0, text=text)), spec=CRON))
    assert [(one.reason, one.is_warning) for one in events_of({}, done)] == [("RunDone", False)]
    assert events_of(msgspec.to_builtins(done), done) == []
    blocked = status_of(view(problem=Problem("SharedDestination", "TopicArchive a already writes to x")))
    assert [(one.reason, one.is_warning) for one in events_of({}, blocked)] == [("SharedDestination", True)]


def test_conditions_are_written_at_once_and_counts_less_often() -> None:
    """Growing counts must not cause a write in each round."""
    slow = msgspec.to_builtins(status_of(view("TopicArchive", pod(**RUNNING), page=driver_report(rows=1))))
    fast = msgspec.to_builtins(status_of(view("TopicArchive", pod(**RUNNING), page=driver_report(rows=2))))
    assert not is_worth_a_write(fast, slow, 1_000)
    assert is_worth_a_write(fast, slow, 10_000)
    assert not is_worth_a_write(slow, slow, 60_000)
    assert is_worth_a_write(msgspec.to_builtins(status_of(view())), slow, 0)


# -- one writer --------------------------------------------------------------------------------------------------------


def folder(path: str, claim: str = "archive") -> dict[str, Any]:
    """Return a folder in the volume of a claim."""
    return {"pvc": {"claimName": claim, "path": path}}


@pytest.mark.parametrize(
    ("mine", "theirs", "is_shared"),
    [
        ({"destination": folder("a")}, {"destination": folder("a")}, True),
        ({"destination": folder("a/b")}, {"destination": folder("a")}, True),
        ({"destination": folder("")}, {"destination": folder("a")}, True),
        ({"destination": folder("ab")}, {"destination": folder("a")}, False),
        ({"destination": folder("a")}, {"destination": folder("a", "other")}, False),
        ({"destination": folder("a"), "checkpoint": folder("c")}, {"destination": folder("c")}, True),
        ({"checkpoint": folder("c", "s")}, {"destination": folder("b", "d"), "checkpoint": folder("c", "s")}, True),
    ],
    ids=["same", "inside", "around", "beside", "elsewhere", "checkpoint", "checkpoints"],
)  # fmt: skip
def test_older_pipeline_keeps_a_folder(mine: dict[str, Any], theirs: dict[str, Any], is_shared: bool) -> None:
    """There is one writer for each destination and checkpoint, for all kinds of pipelines."""
    old = pipeline(name="old", created="2026-01-01T00:00:00Z", **theirs)
    new = pipeline(name="new", created="2026-01-02T00:00:00Z", **mine)

    assert bool(shared_folder(new, [old, new])) is is_shared
    assert shared_folder(old, [old, new]) == ""
    assert not is_shared or "TopicArchive old already writes to" in shared_folder(new, [old])


def test_name_decides_between_pipelines_of_the_same_second() -> None:
    """Both come to the same result, and only one runs."""
    one, two = pipeline(name="a", created=NOW), pipeline("TopicAnalytics", "b", created=NOW, destination=folder(""))
    assert [bool(shared_folder(each, [one, two])) for each in (one, two)] == [False, True]


# -- what keeps it from running ----------------------------------------------------------------------------------------

ENGINE = EngineFacts(image="example.com/pipelines:1", executors_role=("ClusterRole", "executors"))
GROUP = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "prod", "namespace": "shop"}}


@pytest.mark.parametrize(
    ("spec", "engine", "group", "reason"),
    [
        ({}, ENGINE, None, "GroupNotFound"),
        ({}, ENGINE, GROUP | {"spec": {"shards": 0}}, "GroupNotFound"),
        ({}, EngineFacts(), GROUP, "ImageMissing"),
        ({"engine": {"mode": "kubernetes"}}, EngineFacts(image="x"), GROUP, "EngineRefused"),
        ({}, ENGINE, GROUP, ""),
        ({"engine": {"image": "mine"}}, EngineFacts(), GROUP, ""),
        ({"brokerGroups": [], "nameServers": ["ns:9876"]}, ENGINE, None, ""),
    ],
)
def test_every_problem_has_a_reason(
    spec: dict[str, Any], engine: EngineFacts, group: dict[str, Any] | None, reason: str
) -> None:
    """It is found before any object is rendered."""
    found = facts_or_problem(pipeline(**spec), engine, group, [])
    assert (found.reason if isinstance(found, Problem) else "") == reason


def test_audit_needs_its_archive() -> None:
    """The archive is found by name, in the same namespace, and with the right kind."""
    audit = pipeline("LogAudit", "check", checks=["archive"], archive="orders")
    assert facts_or_problem(audit, ENGINE, GROUP, []) == Problem(
        "ArchiveNotFound", 'TopicArchive "orders" not found in this namespace'
    )
    found = facts_or_problem(audit, ENGINE, GROUP, [pipeline(destination=folder("a"))])
    assert isinstance(found, PipelineFacts) and found.archive is not None
    assert (found.archive.claim_name, found.archive.path) == ("archive", "a")


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("TopicArchive", {"nope": 1}, "spec.nope"),
        ("TopicArchive", {"engine": {"executor": {"instance": 1}}}, "spec.engine.executor.instance"),
        ("TopicArchive", {"limits": {"maxRowsPerTrigger": 0}}, "spec.limits.maxRowsPerTrigger"),
        ("TopicArchive", {"nameServers": ["ns:1"]}, "spec.brokerGroups"),
        ("TopicArchive", {"brokerGroups": []}, "spec.brokerGroups"),
        ("TopicArchive", {"transport": "file"}, "spec.transport"),
        ("TopicArchive", {"destination": {}}, "spec.destination.pvc.claimName"),
        ("TopicArchive", {"checkpoint": {"pvc": {"path": "a"}}}, "spec.checkpoint.pvc.path"),
        ("TopicArchive", {"engine": {"mode": "kubernetes", "cores": 2}}, "spec.engine.cores"),
        ("TopicArchive", {"engine": {"sparkConf": {"spark.master": "local"}}}, "spec.engine.sparkConf"),
        ("LogAudit", {"checks": ["archive"]}, "spec.archive"),
        ("LogAudit", {"archive": "orders"}, "spec.archive"),
    ],
)
def test_invalid_spec_is_refused_with_its_field(kind: str, spec: dict[str, Any], path: str) -> None:
    """The operator refuses it even if the API server has not."""
    with pytest.raises(ManifestError) as refused:
        pipeline_of(resource(kind, **spec))
    assert path in [problem.path for problem in refused.value.problems]


def test_invalid_metadata_is_refused_with_its_field() -> None:
    """A name may be valid in Kubernetes but too long for the names of pods; the spec has no such field."""
    with pytest.raises(ManifestError) as refused:
        pipeline_of(resource(name="orders-" * 10 + "0"))
    assert [problem.path for problem in refused.value.problems] == ["metadata.name"]


async def test_page_is_read_completely() -> None:
    """An answer may be longer than one segment; an answer that is too long is not used."""
    document = driver_report(rows=7) | {"filler": "x" * 10_000}

    async def in_pieces(request: web.Request) -> web.StreamResponse:
        body = json.dumps(document).encode()
        answer = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await answer.prepare(request)
        for piece in (body[:5_000], body[5_000:]):
            await answer.write(piece)
            for _ in range(50):
                await asyncio.sleep(0)
        return answer

    async with http_server(application(in_pieces)) as port, HttpDriverPages(timeout_s=30.0, port=port) as pages:
        assert await pages.fetch("127.0.0.1") == document
        document["filler"] = "x" * ANSWER_BYTES_MAX
        assert await pages.fetch("127.0.0.1") is None
