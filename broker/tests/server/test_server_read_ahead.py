"""Code 2004 sets whether the kernel reads ahead in the log, verified in this process's memory maps."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_testing.local import dialogue, running_broker
from gantry_wire import RequestCode, ResponseCode

SET = RequestCode.SET_COMMITLOG_READ_MODE
FILE_BYTES = 1 << 20
RANDOM = "rr"
"""The kernel's flag of a map in which it does not read ahead."""


def mapped_log_files(directory: Path) -> dict[str, bool]:
    """The log files that are mapped, by name, and whether each is mapped for random reads."""
    found: dict[str, bool] = {}
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else ""
        elif words[0] == "VmFlags:" and name.startswith(f"{directory}/"):
            found[name.rpartition("/")[2]] = RANDOM in words[1:]
    return found


async def test_read_mode_applies_to_present_and_future_files(tmp_path: Path) -> None:
    """Mode 1 stops reading ahead in each file of the log from the request on, and mode 0 enables it again."""
    async with (
        running_broker(tmp_path, mappedFileSizeCommitLog=str(FILE_BYTES), maxMessageSize="300000") as broker,
        dialogue(broker) as client,
    ):
        log = Path(broker.settings.store_path) / "commitlog"
        await client.send_ok(b"x")
        assert set(mapped_log_files(log).values()) == {False}

        assert (await client.ask(SET, {"READ_AHEAD_MODE": "1"})).code == 0
        for _ in range(8):
            await client.send_ok(bytes(200_000))
        written = sorted(mapped_log_files(log).items())[: broker.store.log.wrote // FILE_BYTES + 1]
        assert len(written) >= 2
        assert {is_random for _, is_random in written} == {True}

        assert (await client.ask(SET, {"READ_AHEAD_MODE": "0"})).code == 0
        assert set(mapped_log_files(log).values()) == {False}


@pytest.mark.parametrize("fields", [{}, {"READ_AHEAD_MODE": "2"}, {"READ_AHEAD_MODE": "random"}])
async def test_unknown_read_mode_is_refused(tmp_path: Path, fields: dict[str, str]) -> None:
    """It is answered with 29, and nothing changes."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(b"x")
        reply = await client.ask(SET, fields)

        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert set(mapped_log_files(Path(broker.settings.store_path) / "commitlog").values()) == {False}
