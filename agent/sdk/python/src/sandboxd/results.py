"""What calls return. Fields have the names and meanings of the daemon's JSON (`from` is `from_`).

A field that this version does not know is in `raw`, which is the whole object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")


def _fields(kind: type[_T], of: Mapping[str, Any], **more: Any) -> _T:
    """Returns a kind with those fields of the object that it declares; null is the default."""
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {k: v for k, v in of.items() if k in known and v is not None}
    return kind(**{**values, **more})


@dataclass(frozen=True)
class Process:
    """A program of a session."""

    pid: int = 0
    argv: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Screen:
    """What a terminal shows.

    text: its lines, joined by newlines, without trailing blanks and empty lines at the end.
    cols, rows: its size in characters. cursor_x, cursor_y: from 0, at the top left.
    alt_screen: the program uses the whole screen, like an editor.
    """

    text: str = ""
    cols: int = 0
    rows: int = 0
    cursor_x: int = 0
    cursor_y: int = 0
    cursor_visible: bool = True
    alt_screen: bool = False
    title: str = ""
    offset: int = 0
    stopped: bool = False


@dataclass(frozen=True)
class Result:
    """What the terminal did during a call of a session.

    ended: why the call returned: "done" (the shell is at its prompt), "waiting" (a program asks for
        input), "attention" (a program that reads the keyboard has come to rest), "deadline" (still
        running), "interrupted", "taken_over" (by a person), "continuation" (the shell waits for the
        rest of a command), "matched", "returned", "dead" (the shell ended).
    output: what was printed, as text: redrawn lines collapsed, escape sequences removed, invalid
        UTF-8 replaced. `truncated` says that the middle is missing.
    exit_code: of the command that ended; None if none did, or if it is not known.
    want: while waiting, the kind of input: "line", "password", "raw", "pager", "fullscreen".
    prompt: while waiting, the text before the cursor.
    screen: if the program uses the whole screen, or has come to rest; None otherwise.
    notes: such as "shell_restarted" or "oom_killed".
    denied: connections that the network policy blocked: host, port, why, allow.
    from_, to: offsets of the output's bytes in the record of the session.
    elapsed_ms: duration of the call in milliseconds.
    """

    sandbox: str = ""
    session: str = ""
    ended: str = ""
    phase: str = ""
    output: str = ""
    truncated: bool = False
    exit_code: int | None = None
    signal: str | None = None
    want: str | None = None
    prompt: str = ""
    screen: Screen | None = None
    cwd: str = ""
    foreground: Process | None = None
    listens: bool = False
    attention: str = "no"
    notice: str | None = None
    program: str | None = None
    looks_like_shell: bool = False
    keyboard: str = ""
    notes: list[str] = field(default_factory=list)
    denied: list[dict[str, Any]] = field(default_factory=list)
    receipt: dict[str, Any] | None = None
    taken_over: dict[str, Any] | None = None
    basis: list[str] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)
    from_: int = 0
    to: int = 0
    quiet_ms: int = 0
    elapsed_ms: int = 0
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether a command ended with exit code 0."""
        return self.ended == "done" and self.exit_code == 0

    @property
    def waiting(self) -> bool:
        """Whether a program waits for input, or the shell for the rest of a command."""
        return self.ended in ("waiting", "continuation")

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Result:
        """Returns the Result of the daemon's JSON object."""
        front, screen = value.get("foreground"), value.get("screen")
        return _fields(
            cls,
            value,
            from_=value.get("from", 0),
            foreground=_fields(Process, front) if isinstance(front, Mapping) else None,
            screen=screen_of(screen) if isinstance(screen, Mapping) else None,
            raw=dict(value),
        )


def screen_of(value: object) -> Screen:
    """Returns the Screen of the daemon's JSON object; an empty one if it is none."""
    return _fields(Screen, value if isinstance(value, Mapping) else {})


@dataclass(frozen=True)
class ExecResult:
    """How a command without a session ended.

    exit_code: its exit status; 128 + n after signal n, whose name without SIG is `signal`.
    stdout, stderr: its exact bytes. truncated: one of them lacks its end.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    signal: str = ""
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """stdout as UTF-8; invalid bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as UTF-8; invalid bytes are replaced."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox, as the daemon lists and describes it.

    state: "running", "stopped", "creating", …; `reason` says why. raw: all fields, see the daemon's
    JSON reference for `new`, `ls` and `describe`.
    """

    name: str = ""
    id: str = ""
    owner: str = ""
    state: str = ""
    reason: str = ""
    created: str = ""
    backend: str = ""
    image: str = ""
    about: str = ""
    user: str = ""
    network: str = ""
    ssh_command: str = ""
    ssh_uri: str = ""
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> SandboxInfo:
        """Returns the SandboxInfo of the daemon's JSON object."""
        return _fields(cls, value, raw=dict(value))
