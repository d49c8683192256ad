"""Runs a command without a session: a process with its own stdout, stderr and exit code."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from . import errors
from ._daemon import Link, check_text, json_lines, refused
from .results import ExecResult

if TYPE_CHECKING:
    import asyncssh
    from typing_extensions import Unpack

MAX_OUTPUT = 64 << 20
MAX_LINE = 96 << 10  # bytes; Linux passes no argument of 128 KiB to a program
_CHUNK = 1 << 16
_NOISE = 1 << 16  # bytes that a shell may say on stderr before it runs a command
_USAGE, _TRANSPORT = 2, 255  # exit codes of the daemon
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def shell_text(command: str | Sequence[str]) -> str:
    """Returns the command as shell text: a string is that, a list is a program and arguments."""
    if isinstance(command, (list, tuple)):
        command = shlex.join(check_text(f"exec: argument {w!r}", w) for w in command)
    text = check_text("exec: the command", command, "pass shell text, or a list of arguments")
    if not text.strip():
        raise errors.Usage("exec: no command")
    return text


def setup(env: Mapping[str, str] | None, cwd: str | None) -> str:
    """Returns shell text that sets variables and changes the directory before a command."""
    lines = []
    if env is not None and not isinstance(env, Mapping):
        raise errors.Usage(f"env is {type(env).__name__}, and not a dict")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise errors.Usage(f"env {name!r}: a name is letters, digits and _")
        check_text(f"env {name}: the value", value)
        lines.append(f"export {name}={shlex.quote(value)} || exit\n")
    if cwd:
        check_text("cwd", cwd)
        if not cwd.startswith("/"):
            cwd = "./" + cwd  # - and what CDPATH has would be others
        lines.append(f"cd {shlex.quote(cwd)} || exit\n")
    return "".join(lines)


class Options(TypedDict):
    """The options of execute that callers of exec choose."""

    input: bytes
    timeout: float | None
    max_output: int


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
    link: Link,
    line: str,
    *,
    input: bytes = b"",
    timeout: float | None = None,
    max_output: int = MAX_OUTPUT,
    more_stderr: int = 0,
    what: str = "exec",
) -> ExecResult:
    """Runs a line on a connection. more_stderr: bytes of it that are kept beyond max_output. Raises
    Timeout; Lost; and Limit or Unavailable if it did not run."""
    out, err = _Sink(max_output), _Sink(max_output + more_stderr)
    try:
        code, signal = await asyncio.wait_for(_run(link, line, input, out, err, what), timeout)
    except asyncio.TimeoutError:
        late = errors.Timeout(
            f"the command still ran after {timeout:g} s",
            hint="it got HUP; its output is in stdout",
        )
        late.stdout, late.stderr = bytes(out.data), bytes(err.data)
        raise late from None
    if signal:
        code = 128 + _number(signal)
    truncated = out.truncated or err.truncated
    return ExecResult(code or 0, bytes(out.data), bytes(err.data), signal, truncated)


async def _run(
    link: Link, line: str, input: bytes, out: _Sink, err: _Sink, what: str
) -> tuple[int | None, str]:
    """Runs a line, and returns its exit code and the name of the signal that ended it, without
    SIG. If the caller is cancelled, the command gets HUP."""
    import asyncssh

    slot = await link.acquire()
    try:
        process: asyncssh.SSHClientProcess[bytes] = await slot.open(
            slot.ssh.create_process(line, encoding=None), lambda late: late.channel
        )
        try:
            await asyncio.gather(
                _feed(process, input), out.drain(process.stdout), err.drain(process.stderr)
            )
            await process.wait_closed()
        finally:
            slot.close(process.channel)
    except asyncssh.ChannelOpenError as e:
        if slot.ssh.is_closed():  # the request may have arrived
            raise link.lost(f"{what}: {e.reason}", slot) from e
        raise refused(e) from e
    except (asyncssh.Error, OSError) as e:
        raise link.lost(f"{what}: {e}", slot) from e
    if process.exit_status is None and not process.exit_signal:
        raise link.lost(f"{what}: the connection ended before the command did", slot)
    return process.exit_status, process.exit_signal[0] if process.exit_signal else ""


async def _feed(process: asyncssh.SSHClientProcess[bytes], input: bytes) -> None:
    import asyncssh

    try:
        for at in range(0, len(input), _CHUNK):
            process.stdin.write(input[at : at + _CHUNK])
            await process.stdin.drain()
        process.stdin.write_eof()
    except (asyncssh.Error, OSError):
        pass  # the command reads no more; its exit code says the rest


async def control(
    link: Link, *words: str, input: bytes | None = None, timeout: float | None = None
) -> list[dict[str, Any]]:
    """Runs a command of the daemon with --json, and returns its objects, one of each line. Raises
    the error that one of them has, and Error if the command fails without one. timeout: seconds,
    after which it raises Timeout."""
    line = shlex.join([words[0], "--json", *words[1:]])
    try:
        done = await execute(link, line, input=input or b"", timeout=timeout, what=words[0])
    except errors.Timeout as e:
        raise errors.Timeout(
            f"{words[0]}: the daemon has not answered for {timeout:g} s",
            hint="see sandboxd daemon status",
        ) from e
    objects = json_lines(done.stdout)
    for value in objects:
        if "ended" not in value:  # it is no Result, which has an error of its own
            errors.check_wire(value.get("error"))
    if done.truncated:
        raise errors.Limit(f"{words[0]}: the answer is longer than {MAX_OUTPUT} bytes")
    if not done.ok and not any("ended" in value for value in objects):
        said = done.error_text.strip() or f"code {done.exit_code}"
        raise errors.Error(f"{words[0]}: {said}")
    return objects


async def as_user(
    link: Link, name: str, user: str, line: str, **options: Unpack[Options]
) -> ExecResult:
    """Runs a line as a user, by the daemon. Raises what the daemon says if it does not run it.

    The daemon says that in place of the command's output. So the command first prints a mark that
    nobody in the sandbox can guess; before that, its shell may print warnings.
    """
    mark, most = secrets.token_hex(16), options["max_output"]
    more = len(mark) + _NOISE
    words = ["exec", "--interactive", "--user", user, name, "--", f"printf {mark} >&2\n{line}"]
    try:
        done = await execute(link, shlex.join(words), **options, more_stderr=more)
    except errors.Timeout as late:
        late.stderr = late.stderr.replace(mark.encode(), b"", 1)[:most]
        raise
    before, marked, after = done.stderr.partition(mark.encode())
    if marked:
        said = before + after
        cut = done.truncated or len(said) > most
        return dataclasses.replace(done, stderr=said[:most], truncated=cut)
    if len(done.stderr) == most + more:  # the mark may be in what was dropped
        raise errors.Lost(
            f"the shell of user {user} printed more than {_NOISE} bytes before the command",
            hint="the command may have run: see what its shell reads when it starts",
        )
    message, _, hint = done.error_text.strip().removeprefix("sandboxd: ").partition("; ")
    message = message or f"exec: code {done.exit_code}"
    if done.exit_code == _USAGE:
        raise errors.Usage(message, hint=hint)
    raise errors.Error(message, code="failed", hint=hint)


def daemon_said(done: ExecResult) -> str:
    """Returns what may be the daemon's reason why a command did not run, or an empty string. It
    says `sandboxd: REASON` in place of the output, which a command can do as well."""
    last = done.error_text.strip().rpartition("\n")[2]
    if done.exit_code != _TRANSPORT or done.stdout or not last.startswith("sandboxd: "):
        return ""
    return last.removeprefix("sandboxd: ")


def _number(signal: str) -> int:
    """Returns the number that Linux gives a signal, or 0. Those without a name come as digits."""
    if signal.isdecimal() and len(signal) < 3:
        return int(signal)
    return _SIGNALS.get(signal, 0)


_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9,
    "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CHLD": 17, "CONT": 18,
    "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26,
    "PROF": 27, "WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31,
}  # fmt: skip
