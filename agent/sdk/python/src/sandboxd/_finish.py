"""Work that comes to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_SECONDS = 30  # how long a cancelled caller waits
_running = set[asyncio.Task[Any]]()  # asyncio itself keeps no task alive


async def finish(work: Coroutine[Any, Any, _T] | asyncio.Task[_T]) -> _T:
    """Returns the result of work. A caller that is cancelled, once or again and again, waits for
    its end nevertheless, for 30 s, and then gets CancelledError. What takes longer goes on alone.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    end: float | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=None if end is None else max(end - loop.time(), 0))
        except asyncio.CancelledError:
            end = loop.time() + _SECONDS if end is None else end
        if end is not None and loop.time() >= end:
            break
    if end is None:
        return task.result()
    task.add_done_callback(lambda t: t.cancelled() or t.exception())  # which nobody asks for
    raise asyncio.CancelledError


class Together:
    """Work that callers share who ask for it while it is done. Each finishes it."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Returns when work is done, or raises its error; the next caller then begins anew."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(work())
        await finish(self._task)
