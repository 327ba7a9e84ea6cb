"""The slots of outstanding sends: bounded in number and bytes, first come first served, and never lost."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gantry_client.sender import Slots


async def test_slots_are_granted_in_fifo_order() -> None:
    """No caller overtakes, even if it finds a slot free at the right moment."""
    slots, order = Slots(1, 100), []
    await slots.acquire(1)

    async def acquire(name: str) -> None:
        await slots.acquire(1)
        order.append(name)

    tasks = [asyncio.create_task(acquire(name)) for name in "abc"]
    await asyncio.sleep(0)
    for _ in range(3):
        slots.release(1)
        assert not slots.try_acquire(1)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)

    assert order == ["a", "b", "c"]


async def test_new_caller_does_not_overtake_a_granted_one() -> None:
    """A caller that was granted a slot runs first, also if another slot becomes free before."""
    slots, order = Slots(2, 100), []
    for _ in range(2):
        await slots.acquire(1)

    async def acquire(name: str) -> None:
        await slots.acquire(1)
        order.append(name)

    granted = asyncio.create_task(acquire("granted"))
    await asyncio.sleep(0)
    slots.release(1)
    slots.release(1)
    assert not slots.try_acquire(1)
    await acquire("new")

    assert order == ["granted", "new"] and granted.done()
    slots.release(1)
    assert slots.try_acquire(1)


async def test_large_send_is_not_starved_by_small_ones() -> None:
    """A waiter for many bytes blocks those behind it until the bytes are free."""
    slots = Slots(100, 10)
    await slots.acquire(6)
    large = asyncio.create_task(slots.acquire(8))
    await asyncio.sleep(0)

    assert not slots.try_acquire(1)
    slots.release(6)
    await large
    assert slots.bytes_in_use == 8


async def test_send_larger_than_the_limit_runs_alone() -> None:
    """The limit delays such a send and never refuses it."""
    slots = Slots(100, 10)
    await slots.acquire(1)
    giant = asyncio.create_task(slots.acquire(1000))
    await asyncio.sleep(0)
    assert not giant.done()

    slots.release(1)
    await giant
    assert not slots.try_acquire(1)
    slots.release(1000)
    assert slots.try_acquire(1)


async def test_cancelled_waiter_frees_those_behind() -> None:
    """A cancelled wait passes its slot on, also if the slot was just granted."""
    slots = Slots(1, 100)
    await slots.acquire(1)
    first, second = (asyncio.create_task(slots.acquire(1)) for _ in range(2))
    await asyncio.sleep(0)

    slots.release(1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second

    assert slots.in_use == 1

    large = asyncio.create_task(Slots(2, 10).acquire(1))
    await large


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=30))
def test_no_slot_is_ever_lost(steps: list[tuple[int, bool]]) -> None:
    """For any sequence of acquire, release and cancel the limits hold, and in the end all slots are free."""

    async def run() -> None:
        slots = Slots(3, 10)
        tasks: list[tuple[asyncio.Task[None], int]] = []
        for size, is_cancelled in steps:
            tasks.append((asyncio.create_task(slots.acquire(size)), size))
            await asyncio.sleep(0)
            assert slots.in_use <= 3 and (slots.bytes_in_use <= 10 or slots.in_use == 1)
            if is_cancelled:
                task, size = tasks.pop(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():
                    slots.release(size)
        while tasks:
            task, size = tasks.pop(0)
            await task
            slots.release(size)
        assert (slots.in_use, slots.bytes_in_use) == (0, 0)

    asyncio.run(run())
