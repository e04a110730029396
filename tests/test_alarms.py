"""One timer for many deadlines: whoever is due is looked at, whatever was asked for before."""

from __future__ import annotations

import asyncio
import time

import pytest

from counterfoil.alarms import Alarm


@pytest.mark.rule("B6")
async def test_a_nearer_deadline_is_not_held_up_by_a_farther_one_and_the_farther_one_still_comes():
    dues = {"far": 0.3, "near": 0.05}
    over: list[str] = []
    done = asyncio.Event()
    began = time.monotonic()

    def look(now: float) -> float | None:
        for name in [name for name, due in dues.items() if began + due <= now]:
            over.append(name)
            del dues[name]
        if not dues:
            done.set()
        return min((began + due for due in dues.values()), default=None)

    alarm = Alarm(look)
    for due in (3600.0, *dues.values()):
        alarm.at(began + due)
    await done.wait()
    assert over[-1] == "far"
    # Nothing is due any more, and one that was asked for in the past is looked at all the same.
    dues["late"] = -1.0
    done.clear()
    alarm.at(began - 1.0)
    await done.wait()
    assert over[-1] == "late"
