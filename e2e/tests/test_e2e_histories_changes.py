"""Random changes of correct histories: both judges agree whether the result still keeps all guarantees.

The mode loses nothing. Where a failover may cut the end of a log, Porcupine judges the lost part, too, and our checker
excuses it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from gantry_histories.events import Answered, OffsetRead, Outcome
from gantry_histories.final import Stored
from gantry_histories.findings import Kind, Loss, Mode
from gantry_histories.ideal import IdealGroup
from gantry_histories.judges import Verdict, build_porcupine, judge
from gantry_histories.recording import Recording, write_recording
from msgspec.structs import replace

HISTORIES = 6
"""Histories for each change."""


def random_answer(chance: random.Random, recording: Recording) -> Answered:
    """Return the answer to an acknowledged send."""
    return chance.choice([answer for _, answer in recording.history.acknowledged_sends()])


def random_queue(chance: random.Random, recording: Recording) -> list[Stored]:
    """Return the final contents of a queue with several messages."""
    return chance.choice([list_of(messages) for messages in recording.final.queues.values() if len(messages) > 1])


def list_of(messages: object) -> list[Stored]:
    assert isinstance(messages, list)
    return messages


def change_an_offset(chance: random.Random, recording: Recording) -> None:
    answer = random_answer(chance, recording)
    offset = max(0, answer.queue_offset + chance.choice([-1, 1]))
    recording.history.answered[answer.key] = replace(answer, queue_offset=offset)


def change_a_physical_offset(chance: random.Random, recording: Recording) -> None:
    answer = random_answer(chance, recording)
    recording.history.answered[answer.key] = replace(answer, physical_offset=answer.physical_offset + 1)


def answer_by_another_broker(chance: random.Random, recording: Recording) -> None:
    answer = random_answer(chance, recording)
    recording.history.answered[answer.key] = replace(answer, broker=chance.choice("abc"))


def refuse_a_stored_message(chance: random.Random, recording: Recording) -> None:
    answer = random_answer(chance, recording)
    recording.history.answered[answer.key] = replace(answer, outcome=Outcome.REFUSED, code=14)


def remove_a_message(chance: random.Random, recording: Recording) -> None:
    messages = random_queue(chance, recording)
    place = chance.randrange(len(messages))
    del messages[place]
    if chance.random() < 0.5:
        messages[place:] = [one._replace(queue_offset=one.queue_offset - 1) for one in messages[place:]]


def exchange_messages(chance: random.Random, recording: Recording) -> None:
    messages = random_queue(chance, recording)
    place = chance.randrange(len(messages) - 1)
    one, two = messages[place : place + 2]
    messages[place : place + 2] = [
        two._replace(queue_offset=one.queue_offset), one._replace(queue_offset=two.queue_offset)
    ]  # fmt: skip


def change_a_shown_offset(chance: random.Random, recording: Recording) -> None:
    shown = recording.history.shown
    place = chance.randrange(len(shown))
    shown[place] = replace(shown[place], queue_offset=shown[place].queue_offset + 1)


def remove_the_messages_of_a_reply(chance: random.Random, recording: Recording) -> None:
    reads, shown = recording.history.reads, recording.history.shown
    place = chance.choice([number for number, read in enumerate(reads) if read.count])
    read = reads[place]
    reads[place] = replace(read, count=0)
    shown[:] = [one for one in shown if (one.client, one.queue, one.at) != (read.client, read.queue, read.at)]


def return_an_older_end(chance: random.Random, recording: Recording) -> None:
    reads = recording.history.reads
    place = chance.randrange(len(reads))
    reads[place] = replace(reads[place], end=max(0, reads[place].end - chance.randint(1, 2)))


def return_another_group_offset(chance: random.Random, recording: Recording) -> None:
    offsets = recording.history.offsets
    replies = [(place, event) for place, event in enumerate(offsets) if isinstance(event, OffsetRead)]
    place, event = chance.choice(replies)
    offsets[place] = replace(event, offset=max(-1, event.offset + chance.choice([-1, 1])))


CHANGES: list[Callable[[random.Random, Recording], None]] = [
    change_an_offset, change_a_physical_offset, answer_by_another_broker, refuse_a_stored_message, remove_a_message,
    exchange_messages, change_a_shown_offset, remove_the_messages_of_a_reply, return_an_older_end,
    return_another_group_offset,
]  # fmt: skip


@pytest.mark.needs_porcupine
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_both_judges_agree_about_a_changed_history(
    change: Callable[[random.Random, Recording], None], tmp_path: Path
) -> None:
    """A change may leave a correct history, but not every one of them does."""
    program, path, verdicts = build_porcupine(), tmp_path / "history.jsonl", set()
    for seed in range(HISTORIES):
        chance = random.Random(f"{change.__name__}/{seed}")
        group = IdealGroup(chance, Loss.NOTHING, 300)
        recording = Recording(group.history, group.end(), Mode(Loss.NOTHING))
        change(chance, recording)
        with path.open("wb") as file:
            write_recording(file, recording)

        judgement = judge(path, recording, program)

        assert judgement.second is not None
        assert Kind.DISAGREEMENT not in {finding.kind for finding in judgement.findings}, (seed, judgement)
        verdicts.add(judgement.second.verdict)
    assert Verdict.NOT_LINEARIZABLE in verdicts
