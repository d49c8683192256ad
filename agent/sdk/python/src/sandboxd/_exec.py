"""Runs a command without a session: a process with its own stdout, stderr and exit code."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import errors
from ._daemon import Link
from .results import ExecResult

if TYPE_CHECKING:
    import asyncssh

MAX_OUTPUT = 64 << 20
MAX_LINE = 96 << 10  # bytes; Linux passes no argument of 128 KiB to a program
_CHUNK = 1 << 16
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def shell_text(command: str | Sequence[str]) -> str:
    """Returns the command as shell text: a string is that, a list is a program and arguments."""
    text = command if isinstance(command, str) else shlex.join(command)
    if not text.strip():
        raise errors.Usage("exec: no command")
    if "\0" in text:
        raise errors.Usage("exec: the command has a NUL character")
    return text


def setup(env: Mapping[str, str] | None, cwd: str | None) -> str:
    """Returns shell text that sets variables and changes the directory before a command."""
    lines = []
    for name, value in (env or {}).items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise errors.Usage(
                f"env {name!r}: a name is letters, digits and _, and no value has NUL"
            )
        lines.append(f"export {name}={shlex.quote(value)}\n")
    if cwd:
        lines.append(f"cd -- {shlex.quote(cwd)} || exit\n")
    return "".join(lines)


class _Sink:
    """Keeps the first bytes of an output, and says whether there were more."""

    def __init__(self, most: int) -> None:
        self.data, self.truncated, self._most = bytearray(), False, most

    async def drain(self, reader: asyncssh.SSHReader[bytes]) -> None:
        while chunk := await reader.read(_CHUNK):
            room = self._most - len(self.data)
            self.data += chunk[:room]
            self.truncated = self.truncated or len(chunk) > room


async def execute(
    link: Link, line: str, *, input: bytes, timeout: float | None, max_output: int
) -> ExecResult:
    """Runs a line on a connection. Raises Timeout, Lost, or the error of the daemon."""
    import asyncssh

    async with link.channel() as connection:
        try:
            process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
                line, encoding=None
            )
        except asyncssh.ChannelOpenError as e:
            raise errors.Unavailable(e.reason, hint="nothing ran") from e
        except (asyncssh.Error, OSError) as e:
            raise errors.Unavailable(f"exec: {e}", hint="nothing ran; try again") from e
        out, err = _Sink(max_output), _Sink(max_output)

        async def feed() -> None:
            try:
                for at in range(0, len(input), _CHUNK):
                    process.stdin.write(input[at : at + _CHUNK])
                    await process.stdin.drain()
                process.stdin.write_eof()
            except (asyncssh.Error, OSError):
                pass  # the command reads no more; its exit code says the rest

        async def follow() -> None:
            await asyncio.gather(feed(), out.drain(process.stdout), err.drain(process.stderr))
            await process.wait_closed()

        try:
            await asyncio.wait_for(follow(), timeout)
        except asyncio.TimeoutError:
            late = errors.Timeout(
                f"the command still ran after {timeout:g} s",
                hint="it got HUP; its output is in stdout",
            )
            late.stdout, late.stderr = bytes(out.data), bytes(err.data)
            raise late from None
        except (asyncssh.Error, OSError) as e:
            raise link.lost(f"exec: {e}", connection) from e
        finally:
            process.close()
        code, signal = process.exit_status, process.exit_signal
        if code is None and not signal:
            raise link.lost("exec: the connection ended before the command did", connection)
    name = signal[0] if signal else ""
    if signal:
        code = 128 + _SIGNALS.get(name, 0)
    truncated = out.truncated or err.truncated
    return ExecResult(code or 0, bytes(out.data), bytes(err.data), name, truncated)


def check_daemon(done: ExecResult, as_user: bool) -> None:
    """Raises what the daemon says of a command that it did not run. It prints that as
    `sandboxd: MESSAGE; HINT` in place of the command's output, and ends with 255, or with 2 or 125
    for a command of another user."""
    said = done.error_text.strip().rpartition("\n")[2]
    codes = (2, 125, 255) if as_user else (255,)
    if done.exit_code not in codes or done.stdout or not said.startswith("sandboxd: "):
        return
    message, _, hint = said.removeprefix("sandboxd: ").partition("; ")
    if done.exit_code == 2:
        raise errors.Usage(message, hint=hint)
    if "no sandbox" in message:
        raise errors.NotFound(message, hint=hint)
    if done.exit_code == 255:
        raise errors.Unavailable(message, hint=hint)
    raise errors.Error(message, code="failed", hint=hint)


_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}  # fmt: skip
