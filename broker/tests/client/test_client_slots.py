"""Places for sends: bounded in number and bytes, first come first served, and never lost."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gantry_client.sender import Slots


async def test_places_go_to_whoever_waited_longest() -> None:
    """Nobody overtakes, not even a newcomer who finds a place free at the right moment."""
    slots, order = Slots(1, 100), []
    await slots.take(1)

    async def take(name: str) -> None:
        await slots.take(1)
        order.append(name)

    tasks = [asyncio.create_task(take(name)) for name in "abc"]
    await asyncio.sleep(0)
    for _ in range(3):
        slots.give(1)
        assert not slots.take_if_free(1)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)

    assert order == ["a", "b", "c"]


async def test_a_large_one_is_not_starved_by_small_ones() -> None:
    """Who waits for many bytes keeps those behind waiting, until the bytes are free."""
    slots = Slots(100, 10)
    await slots.take(6)
    large = asyncio.create_task(slots.take(8))
    await asyncio.sleep(0)

    assert not slots.take_if_free(1)
    slots.give(6)
    await large
    assert slots.taken_bytes == 8


async def test_one_larger_than_the_limit_travels_alone() -> None:
    """The limit delays, it never refuses."""
    slots = Slots(100, 10)
    await slots.take(1)
    giant = asyncio.create_task(slots.take(1000))
    await asyncio.sleep(0)
    assert not giant.done()

    slots.give(1)
    await giant
    assert not slots.take_if_free(1)
    slots.give(1000)
    assert slots.take_if_free(1)


async def test_whoever_gives_up_waiting_frees_those_behind() -> None:
    """A cancelled wait passes its turn on, also when the place had just been handed to it."""
    slots = Slots(1, 100)
    await slots.take(1)
    first, second = (asyncio.create_task(slots.take(1)) for _ in range(2))
    await asyncio.sleep(0)

    slots.give(1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second

    assert slots.taken == 1

    large = asyncio.create_task(Slots(2, 10).take(1))
    await large


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=30))
def test_no_place_is_ever_lost(steps: list[tuple[int, bool]]) -> None:
    """Whatever is taken, given back and cancelled: the bounds hold, and in the end all is free."""

    async def run() -> None:
        slots = Slots(3, 10)
        tasks: list[tuple[asyncio.Task[None], int]] = []
        for size, is_cancelled in steps:
            tasks.append((asyncio.create_task(slots.take(size)), size))
            await asyncio.sleep(0)
            assert slots.taken <= 3 and (slots.taken_bytes <= 10 or slots.taken == 1)
            if is_cancelled:
                task, size = tasks.pop(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():
                    slots.give(size)
        while tasks:
            task, size = tasks.pop(0)
            await task
            slots.give(size)
        assert (slots.taken, slots.taken_bytes) == (0, 0)

    asyncio.run(run())
