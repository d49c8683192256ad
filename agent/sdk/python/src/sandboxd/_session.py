"""A session: a terminal in a sandbox that runs a shell and outlives connections."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from . import errors
from ._daemon import ANSWER_SECONDS, Link, Slot, check_text, check_timeout, refused
from ._stream import Broken, Stream
from .results import Result, Screen, screen_of

Phase = Literal["prompt", "running", "waiting", "continuation", "opaque", "dead"]
ShowScreen = Literal["auto", "always", "never"]

DEFAULT_TIMEOUT = 120.0
_SUBSYSTEM = "session@sandboxd"
_START_SECONDS = 180  # within which a sandbox that was stopped starts
_ATTACH_AGAIN = (0.0, 0.2, 1.0)  # seconds until it is tried again


class Session:
    """A terminal with a shell. The shell keeps its directory and variables between calls.

    No call hangs. When a command asks a question, or still runs at the timeout, the call returns a
    `Result` that says so, and the command continues. All calls raise `Lost` if the connection or
    the sandbox goes away, and `Denied` if the caller may only watch.

    Get one from `Sandbox.session`; it is started by its first call if it does not run.
    """

    def __init__(self, link: Link, sandbox: str, name: str) -> None:
        self._link, self._sandbox = link, sandbox
        self._name = check_text("the name of a session", name)
        self._stream: Stream | None = None
        self._slot: Slot | None = None  # of _stream
        self._end: Callable[[], None] | None = None  # closes its channel
        self._attaching = asyncio.Lock()

    @property
    def name(self) -> str:
        """The name of the session, such as "main"."""
        return self._name

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        kill: bool = False,
        hold: bool = False,
        adopt: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Runs shell code of any length when the shell is at its prompt.

        timeout: seconds until the call returns a Result whose `ended` is "deadline"; None waits
            without an end. kill: the command is interrupted then.
        hold: waits while a person has the keyboard, instead of raising Busy.
        adopt: runs it in the shell behind ssh or another relay, if Result.looks_like_shell.
        max_output: largest Result.output in bytes, up to about 500,000; 0 means 32 KiB.
        screen: when Result.screen is set.

        Raises Busy if a program runs, Usage if the command is no complete shell syntax.
        """
        return await self._follow(
            "run", text=command, timeout=timeout, kill=kill, hold=hold, adopt=adopt,
            max_output=max_output, screen=screen,
        )  # fmt: skip

    async def type(
        self,
        text: str,
        *,
        enter: bool = True,
        timeout: float | None = DEFAULT_TIMEOUT,
        hold: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Types text to the program, and Enter unless enter is False. See `run` for the rest."""
        if not text:  # only Enter, or nothing
            return await self.keys(*(["Enter"] if enter else []), timeout=timeout, hold=hold)
        return await self._follow(
            "type", text=text, raw=not enter, timeout=timeout, hold=hold,
            max_output=max_output, screen=screen,
        )  # fmt: skip

    async def answer(
        self,
        text: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        hold: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Types text and Enter, but only to a program that asks for input.

        Raises Busy with code "not_waiting" if none does.
        """
        return await self._follow(
            "type", text=text, answer=True, timeout=timeout, hold=hold,
            max_output=max_output, screen=screen,
        )  # fmt: skip

    async def keys(
        self,
        *keys: str,
        timeout: float | None = DEFAULT_TIMEOUT,
        hold: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Presses keys: names such as "^C", "Up", "Enter", "F1", and single characters."""
        if not keys:
            raise errors.Usage("keys: name at least one", hint='such as "Enter" or "^C"')
        for key in keys:
            check_text("keys: a key", key)
        return await self._follow(
            "keys", keys=list(keys), timeout=timeout, hold=hold,
            max_output=max_output, screen=screen,
        )  # fmt: skip

    async def wait(
        self,
        *phases: Phase,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Waits until the session is in one of the phases; without any, in any but "running".

        It returns at once if it already is. The phases are prompt, running, waiting, continuation,
        opaque and dead.
        """
        for phase in phases:
            if phase not in get_args(Phase):
                known = ", ".join(get_args(Phase))
                raise errors.Usage(f"wait: {phase!r} is no phase", hint=f"use one of {known}")
        return await self._follow(
            "wait", for_=list(phases), timeout=timeout, max_output=max_output, screen=screen
        )

    async def interrupt(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Stops the running program: sends ^C, then TERM, then KILL, each only if the one before
        had no effect. Result.receipt lists what was sent, and which processes died."""
        return await self._follow("interrupt", timeout=timeout)

    async def screen(self) -> Screen:
        """Returns what the terminal shows."""
        reply = await self._ask("screen", ANSWER_SECONDS)
        return screen_of(reply.get("screen"))

    async def end(self) -> None:
        """Ends the session with its shell and all that runs in it."""
        await self._ask("close", ANSWER_SECONDS, session=self._name)
        await self.detach()

    async def detach(self) -> None:
        """Disconnects. The session continues, and a later call attaches again."""
        stream, self._stream = self._stream, None
        if stream:
            await stream.close()
        self._free()

    def _free(self) -> None:
        end, self._end, self._slot = self._end, None, None
        if end:
            end()

    async def _follow(self, verb: str, *, timeout: float | None, **fields: Any) -> Result:
        """Sends a request whose reply has a Result."""
        timeout = check_timeout(timeout)
        if "text" in fields:
            check_text(f"{verb}: the text", fields["text"], "exec takes a list of arguments")
        fields = {k.rstrip("_"): v for k, v in fields.items() if v}
        ms = -1 if timeout is None else max(round(timeout * 1000), 1)
        # One that waits for a person may take longer.
        limit = None if timeout is None or fields.get("hold") else timeout + ANSWER_SECONDS
        reply = await self._ask(verb, limit, timeout_ms=ms, **fields)
        if not isinstance(reply.get("result"), dict):
            raise errors.Error(f"{verb}: the daemon's answer has no result")
        result = Result.of({**reply["result"], "sandbox": self._sandbox})
        if result.ended in ("refused", "lost"):
            error = result.raw.get("error")
            if not isinstance(error, dict):
                error = {"code": result.ended, "message": f"{verb} failed"}
            raise errors.from_wire(error, result)
        return result

    async def _ask(self, verb: str, limit: float | None, **fields: Any) -> dict[str, Any]:
        """Sends a request once, and returns its reply. A reply that is an error is raised, and
        Lost if there is none within limit seconds."""
        stream = await self._attached(create=verb == "run")
        if verb in ("run", "type", "keys"):
            fields["op"] = secrets.token_hex(16)
        try:
            reply = await asyncio.wait_for(stream.request(verb=verb, **fields), limit)
        except Broken as e:
            raise self._lost(verb, e) from e
        except asyncio.TimeoutError:
            await stream.close()
            raise self._lost(verb, "the daemon does not answer") from None
        error = reply.get("error")
        if not error or reply.get("result"):
            return reply
        if not isinstance(error, dict):
            raise errors.Error(f"{verb}: {error}")
        if error.get("code") == "lost" and not error.get("reason"):
            raise self._lost(verb, error.get("message"))
        ended = "lost" if error.get("code") == "lost" else "refused"
        raise errors.from_wire(error, self._known(stream, ended, error))

    def _lost(self, verb: str, why: object) -> errors.Lost:
        lost = self._link.lost(f"{verb} in {self._sandbox}: {why}", self._slot)
        about = {"code": "lost", "message": lost.message, "reason": lost.reason}
        lost.result = self._known(self._stream, "lost", about)
        return lost

    def _known(self, stream: Stream | None, ended: str, error: dict[str, Any]) -> Result:
        """Returns the Result of a call that has none: what was last known of the session."""
        state = stream.state if stream else {}
        return Result.of(
            {**state, "sandbox": self._sandbox, "session": self._name, "ended": ended,
             "exit_code": None, "error": error}
        )  # fmt: skip

    async def _attached(self, create: bool) -> Stream:
        """Returns a stream that works as far as is known. It attaches if there is none: as the same
        party with the same keyboard as before, if that is not long ago."""
        self._link.check()
        async with self._attaching:
            before = self._stream
            if before and not before.broken:
                return before
            attach = {"session": self._name, "from": "now", "quiet": True, "create": create}
            if before:
                resume = {"resume": before.attached.get("resume"), "from": "now", "quiet": True}
                try:
                    self._stream = await self._open(resume)
                    return self._stream
                except errors.Error:  # it was too long ago, or the shell has ended
                    self._stream = None
            for wait in _ATTACH_AGAIN:
                try:
                    self._stream = await self._open(attach)
                    return self._stream
                except errors.Lost:  # of a connection that broke before: nothing was sent by it
                    await asyncio.sleep(wait)
            self._stream = await self._open(attach)
            return self._stream

    async def _open(self, attach: dict[str, Any]) -> Stream:
        self._free()
        try:
            return await asyncio.wait_for(self._attach(attach), _START_SECONDS)
        except asyncio.TimeoutError:
            self._free()
            why = f"session {self._name} of {self._sandbox}: the daemon does not answer"
            raise errors.Unavailable(why, hint="nothing ran; try again") from None
        except BaseException:
            self._free()
            raise

    async def _attach(self, attach: dict[str, Any]) -> Stream:
        import asyncssh

        self._slot = slot = await self._link.acquire()
        what = f"session {self._name} of {self._sandbox}"
        try:
            writer, reader, _ = await slot.open(
                slot.ssh.open_session(subsystem=_SUBSYSTEM, encoding=None),
                lambda late: late[0].channel,
            )
            self._end = partial(slot.close, writer.channel)
            return await Stream.attach(reader, writer, attach)
        except asyncssh.ChannelOpenError as e:
            error = refused(e)
            if isinstance(error, errors.Limit) or slot.ssh.is_closed():
                raise error from e
            raise errors.NotFound(f"{what}: {e.reason}") from e
        except (asyncssh.Error, OSError, Broken) as e:
            raise errors.Unavailable(f"{what}: {e}", hint="nothing ran; try again") from e
