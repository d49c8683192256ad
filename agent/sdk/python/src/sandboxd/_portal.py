"""The thread whose event loop serves the synchronous classes.

There is one for a process while it has open connections. It also serves callers that run an event
loop of their own, such as notebooks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from . import errors

_T = TypeVar("_T")
_AFTER_SECONDS = 10  # how long ^C waits for what it stops


class Portal:
    """An event loop in a thread, which ends when the last of its users has left."""

    _shared: Portal | None = None
    _lock = threading.RLock()  # a finalizer may run while this thread holds it

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._users, self._ending = 0, False
        self._loop = asyncio.new_event_loop()
        self._lookups = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="sandboxd-lookup")
        self._loop.set_default_executor(self._lookups)
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandboxd", daemon=True)
        self._thread.start()

    @classmethod
    def enter(cls) -> Portal:
        """Returns the portal of this process, for a user who calls leave once."""
        with cls._lock:
            if cls._shared is None or cls._shared.pid != os.getpid():
                cls._shared = Portal()
            cls._shared._users += 1
            return cls._shared

    def leave(self) -> None:
        """Ends the thread if no other user is left. The lookup of a host cannot be stopped: its
        thread ends some time later, if it takes longer than this waits."""
        if self.pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._ending = True
            if Portal._shared is self:
                Portal._shared = None
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        lookups = threading.Thread(target=self._lookups.shutdown, daemon=True)
        lookups.start()
        lookups.join(_AFTER_SECONDS)
        self._loop.close()

    async def _finish(self) -> None:
        """Lets what was cancelled by ^C clean up."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_AFTER_SECONDS)

    def inside(self) -> bool:
        """Reports whether the caller is in the thread of the loop, in which call raises Usage."""
        return threading.current_thread() is self._thread

    def call(
        self,
        coroutine: Coroutine[Any, Any, _T],
        interrupt: Callable[[], Awaitable[Any]] | None = None,
    ) -> _T:
        """Runs a coroutine in the loop and returns its result. ^C cancels it, and calls interrupt
        if that is given; then it raises KeyboardInterrupt."""
        if self.pid != os.getpid():
            coroutine.close()
            raise errors.Usage(
                "this connection was opened before a fork", hint="connect again in this process"
            )
        if self.inside():
            coroutine.close()
            raise errors.Usage("a call that waits was made in the event loop", hint="use await")
        with self._lock:
            future = None
            if not self._ending:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if future is None:
            coroutine.close()
            raise errors.Usage("it is closed", hint="connect again")
        try:
            return future.result()
        except concurrent.futures.CancelledError as e:
            raise errors.Lost("another thread closed it", hint="connect again") from e
        except BaseException:
            if not future.done():
                future.cancel()
                if interrupt:
                    self._after(interrupt)
            raise

    def _after(self, interrupt: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            await interrupt()

        stop = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            stop.result(_AFTER_SECONDS)
        except Exception:  # the caller learns of ^C, and not of what came after it
            stop.cancel()


# A lock that another thread holds at a fork would stay locked in the child.
def _after_fork() -> None:
    Portal._lock = threading.RLock()
    Portal._shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
