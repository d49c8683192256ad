"""One connection to the daemon for all that a harness runs at once."""

from __future__ import annotations

import asyncio

from .. import aio

FILE_SECONDS = 600  # how long a copy may take; a pipe that an agent makes would block for ever


class SharedGateway:
    """A gateway that is connected by the first who enters, and closed by the last who leaves. It is
    of one event loop at a time. where: the arguments of aio.Gateway.connect."""

    def __init__(self, **where: str) -> None:
        self._where = where
        self.gateway: aio.Gateway | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._users = 0

    async def enter(self) -> aio.Gateway:
        """Returns the gateway. Each call that returns is followed by one of leave."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock, self._users, self.gateway = loop, asyncio.Lock(), 0, None
        async with self._lock:
            if self.gateway is None:
                self.gateway = await aio.Gateway.connect(**self._where)
            self._users += 1
            return self.gateway

    async def leave(self) -> None:
        """Closes the gateway if no other user is left."""
        async with self._lock:
            self._users -= 1
            if self._users == 0 and self.gateway:
                gateway, self.gateway = self.gateway, None
                await gateway.close()
