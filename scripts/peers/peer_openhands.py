"""OpenHands' terminal tool, as its agent calls it (TerminalExecutor), with its tmux and its subprocess backend.

The tool gives each call of the tmux backend a pane of a pool, and interrupts what still runs in the pane before the call:
nothing can be typed into a program. OpenHandsTmuxSession is the same backend without the pool, one session as the subprocess
backend has it, so that the backend is not judged by that alone.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import Protocol

from openhands.sdk.workspace import LocalWorkspace
from openhands.tools.terminal.definition import TerminalAction, TerminalObservation
from openhands.tools.terminal.impl import TerminalExecutor
from openhands.tools.terminal.terminal.factory import create_terminal_session
from openhands.tools.terminal.terminal.terminal_session import TerminalSession

from peer import DEAD, DEADLINE, Answer, Cannot, Hint, done, from_returncode

# The names that its description tells the model, by ours.
KEYS = {
    "Enter": "ENTER", "Tab": "TAB", "Backspace": "BS", "Esc": "ESC", "Escape": "ESC", "Up": "UP", "Down": "DOWN",
    "Left": "LEFT", "Right": "RIGHT", "Home": "HOME", "End": "END", "PageUp": "PGUP", "PageDown": "PGDN",
}  # fmt: skip


def key_name(key: str) -> str:
    """The tool's name of a key; raises Cannot where it has none."""
    if len(key) == 2 and key[0] == "^" and key[1].isalpha():
        return f"C-{key[1].lower()}"
    if len(key) == 1:  # as input; it adds Enter, which most programs that take single keys forgive
        return key
    if key not in KEYS:
        raise Cannot(f"the key {key}")
    return KEYS[key]


def read(obs: TerminalObservation) -> Answer:
    """What an observation says, in the words of the corpus."""
    said = obs.metadata.suffix
    if "is NOT executed" in said:
        return Answer(ended="refused", phase="running", error="not_prompt", output=obs.text)
    if "session was reset" in obs.text:
        return Answer(**DEAD, output=obs.text)
    if obs.is_error:
        return Answer(ended="refused", output=obs.text)
    if "no new output" in said or "timed out" in said:
        return Answer(**DEADLINE, output=obs.text)
    code = obs.metadata.exit_code
    return done(None if code == -1 else code, obs.text, cwd=obs.metadata.working_dir)


class Tool(Protocol):
    def __call__(self, action: TerminalAction) -> TerminalObservation: ...
    def close(self) -> None: ...


class OpenHands:
    """The tool with one of its backends."""

    version = version("openhands-tools")

    def __init__(self, backend: str) -> None:
        self.name = f"openhands-{backend}"
        self.backend = backend
        self.tools: dict[str, Tool] = {}
        self.busy: set[str] = set()  # sessions whose last call left a program running

    def open(self, session: str, start: dict) -> None:
        if start.get("argv"):
            raise Cannot("a login shell of one's choice: it speaks to bash")
        # Its set-up is typed, and a first call that comes at once takes the prompt of that for its own. So it is given
        # time, and a call that nobody judges; when that comes to nothing it is started again.
        for _ in range(3):
            self.tools[session] = self._make()
            time.sleep(1)
            if self._call(session, command="true", timeout=5).ended == "done":
                return
            self.end(session)
            self.busy.discard(session)
        raise TimeoutError("no prompt after three starts")

    def _make(self) -> Tool:
        return TerminalExecutor(working_dir=os.path.expanduser("~"), terminal_type=self.backend)  # type: ignore[arg-type]

    def _call(self, session: str, **action: object) -> Answer:
        answer = read(self.tools[session](TerminalAction(**action)))  # type: ignore[arg-type]
        if answer.ended == "deadline":
            self.busy.add(session)
        elif answer.ended != "refused":
            self.busy.discard(session)
        return answer

    def run(self, session: str, command: str, timeout: float, hint: Hint) -> Answer:
        return self._call(session, command=command, timeout=timeout)

    def type(self, session: str, text: str, timeout: float, hint: Hint) -> Answer:
        return self._call(session, command=text, is_input=session in self.busy, timeout=timeout)

    def raw(self, session: str, text: str, timeout: float) -> Answer:
        raise Cannot("text without Enter")

    def keys(self, session: str, keys: list[str], timeout: float) -> Answer:
        answer = Answer()
        for name in [key_name(key) for key in keys]:
            answer = self._call(session, command=name, is_input=session in self.busy, timeout=timeout)
        return answer

    def wait(self, session: str, timeout: float) -> Answer:
        return self._call(session, command="", is_input=session in self.busy, timeout=timeout)

    def interrupt(self, session: str, timeout: float) -> Answer:
        answer = self._call(session, command="C-c", is_input=session in self.busy, timeout=min(timeout, 5))
        if answer.ended == "done":
            answer.ended = "interrupted"
        return answer

    def screen(self, session: str) -> Answer:
        raise Cannot("a screen")

    def exec(self, command: str, stdin: str, timeout: float) -> Answer:
        if stdin:
            raise Cannot("standard input of a command without a terminal")
        got = LocalWorkspace(working_dir=os.path.expanduser("~")).execute_command(command, timeout=timeout)
        if got.timeout_occurred:
            return Answer(**DEADLINE)
        return from_returncode(got.exit_code, output=got.stdout, stderr=got.stderr)

    def end(self, session: str) -> None:
        self.tools.pop(session).close()


class OpenHandsTmuxSession(OpenHands):
    """The tmux backend without the tool's pool of panes."""

    def __init__(self) -> None:
        super().__init__("tmux")
        self.name = "openhands-tmux-session"

    def _make(self) -> Tool:
        session = create_terminal_session(work_dir=os.path.expanduser("~"), terminal_type="tmux")
        session.initialize()
        return _Session(session)


class _Session:
    def __init__(self, session: TerminalSession) -> None:
        self.session = session

    def __call__(self, action: TerminalAction) -> TerminalObservation:
        return self.session.execute(action)

    def close(self) -> None:
        self.session.close()
