"""SWE-ReX: swerex.runtime.local.LocalRuntime with its BashSession, as its server uses them inside a container."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

import pexpect
from swerex.exceptions import BashIncorrectSyntaxError, CommandTimeoutError
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)
from swerex.runtime.local import LocalRuntime

from peer import DEAD, DEADLINE, Answer, Cannot, Hint, from_returncode


class SweRex:
    name = "swe-rex"
    version = version("swe-rex")

    def __init__(self) -> None:
        self.runtime = LocalRuntime()

    def open(self, session: str, start: dict) -> None:
        if start.get("argv"):
            raise Cannot("a login shell of one's choice: it starts bash")
        # Its default of one second for the first prompt is short on a busy machine.
        asyncio.run(self.runtime.create_session(CreateBashSessionRequest(session=session, startup_timeout=10)))

    def run(self, session: str, command: str, timeout: float, hint: Hint) -> Answer:
        return self._act(session, command, timeout, hint)

    def type(self, session: str, text: str, timeout: float, hint: Hint) -> Answer:
        # Its API has no text for a program other than an interactive command.
        return self._act(session, text, timeout, Hint(interactive=not hint.ends, ends=hint.ends, expect=hint.expect))

    def _act(self, session: str, command: str, timeout: float, hint: Hint) -> Answer:
        expected = {re.escape(text): text for text in hint.expect}
        action = BashAction(
            command=command,
            session=session,
            timeout=timeout,
            check="silent",
            is_interactive_command=hint.interactive,
            is_interactive_quit=hint.ends,
            expect=list(expected),
        )
        answer = self._call(self.runtime.run_in_session(action))
        if isinstance(answer, Answer):
            return answer
        if answer.expect_string in expected:
            return Answer(ended="expected", output=f"{answer.output}\n{expected[answer.expect_string]}")
        return Answer(ended="done", phase="prompt", exit_code=answer.exit_code, output=answer.output)

    def _call(self, call: Coroutine[Any, Any, Any]) -> BashObservation | Answer:
        try:
            return asyncio.run(call)
        except (CommandTimeoutError, pexpect.TIMEOUT) as err:
            return Answer(**DEADLINE, output=str(err))
        except BashIncorrectSyntaxError as err:
            return Answer(ended="refused", phase="prompt", error="syntax", output=str(err))
        except pexpect.EOF:
            return Answer(**DEAD)

    def raw(self, session: str, text: str, timeout: float) -> Answer:
        raise Cannot("text without Enter")

    def keys(self, session: str, keys: list[str], timeout: float) -> Answer:
        if keys != ["^C"]:
            raise Cannot("keys other than ^C")
        return self.interrupt(session, timeout)

    def wait(self, session: str, timeout: float) -> Answer:
        raise Cannot("waiting on for a command after its time was up")

    def interrupt(self, session: str, timeout: float) -> Answer:
        answer = self._call(self.runtime.run_in_session(BashInterruptAction(session=session)))
        if isinstance(answer, Answer):
            return answer
        return Answer(ended="interrupted", phase="prompt", output=answer.output)

    def screen(self, session: str) -> Answer:
        raise Cannot("a screen")

    def exec(self, command: str, stdin: str, timeout: float) -> Answer:
        if stdin:
            raise Cannot("standard input of a command without a terminal")
        call = Command(command=["bash", "-c", command], timeout=timeout)
        try:
            got = asyncio.run(self.runtime.execute(call))
        except CommandTimeoutError:
            return Answer(**DEADLINE)
        return from_returncode(got.exit_code, output=got.stdout, stderr=got.stderr)

    def end(self, session: str) -> None:
        asyncio.run(self.runtime.close_session(CloseBashSessionRequest(session=session)))
