"""What the player of cases asks of a product: one call each for what a terminal tool can be asked to do.

A peer translates a call to the product's own API and says the answer in the words of the corpus (docs/reference/json.md, Result).
It says only what the product says: a call that came back because its time was up is "deadline", whatever the program does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Cannot(Exception):
    """The product's API has no call for this. The message says what is missing."""


@dataclass
class Answer:
    """What a call got. A field that the product does not tell keeps its zero value."""

    ended: str = ""  # done, deadline, interrupted, refused, dead; "expected": the text given in advance was printed
    phase: str = ""  # prompt, running, dead
    exit_code: int | None = None
    signal: str = ""
    output: str = ""
    stderr: str | None = None  # None where it is not kept apart
    error: str = ""  # syntax, not_prompt
    cwd: str | None = None


@dataclass
class Hint:
    """What the caller knows of a program in advance. A product that wants to be told is told."""

    interactive: bool = False  # it will ask for input, so its end is not to be waited for
    ends: bool = False  # what is typed ends the program, and the shell's prompt follows
    expect: list[str] = field(default_factory=list)  # texts that it prints when it asks


class Peer(Protocol):
    """A product under test. Sessions are named; times are in seconds. Only the methods that the product has a call for
    do something, the others raise Cannot."""

    name: str
    version: str

    def open(self, session: str, start: dict) -> None: ...
    def run(self, session: str, command: str, timeout: float, hint: Hint) -> Answer: ...
    def type(self, session: str, text: str, timeout: float, hint: Hint) -> Answer: ...
    def raw(self, session: str, text: str, timeout: float) -> Answer: ...
    def keys(self, session: str, keys: list[str], timeout: float) -> Answer: ...
    def wait(self, session: str, timeout: float) -> Answer: ...
    def interrupt(self, session: str, timeout: float) -> Answer: ...
    def screen(self, session: str) -> Answer: ...
    def exec(self, command: str, stdin: str, timeout: float) -> Answer: ...
    def end(self, session: str) -> None: ...


DEADLINE = {"ended": "deadline", "phase": "running"}
DEAD = {"ended": "dead", "phase": "dead"}


def done(code: int | None, output: str, **more: object) -> Answer:
    """The answer of a product that says that the command is over."""
    return Answer(ended="done", phase="prompt", exit_code=code, output=output, **more)  # type: ignore[arg-type]


def from_returncode(code: int, **more: object) -> Answer:
    """The answer for a return code of Python's subprocess, which is negative after a signal."""
    import signal

    if code < 0:
        name = signal.Signals(-code).name.removeprefix("SIG")
        return Answer(ended="done", signal=name, **more)  # type: ignore[arg-type]
    return Answer(ended="done", exit_code=code, **more)  # type: ignore[arg-type]
