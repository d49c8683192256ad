#!/usr/bin/env python3
"""Compares two ways to drive a terminal: terminal_loops.py [REPORT]

One scripted model does the same tasks twice, each in a new sandbox. The tmux loop works as Terminus
2 of Harbor does, by the rules of its prompt: it sends keystrokes with a guess of how long they take
(0.1 s for what is immediate, 1 s for a compiler, 10 s to wait on), and then looks at the screen.
The session loop gets Results: why the call returned, and what the program asks. With REPORT, the
table between the marks of that page is replaced.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from sandboxd import Result, Sandbox

POLL = 10.0  # seconds that the prompt of Terminus 2 says to wait on with
PATIENCE = 60.0  # seconds without anything new after which the model interrupts
MAX_TURNS = 60
SHELL = re.compile(r"[#$] ?$")  # how the model knows the prompt of a shell by its looks

DEPLOY = r"""cat >/usr/local/bin/deploy <<'EOF'
#!/bin/bash
echo 'The new server greets with:'
printf 'root@web:~# '
sleep 3
echo
read -p 'Drop the old database? [y/N] ' answer
echo "answer=$answer" >/tmp/answer
EOF
chmod +x /usr/local/bin/deploy"""


@dataclass
class Step:
    """A command. guess: how long the model thinks that it takes, in seconds, by the rules of the
    prompt. answers: what it types, one after the other, when the last line of what it sees matches
    the first of the two; Enter follows unless that is a key of its own."""

    command: str
    guess: float = 0.1
    answers: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Task:
    """check: a command that succeeds if the steps have done what was wanted."""

    name: str
    steps: list[Step]
    check: str
    setup: str = "true"


TASKS = [
    Task(
        "twenty short commands",
        [Step(f"echo {i} >>/tmp/out") for i in range(20)],
        "test $(wc -l </tmp/out) = 20",
    ),
    Task(
        "a build of 4 s that looks like one of 1 s",
        [Step("sleep 4; echo ok >/tmp/built", 1.0)],
        "cat /tmp/built",
    ),
    Task(
        "a silent build of 25 s",
        [Step("sleep 25; echo ok >/tmp/built", POLL)],
        "cat /tmp/built",
    ),
    Task(
        "a question after 3 s",
        [Step("sleep 3; read -p 'Continue? [Y/n] ' a; echo $a >/tmp/a", 1.0, [(r"\[Y/n\]", "y")])],
        "grep -qx y /tmp/a",
    ),
    Task(
        "a password",
        [Step("read -sp 'Password: ' p; echo ${#p} >/tmp/p", 0.1, [("Password:", "hunter2")])],
        "grep -qx 7 /tmp/p",
    ),
    Task(
        "a pager",
        [Step("less /tmp/long", 0.1, [("^:|^/tmp/long|END", "q")]), Step("echo on >/tmp/on")],
        "cat /tmp/on",
        "seq 1000 >/tmp/long",
    ),
    Task(
        "three statements at Python's prompt",
        [
            Step(
                "python3 -q",
                1.0,
                [
                    (">>>", "import time; time.sleep(2); x = 6 * 7"),
                    (">>>", "open('/tmp/x', 'w').write(str(x))"),
                    (">>>", "exit()"),
                ],
            )
        ],
        "grep -qx 42 /tmp/x",
    ),
    Task(
        "output that looks like a prompt",
        [Step("deploy", 1.0, [(r"\[y/N\]", "n")]), Step("echo on >/tmp/on")],
        "grep -qx answer=n /tmp/answer && cat /tmp/on",
        DEPLOY,
    ),
    Task(
        "a command that waits for input by mistake",
        [Step("cat >/tmp/notes"), Step("echo on >/tmp/on")],
        "cat /tmp/on && ! test -s /tmp/notes",
    ),
    Task(
        "a background job that prints after the prompt",
        [Step("(sleep 0.5; echo noise) &"), Step("sleep 1", 1.0), Step("echo on >/tmp/on")],
        "cat /tmp/on",
    ),
]


@dataclass
class Tally:
    """turns: replies of the model. interrupts: programs that it gave up on."""

    turns: int = 0
    interrupts: int = 0
    seconds: float = 0.0
    done: bool = False


class OutOfTurns(Exception):
    """The model has used all its turns."""


def matches(answers: list[tuple[str, str]], text: str) -> bool:
    """Reports whether the model would answer what it sees."""
    return bool(answers) and re.search(answers[0][0], text) is not None


class TmuxLoop:
    """Keystrokes, a guessed duration, and a look at the screen."""

    def __init__(self, sbx: Sandbox) -> None:
        self.sbx, self.tally = sbx, Tally()
        self.exec("tmux -L t new-session -d -x 160 -y 40 bash")

    def exec(self, command: str) -> str:
        return self.sbx.exec(command).text

    def turn(self, keys: list[str], seconds: float) -> str:
        """Sends keys, waits, and returns the screen."""
        if self.tally.turns == MAX_TURNS:
            raise OutOfTurns
        self.tally.turns += 1
        if keys:
            quoted = " ".join("'" + k.replace("'", "'\\''") + "'" for k in keys)
            self.exec(f"tmux -L t send-keys -- {quoted}")
        time.sleep(seconds)
        return self.exec("tmux -L t capture-pane -p").rstrip()

    def run(self, step: Step) -> None:
        answers = list(step.answers)
        screen, since = self.turn([step.command, "Enter"], step.guess), time.monotonic()
        while True:
            last = screen.rpartition("\n")[2]
            before = screen
            if matches(answers, last):
                text = answers.pop(0)[1]
                screen = self.turn([text] if text == "q" else [text, "Enter"], 1.0)
            elif SHELL.search(last):
                return
            elif time.monotonic() - since >= PATIENCE:
                self.tally.interrupts += 1
                screen = self.turn(["C-c"], 1.0)
            else:
                screen = self.turn([], POLL)
            if screen != before:
                since = time.monotonic()


class SessionLoop:
    """Calls that return when the program has ended or asks."""

    def __init__(self, sbx: Sandbox) -> None:
        self.sbx, self.tally = sbx, Tally()

    def count(self) -> None:
        if self.tally.turns == MAX_TURNS:
            raise OutOfTurns
        self.tally.turns += 1

    def run(self, step: Step) -> None:
        answers = list(step.answers)
        self.count()
        result = self.sbx.run(step.command, timeout=PATIENCE)
        while result.ended != "done" or result.program:
            self.count()
            if matches(answers, seen(result)):
                text = answers.pop(0)[1]
                result = self.sbx.keys("q") if text == "q" else self.sbx.type(text)
            elif result.ended in ("waiting", "deadline"):  # for what nobody wants to give
                self.tally.interrupts += 1
                result = self.sbx.interrupt()
                return
            else:
                result = self.sbx.wait(timeout=PATIENCE)


def seen(result: Result) -> str:
    """Returns the line in front of the model."""
    if result.screen and result.want == "pager":
        return result.screen.text.rstrip().rpartition("\n")[2]
    return result.prompt or (result.output.rstrip().rpartition("\n")[2] if result.program else "")


def measure(task: Task, kind: type[TmuxLoop] | type[SessionLoop]) -> Tally:
    """Does a task in a new sandbox."""
    with Sandbox.create() as sbx:
        if kind is TmuxLoop:
            sbx.exec("apt-get -qq update && apt-get -qqy install tmux")
        sbx.exec(task.setup)
        loop = kind(sbx)
        begun = time.monotonic()
        try:
            for step in task.steps:
                loop.run(step)
        except OutOfTurns:
            pass
        loop.tally.seconds = time.monotonic() - begun
        loop.tally.done = sbx.exec(task.check).ok
        return loop.tally


def main() -> None:
    rows = [
        "| task | tmux loop: turns | time | given up | done "
        "| session loop: turns | time | given up | done |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    sums: dict[type[TmuxLoop] | type[SessionLoop], Tally] = {
        TmuxLoop: Tally(),
        SessionLoop: Tally(),
    }
    solved = dict.fromkeys(sums, 0)
    for task in TASKS:
        cells = [task.name]
        for kind, total in sums.items():
            one = measure(task, kind)
            cells += [str(one.turns), f"{one.seconds:.1f} s", str(one.interrupts),
                      "yes" if one.done else "**no**"]  # fmt: skip
            total.turns += one.turns
            total.seconds += one.seconds
            total.interrupts += one.interrupts
            solved[kind] += one.done
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    cells = ["all"]
    for kind, total in sums.items():
        cells += [str(total.turns), f"{total.seconds:.1f} s", str(total.interrupts),
                  f"{solved[kind]} of {len(TASKS)}"]  # fmt: skip
    rows.append(f"| {' | '.join(cells)} |")
    print(rows[-1])
    if len(sys.argv) > 1:
        page = Path(sys.argv[1])
        table = "\n".join(rows)
        mark = "<!-- terminal-loops: {} -->"
        text = re.sub(
            f"({mark.format('begin')}).*({mark.format('end')})",
            lambda m: f"{m[1]}\n\n{table}\n\n{m[2]}",
            page.read_text(),
            flags=re.S,
        )
        page.write_text(text)


if __name__ == "__main__":
    main()
