"""What can go wrong, as types.

Every error that the package raises by itself is an `Error`. Its `code` is one of the error codes of
the daemon; the subclasses are for the codes that programs branch on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import Result


class Error(Exception):
    """A call failed.

    code: the daemon's word for it, such as "not_found"; stable.
    message: what happened, one line.
    hint: what to do about it; empty if there is nothing to say.
    reason: of a `Lost`, why, such as "sandbox_stopped"; empty otherwise.
    result: what was known when a call of a session failed: its output so far, the phase and the
        screen. None for all other calls.
    """

    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        hint: str = "",
        reason: str = "",
        result: Result | None = None,
    ) -> None:
        super().__init__(message)
        if code:
            self.code = code
        self.message = message
        self.hint = hint
        self.reason = reason
        self.result = result

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class NotFound(Error):
    """There is no such sandbox, session or file for the caller."""

    code = "not_found"


class Exists(Error):
    """The name is taken."""

    code = "exists"


class Denied(Error):
    """The caller lacks the right, or the login failed: a wrong key, or an unknown host key."""

    code = "denied"


class Unavailable(Error):
    """It does not work now or here: no daemon answers, or the sandbox is stopped. Nothing ran."""

    code = "unavailable"


class Usage(Error):
    """The call is wrong, and would fail again."""

    code = "usage"


class Lost(Error):
    """The connection, the sandbox or the guest went away during a call, which may have run.

    Nothing is repeated. The next call connects again. `reason` says why, `result` what was known.
    """

    code = "lost"


class Busy(Error):
    """The session cannot take the call now.

    code "not_prompt": a program runs, which `result` describes. "not_waiting": no program asks.
    "keyboard_held": a person has the keyboard.
    """

    code = "not_prompt"


class Limit(Error):
    """A limit is reached; `code` says which: limit_sessions, limit_sandboxes, limit_quota, …"""

    code = "limit"


class Timeout(Error, TimeoutError):
    """A command without a session did not end in time; it got HUP. Or a call of files did not.
    (`Session.run` returns a Result whose `ended` is "deadline" instead, as its command goes on.)

    stdout, stderr: what the command had printed until then.
    """

    code = "timeout"
    stdout: bytes = b""
    stderr: bytes = b""


_BY_CODE: dict[str, type[Error]] = {
    "not_found": NotFound,
    "exists": Exists,
    "denied": Denied,
    "unavailable": Unavailable,
    "usage": Usage,
    "syntax": Usage,
    "line_too_long": Usage,
    "lost": Lost,
    "not_prompt": Busy,
    "not_waiting": Busy,
    "keyboard_held": Busy,
}


def from_wire(error: Mapping[str, Any], result: Result | None = None) -> Error:
    """Returns the error for the object {"code","message","hint","reason"} of the daemon."""
    code = str(error.get("code") or "internal")
    kind = Limit if code.startswith("limit_") else _BY_CODE.get(code, Error)
    return kind(
        str(error.get("message") or code),
        code=code,
        hint=str(error.get("hint") or ""),
        reason=str(error.get("reason") or ""),
        result=result,
    )


def check_wire(error: object) -> None:
    """Raises the error of the daemon, if it is one."""
    if error:
        raise from_wire(error if isinstance(error, Mapping) else {"message": str(error)})
