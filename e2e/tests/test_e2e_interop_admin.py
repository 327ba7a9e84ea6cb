"""The comparison of mqadmin's commands: no command is left out, no difference is hidden, and the page has the
results."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from gantry_interop import sdk_command
from gantry_interop.admin import page, plan, plan_runner, samples, scene, verdicts
from gantry_interop.admin.json_process import JsonProcess
from gantry_interop.admin.masks import CommonRows, Mask, Window, normalize
from gantry_interop.admin.plan_runner import Compared
from gantry_interop.admin.steps import Step
from gantry_interop.processes import Nursery

SAME_MIN = 75
WINDOW = Window(1_800_000_000_000, 1_800_000_060_000)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?")
TOKENS_MIN = 150
"""Of a sample with more tokens, at least this number is tried, evenly spread, and less than twice as many."""
WORDS_MAY_GO = re.compile(r"DESC: |^\s+at |^See https|^For more information|MessageTrack|TID: |@[0-9a-f]+$|Lambda")
"""Lines in which whole words may be removed: refusals, stack traces, mistakes of Apache's tool, objects."""
SAMPLES = samples.read()


def compared(step: Step, theirs: list[str], ours: list[str], *, failed: bool = False) -> Compared:
    """Return the comparison of a step by the outputs of both servers."""
    return Compared(step, tuple(theirs), tuple(ours), failed, failed)


def test_every_command_of_the_tool_has_a_row() -> None:
    """The list is the tool's own, as it was recorded; no command can be left out by mistake."""
    known = [one.command for one in verdicts.read()]

    assert verdicts.find_plan_faults(known, plan.commands()) == []
    assert len(known) == 96


@pytest.mark.needs_java
def test_recorded_list_is_that_of_the_tool(tmp_path: Path) -> None:
    """The list is compared with that of mqadmin itself."""
    with JsonProcess(scene.TOOL, tmp_path / "home", tmp_path / "tool.log") as tool:
        known = plan_runner.list_commands(tool)

    assert known == [one.command for one in verdicts.read()]


def test_page_is_generated_from_the_recorded_run() -> None:
    """docs/compatibility.md has exactly the content of the recorded results of mqadmin and of the SDKs."""
    section = sdk_command.build_section(sdk_command.read())
    assert page.PAGE.read_text() == page.build_page(verdicts.read(), len(plan.ALL), section)


def test_at_least_75_commands_are_the_same() -> None:
    """The number of equal commands never falls below `SAME_MIN`."""
    assert verdicts.count_by_word(verdicts.read())["same"] >= SAME_MIN


def test_every_difference_has_a_reason() -> None:
    """A difference without a reason is a fault."""
    assert verdicts.unexplained_differences(verdicts.read()) == []


def test_missing_command_is_a_fault() -> None:
    """A command without a row is reported, and a row without a command."""
    found = verdicts.find_plan_faults(["topicList", "brandNew"], {"topicList", "mistyped"})

    assert found == ["no row in the plan: brandNew", "not a command of mqadmin: mistyped"]


def test_command_that_differs_now_is_a_regression() -> None:
    """One line of one step, or of the step that shows its effect, is enough."""
    steps = [Step("updateTopic", "-t a"), Step("topicRoute", "-t a", shows="updateTopic"), Step("topicRoute", "-t b")]
    good = [compared(step, ["x"], ["x"]) for step in steps]
    bad = [good[0], compared(steps[1], ["x", "perm 6"], ["x", "perm 4"]), good[2]]

    before, now = (verdicts.judge(["updateTopic", "topicRoute"], run, ()) for run in (good, bad))

    assert [one.word for one in before] == ["same", "same"]
    assert [one.word for one in now] == ["differs", "same"]
    assert [one.command for one in verdicts.find_regressions(before, now)] == ["updateTopic"]
    assert now[0].differences[0].lines == ("-perm 6", "+perm 4")


def test_command_that_apache_refuses_counts_for_neither() -> None:
    """If a command does not work with Apache's servers, the same refusal is no success."""
    step = Step("getBrokerEpoch", "-b broker-a")

    (found,) = verdicts.judge(["getBrokerEpoch"], [compared(step, ["no"], ["no"], failed=True)], ())

    assert found.word == "both fail"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.typed)
def test_no_word_of_an_output_can_change_unnoticed(sample: samples.Sample) -> None:
    """Replacing any word or number of Apache's output is a difference; of a long output, an even selection is tried."""
    original = sample.normalize()
    assert original

    hidden = [
        (token[0], line)
        for token, line in _tokens(sample.text)
        if sample.normalize(f"{sample.text[: token.start()]}Zz{sample.text[token.end() :]}") == original
    ]

    assert [(word, line) for word, line in hidden if not _may_go(sample, word, line)] == []


def _may_go(sample: samples.Sample, word: str, line: str) -> bool:
    """Return whether a word is removed with its line, or by a rule whose reason is on the page."""
    if WORDS_MAY_GO.search(line) or not sample.normalize(f"{line}\n"):
        return True
    values = [re.search(mask.pattern, line) for mask in sample.step.masks if mask.why]
    return any(found is not None and word in found["value"] for found in values)


