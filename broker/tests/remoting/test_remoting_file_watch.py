"""Periodic checks of files that other programs write."""

import pytest

from gantry_remoting import FileWatch
from gantry_testing.local import wait_until


@pytest.fixture(autouse=True)
def fast_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", 0.001)


async def test_exception_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a check is logged with the name of the file, and the next check is made."""
    checks = 0

    async def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 1:
            raise RuntimeError("planted")

    watch = FileWatch("planted file", check)
    watch.start()
    await wait_until(lambda: checks > 2)
    await watch.close()

    assert [vars(line)["file"] for line in caplog.records if line.exc_info] == ["planted file"]


async def test_watch_that_was_not_started_can_be_closed() -> None:
    """Owners close their watch even if there was no file to watch."""
    await FileWatch("no file", never_called).close()


async def never_called() -> None:
    raise AssertionError("a watch that was not started has checked")
