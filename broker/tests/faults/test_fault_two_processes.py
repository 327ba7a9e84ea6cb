"""Row D14 of the fault catalogue: two broker processes on one store directory.

The lock of the store keeps the second one out. The twin is the same test without the lock.
"""

from pathlib import Path

import pytest
from crash.history import Outcome
from faults.scene import Scene


def second_on(scene: Scene, directory: Path) -> Scene:
    """Return a second scene on the same store, with other ports and its own status page."""
    directory.mkdir()
    return Scene(directory, store=scene.store, seed=2, settings={"statusPagePath": str(directory / "status")})


async def test_a_second_broker_refuses_and_the_first_is_unharmed(tmp_path: Path) -> None:
    """D14: the second broker is refused with a reason and changes nothing; the first continues and loses nothing."""
    async with Scene(tmp_path) as first, second_on(first, tmp_path / "second") as second:
        await first.start()
        async with first.load():
            await first.wait_acked(100)

            refusal = await second.start_is_refused()

            await first.wait_acked(100)
        await first.broker.kill()
        await first.start()
        assert await first.lost_messages() == []

    assert "another process uses the store" in refusal
    assert second.history.count(Outcome.ACKED) == 0


async def test_a_killed_broker_leaves_no_lock_behind(tmp_path: Path) -> None:
    """D14: the lock ends with its process, so that no file has to be removed after a crash."""
    async with Scene(tmp_path) as first, second_on(first, tmp_path / "second") as second:
        await first.start()
        await first.send_once(50)
        await first.broker.kill()

        await second.start()

        assert await second.broker.stop() == 0


@pytest.mark.slow
async def test_without_the_lock_the_second_would_harm_the_first(tmp_path: Path) -> None:
    """D14's twin: with the lock taken away the second starts, and what it acknowledges is overwritten."""
    async with Scene(tmp_path) as first, second_on(first, tmp_path / "second") as second:
        first.set_broker_options("--without", "lock")
        second.set_broker_options("--without", "lock")
        await first.start()
        await first.send_once(100)

        await second.start()
        await second.send_once(100)
        await first.send_once(100)
        await first.broker.kill()
        await second.broker.kill()

        with pytest.raises(AssertionError):
            assert second.lost_in_files() == []
