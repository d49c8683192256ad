"""One attachment to a session: the frames of the SSH subsystem session@sandboxd.

A frame is uint32 length (of type and payload), byte type, payload, all big-endian. The stream
carries requests and their replies; output is not asked for, as Results have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from typing import Any, Protocol

from . import errors

_HELLO, _ATTACH, _ATTACHED, _REQUEST, _REPLY, _EVENT = 1, 2, 3, 7, 8, 9
_MAX_FRAME = 1 << 20


class Reader(Protocol):
    """What a stream reads from: asyncssh.SSHReader[bytes]."""

    async def readexactly(self, n: int, /) -> bytes: ...


class Writer(Protocol):
    """What a stream writes to: asyncssh.SSHWriter[bytes]."""

    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class Broken(Exception):
    """The stream ended. The message says how."""


class Stream:
    """A stream that is attached. Requests may run at the same time. It is of one event loop."""

    def __init__(self, reader: Reader, writer: Writer, attached: dict[str, Any]) -> None:
        self.attached = attached
        self.state = _object(attached.get("state"))  # the newest that is known
        self.broken: Broken | None = None
        self._reader, self._writer = reader, writer
        self._last = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pump = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def attach(cls, reader: Reader, writer: Writer, attach: dict[str, Any]) -> Stream:
        """Attaches, as the object says. An attach that is refused raises its `errors.Error`, a
        stream that ends `Broken`."""
        _send(writer, _HELLO, json.dumps({"versions": [1], "software": "sandboxd-python"}).encode())
        _send(writer, _ATTACH, json.dumps(attach).encode())
        hello = await _read_json(reader, _HELLO)
        versions = hello.get("versions")
        if not isinstance(versions, list) or 1 not in versions:
            raise Broken(f"the session speaks versions {versions}, and not 1")
        attached = await _read_json(reader, _ATTACHED)
        errors.check_wire(attached.get("error"))
        return cls(reader, writer, attached)

    async def request(self, **fields: Any) -> dict[str, Any]:
        """Sends a request and returns its reply. If the caller is cancelled, so is the request; a
        program that it followed continues. Raises Broken if the stream ends before the reply."""
        if self.broken:
            raise self.broken
        self._last += 1
        number = self._last
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            await self._post(number, fields)
            return await reply
        except asyncio.CancelledError:
            self._last += 1
            cancel = _request(self._last, {"verb": "cancel", "cancel": number})
            with contextlib.suppress(Exception):  # of a connection that has ended
                _send(self._writer, _REQUEST, cancel)
            raise
        finally:
            self._waiting.pop(number, None)
            if reply.done() and not reply.cancelled():
                reply.exception()  # asyncio reports one that nobody has seen

    async def _post(self, number: int, fields: dict[str, Any]) -> None:
        payload = _request(number, fields)
        if len(payload) >= _MAX_FRAME:
            raise errors.Usage(
                "the text is longer than 1 MiB", hint="write it to a file of the sandbox first"
            )
        try:
            _send(self._writer, _REQUEST, payload)
            await self._writer.drain()
        except Exception as e:  # the reader says it better, if it has seen the end
            raise self.broken or Broken(str(e) or type(e).__name__) from e

    async def _read(self) -> None:
        why = "the connection ended"
        try:
            while True:
                kind, payload = await _read_frame(self._reader)
                if kind == _EVENT:
                    self.state = _object(_parse(payload).get("state")) or self.state
                if kind != _REPLY:
                    continue
                (number,) = struct.unpack(">I", payload[:4])
                waiting = self._waiting.get(number)
                if waiting and not waiting.done():
                    waiting.set_result(_parse(payload[4:]))
        except asyncio.IncompleteReadError:
            pass
        except Exception as e:  # of the transport, or a frame that is wrong: the stream is over
            why = str(e) or type(e).__name__
        finally:
            self.broken = Broken(why)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self.broken)
            self._writer.close()

    async def close(self) -> None:
        """Detaches. The session continues."""
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._writer.close()


def _request(number: int, fields: dict[str, Any]) -> bytes:
    return struct.pack(">I", number) + json.dumps(fields).encode()


def _send(writer: Writer, kind: int, payload: bytes) -> None:
    writer.write(struct.pack(">IB", len(payload) + 1, kind) + payload)


async def _read_frame(reader: Reader) -> tuple[int, bytes]:
    size, kind = struct.unpack(">IB", await reader.readexactly(5))
    if not 1 <= size <= _MAX_FRAME:
        raise Broken(f"a frame of {size} bytes")
    return kind, await reader.readexactly(size - 1)


async def _read_json(reader: Reader, want: int) -> dict[str, Any]:
    try:
        kind, payload = await _read_frame(reader)
    except (asyncio.IncompleteReadError, EOFError) as e:
        raise Broken("the connection ended") from e
    if kind != want:
        raise Broken(f"a frame of type {kind} where {want} was due")
    return _parse(payload)


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as e:
        raise Broken("a frame that is no JSON") from e
    if not isinstance(value, dict):
        raise Broken("a frame that is no JSON object")
    return value


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
