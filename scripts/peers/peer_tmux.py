"""A terminal tool over tmux as people write one: type the command, poll the screen each 100 ms for the prompt, give up when
the time is over, ask for $? with a second command."""

from __future__ import annotations

import re
import subprocess
import time

from peer import DEADLINE, Answer, Cannot, Hint, done

PROMPT = re.compile(r"[$#]\s*$")
POLL = 0.1
KEYS = {"Esc": "Escape", "Backspace": "BSpace", "PageUp": "PPage", "PageDown": "NPage", "Delete": "DC"}


def tmux(*args: str) -> str:
    return subprocess.run(["tmux", *args], check=True, capture_output=True, text=True, errors="replace").stdout


def key_name(key: str) -> str:
    return f"C-{key[1].lower()}" if len(key) == 2 and key[0] == "^" else KEYS.get(key, key)


class Tmux:
    name = "tmux-agent"
    version = tmux("-V").split()[-1]

    def open(self, session: str, start: dict) -> None:
        size = ["-x", str(start.get("cols") or 200), "-y", str(start.get("rows") or 50)]
        tmux("set-option", "-g", "history-limit", "50000", ";", "new-session", "-d", "-s", session, *size, *start.get("argv", ["bash"]))
        self._wait(session, 10)

    def _screen(self, session: str) -> str:
        return tmux("capture-pane", "-t", session, "-p", "-J", "-S", "-").rstrip()

    def _wait(self, session: str, timeout: float) -> bool:
        """Reports whether the last line looks like a prompt before the time is over."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            time.sleep(POLL)
            lines = self._screen(session).splitlines()
            if lines and PROMPT.search(lines[-1]):
                return True
        return False

    def _clear(self, session: str) -> None:
        tmux("send-keys", "-t", session, "-R")
        tmux("clear-history", "-t", session)
        tmux("send-keys", "-t", session, "C-l")
        time.sleep(POLL)

    def _line(self, session: str, text: str) -> None:
        tmux("send-keys", "-t", session, "-l", "--", text)
        tmux("send-keys", "-t", session, "Enter")

    def run(self, session: str, command: str, timeout: float, hint: Hint) -> Answer:
        self._clear(session)
        self._line(session, command)
        return self._result(session, timeout, skip=1 + command.count("\n"))

    def _result(self, session: str, timeout: float, skip: int = 0) -> Answer:
        """What the screen shows below the first lines, and $? when the prompt is there."""
        ready = self._wait(session, timeout)
        lines = self._screen(session).splitlines()[skip:]
        if not ready:
            return Answer(**DEADLINE, output="\n".join(lines))
        self._clear(session)
        self._line(session, "echo $?")
        self._wait(session, 5)
        code = re.search(r"^(\d+)$", self._screen(session), re.MULTILINE)
        return done(int(code[1]) if code else None, "\n".join(lines[:-1]))

    def type(self, session: str, text: str, timeout: float, hint: Hint) -> Answer:
        skip = len(self._screen(session).splitlines())
        self._line(session, text)
        return self._result(session, timeout, skip)

    def raw(self, session: str, text: str, timeout: float) -> Answer:
        tmux("send-keys", "-t", session, "-l", "--", text)
        return Answer(**DEADLINE, output=self._screen(session))

    def keys(self, session: str, keys: list[str], timeout: float) -> Answer:
        skip = len(self._screen(session).splitlines())
        tmux("send-keys", "-t", session, *map(key_name, keys))
        return self._result(session, timeout, skip)

    def wait(self, session: str, timeout: float) -> Answer:
        return self._result(session, timeout)

    def interrupt(self, session: str, timeout: float) -> Answer:
        answer = self.keys(session, ["^C"], min(timeout, 5))
        if answer.ended == "done":
            answer.ended = "interrupted"
        return answer

    def screen(self, session: str) -> Answer:
        return Answer(output=self._screen(session))

    def exec(self, command: str, stdin: str, timeout: float) -> Answer:
        # There is only the terminal, so it takes another one.
        if stdin:
            raise Cannot("standard input of a command without a terminal")
        self.open("exec", {})
        answer = self.run("exec", command, timeout, Hint())
        self.end("exec")
        return answer

    def end(self, session: str) -> None:
        tmux("kill-session", "-t", session)