def _tokens(text: str) -> list[tuple[re.Match[str], str]]:
    found = list(TOKEN.finditer(text))
    return [
        (token, text[text.rfind("\n", 0, token.start()) + 1 : text.find("\n", token.end())])
        for token in found[:: max(1, len(found) // TOKENS_MIN)]
    ]


def test_every_rule_is_tested_on_an_output() -> None:
    """A mask or a quirk without a sample would be untested."""
    tried = {rule for sample in SAMPLES for rule in (*sample.step.masks, *sample.step.quirks)}

    assert {rule for step in plan.ALL for rule in (*step.masks, *step.quirks)} <= tried


def test_times_outside_of_the_run_stay() -> None:
    """A zero, and a time of another year, are facts; only times within the run are hidden."""
    text = "a 2027-01-15 08:00:01 b 1970-01-01 00:00:00 c 1800000001000 d 1700000001000 e 0"

    assert normalize(text, {}, WINDOW) == ["a <time> b 1970-01-01 00:00:00 c <ms> d 1700000001000 e 0"]


def test_only_the_peers_own_address_is_hidden() -> None:
    """Another address is a difference, and so is a longer one with the same beginning."""
    facts = {"broker": "10.0.0.1:1091"}

    assert normalize("10.0.0.1:1091 10.0.0.1:10911 10.0.0.2:1091", facts, WINDOW) == [
        "<broker> 10.0.0.1:10911 10.0.0.2:1091"
    ]


def test_code_of_a_refusal_stays() -> None:
    """Programs act on the code. The text is each server's own, but must not be empty."""
    lines = normalize(
        "Caused by: X: CODE: 17  DESC: no such topic BROKER: 1.2.3.4:5\n\tat a.b.C.d(E.java:1)\nCODE: 16 DESC: \n",
        {}, WINDOW,
    )  # fmt: skip

    assert lines == ["Caused by: X: CODE: 17 DESC: <words> BROKER: 1.2.3.4:5", "CODE: 16 DESC:"]


def test_mask_requires_the_form_of_its_value() -> None:
    """Nothing, or a word, in place of a number is a difference."""
    mask = Mask("rate", r"^TPS: (?P<value>\d+\.\d\d)$")

    assert [normalize(text, {}, WINDOW, [mask]) for text in ("TPS: 1.25", "TPS: none", "TPS:")] == [
        ["TPS: <rate>"],
        ["TPS: none"],
        ["TPS:"],
    ]


def test_settings_of_both_servers_are_compared() -> None:
    """A row that only one server has is removed; a different value stays; too few rows are a difference."""
    common = CommonRows(r"(\w+) +=", 2, "each has settings of its own")
    one, other = ["a = 1", "b = 2", "c = 3"], ["b = 2", "c = 4", "d = 5"]

    assert (common.of(one, other), common.of(other, one)) == (("b = 2", "c = 3"), ("b = 2", "c = 4"))
    assert common.of(one, ["c = 3"])[-1] == "only 1 rows that both have"


@pytest.mark.slow
@pytest.mark.needs_java
def test_part_of_the_plan_is_the_same_at_both(tmp_path: Path) -> None:
    """Both pairs of servers run: a topic is created and read, refusals are equal, and unmasked settings differ."""
    steps = [
        Step("updateTopic", "-b {broker} -t slice -r 2 -w 6 -p 4"),
        Step("topicRoute", "-t slice", shows="updateTopic", settles_seconds=20),
        Step("updateTopic", "-b {broker} -t 'no good!'"),
        Step("topicStatus", "-t nobody_made"),
        Step("getBrokerConfig", "-b {broker}", is_unordered=True),
    ]
    with (
        Nursery(tmp_path / "logs") as nursery,
        JsonProcess(scene.TOOL, tmp_path / "home", tmp_path / "logs" / "tool.log") as tool,
    ):
        sides = [scene.Side.start(kind, nursery, tmp_path / kind) for kind in scene.KINDS]
        found = plan_runner.PlanRunner(tool, sides, time.time()).run_steps(steps, lambda one: None)

    assert [one.is_same for one in found] == [True, True, True, True, False], (
        "expected a difference only of settings, which are compared without a rule"
    )
    assert [one.is_theirs_failed for one in found] == [False, False, True, True, False]


def test_steps_that_change_something_are_no_reads() -> None:
    """Only reads are repeated after a timeout, because a change may have happened."""
    changing = {step.command for step in plan.ALL if not step.is_read}

    assert not {"topicRoute", "clusterList", "consumerProgress", "getBrokerConfig", "listUser"} & changing
    assert {"updateTopic", "sendMessage", "resetOffsetByTime", "deleteTopic", "consumeMessage"} <= changing
    assert not Step("queryMsgById", "-t a -i b -s true").is_read
