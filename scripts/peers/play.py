"""Plays the cases of the corpus with one product, inside the sandbox: play.py PEER < cases > outcomes, a JSON object a
line on both sides. Each case runs in a process of its own, all of whose descendants are killed when it is over."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from judge import judge
from peer import Answer, Cannot, Hint, Peer

# How long a call may take that ought to say something which no product here has the words for: waiting, attention, PS2.
# None of them has code that looks for it, so more time would tell nothing.
PATIENCE = 10.0
STEP = 20.0  # the corpus' own time for a step
CASE = 240.0  # for all steps of a case, as in the corpus' own runner
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
UNSAID = {"waiting", "attention", "continuation"}


def bound(step: dict) -> float:
    """How long a call of the step may take, in seconds."""
    seconds = step["timeout_ms"] / 1000 if "timeout_ms" in step else STEP
    ended = set(step.get("want", {}).get("ended", []))
    return min(seconds, PATIENCE) if ended and ended <= UNSAID else min(seconds, 30.0)


def hint(step: dict) -> Hint:
    """What someone who knows the program would say in advance."""
    want = step.get("want", {})
    asks = bool(UNSAID & set(want.get("ended", [])))
    return Hint(interactive=asks, ends=not asks, expect=want.get("prompt", {}).get("has", []))


class Play:
    """One case with one product."""

    def __init__(self, peer: Peer, case: dict) -> None:
        self.peer, self.case = peer, case
        self.open: set[str] = set()
        self.told: list[str] = []
        self.works: list[str] = []

    def prepare(self) -> None:
        for file in self.case.get("files", []):
            path = Path.home() / file["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file["text"].encode())
            if "mode" in file:
                path.chmod(int(file["mode"], 8))
        if "setup" in self.case:
            shell(self.case["setup"])
        for assignment in self.case.get("start", {}).get("env", []):
            name, _, value = assignment.partition("=")
            os.environ[name] = value

    def steps(self, steps: list[dict], within: str = "") -> None:
        """Makes the steps. One that does not work ends the case; one after which the caller was only not told what it
        wanted to know does not, for it may know by itself."""
        numbered = [(number, step) for number, step in enumerate(steps, 1) for _ in range(step.get("times", 1))]
        for number, step in numbered:
            name = f"step {within}{number} {step['do']}"
            began = time.monotonic()
            try:
                answer = self.step(step, within + f"{number}.")
            except Cannot:
                raise
            except Exception as err:  # the product's own error, whatever it is
                self.works.append(f"{name}: {type(err).__name__}: {err}"[:400])
                return
            ms = (time.monotonic() - began) * 1000
            typed = step.get("text", "") if step["do"] == "type" else ""
            told, works = judge(step.get("want", {}), answer, ms, typed)
            self.told += [f"{name}: {what}" for what in told]
            self.works += [f"{name}: {what}" for what in works]
            if self.works:
                return

    def step(self, step: dict, within: str) -> Answer:
        session, timeout = "s" + step.get("shell", ""), bound(step)
        if step["do"] == "exec":
            return self.peer.exec(step["text"], step.get("stdin", ""), timeout)
        if session not in self.open:
            self.peer.open(session, self.case.get("start", {}))
            self.open.add(session)
        if "meanwhile" not in step:
            return self.call(session, step, timeout)
        # Nobody here has two calls under way: the first gives up, and is waited for again afterwards.
        answer = self.call(session, step, min(timeout, max(step.get("after_ms", 0) / 1000, 0.1)))
        self.steps(step["meanwhile"], within)
        return answer if answer.ended != "deadline" else self.peer.wait(session, timeout)

    def call(self, session: str, step: dict, timeout: float) -> Answer:
        text = step.get("text", "")
        match step["do"]:
            case "run":
                known = hint(step)
                known.ends = False
                answer = self.peer.run(session, text, timeout, known)
                if step.get("kill") and answer.ended == "deadline":
                    answer.phase = self.peer.interrupt(session, timeout).phase
                return answer
            case "type":
                return self.peer.type(session, text, timeout, hint(step))
            case "raw":
                return self.peer.raw(session, text, timeout)
            case "keys":
                return self.peer.keys(session, step["keys"], timeout)
            case "wait":
                return self.peer.wait(session, timeout)
            case "interrupt":
                return self.peer.interrupt(session, timeout)
            case "screen":
                return self.peer.screen(session)
            case "end":
                self.open.discard(session)
                self.peer.end(session)
                return Answer()
            case verb:
                raise ValueError(f"a step that the player does not know: {verb}")


def shell(text: str) -> None:
    subprocess.run(["bash", "-c", text], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)


def outcome(make: Callable[[], Peer], case: dict) -> dict:
    """Plays the case in this process."""
    out = {"pass": False, "works": False, "cannot": "", "got": "", "ms": 0}
    peer = make()
    play = Play(peer, case)
    began = time.monotonic()
    try:
        play.prepare()
        began = time.monotonic()
        play.steps(case["steps"])
        out["works"] = not play.works
        out["pass"] = not play.works and not play.told
    except Cannot as cannot:
        out["cannot"] = str(cannot)
    except subprocess.SubprocessError as err:
        play.works.append(f"set up: {err}")
    out["ms"] = round((time.monotonic() - began) * 1000)
    out["got"] = "; ".join(play.works + play.told)
    return out


def descendants() -> list[int]:
    """The processes below this one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def reap() -> None:
    """Kills and collects everything below this process."""
    while pids := descendants():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0):
                pass


def apart(make: Callable[[], Peer], case: dict) -> dict:
    """Plays the case in a child, for CASE seconds at most, and leaves nothing of it."""
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        sink = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(sink, fd)
        os.chdir(Path.home())
        try:
            said = outcome(make, case)
        except BaseException as err:
            said = {"pass": False, "works": False, "cannot": "", "got": f"{type(err).__name__}: {err}"[:400]}
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    signal.setitimer(signal.ITIMER_REAL, CASE)
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            said = json.loads(pipe.read() or b"{}")
    except TimeoutError:
        said = {}
    signal.setitimer(signal.ITIMER_REAL, 0)
    reap()
    wedged = {"pass": False, "works": False, "cannot": "", "got": f"no answer in {CASE:.0f} s"}
    return {"ms": round((time.monotonic() - began) * 1000), **(said or wedged)}


def tried(make: Callable[[], Peer], case: dict) -> dict:
    """Plays the case, and once more when something did not work: the machine may have been busy, and the better of two
    counts; one that came to no end is not. The sandbox is left as it was."""
    said: dict = {}
    for _ in range(2):
        said = apart(make, case)
        if "cleanup" in case:
            subprocess.run(["bash", "-c", case["cleanup"]], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            reap()
        if said["works"] or said["cannot"] or said["ms"] >= CASE * 1000:
            break
    return said


def on_alarm(*_: object) -> None:
    raise TimeoutError


def maker(name: str) -> Callable[[], Peer]:
    """How a product's peer is made. Each imports its product, so only the one that is asked for is imported."""
    if name == "swe-rex":
        from peer_swerex import SweRex

        return SweRex
    if name == "tmux-agent":
        from peer_tmux import Tmux

        return Tmux
    from peer_openhands import OpenHands, OpenHandsTmuxSession

    if name == "openhands-tmux-session":
        return OpenHandsTmuxSession
    return lambda: OpenHands(name.removeprefix("openhands-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    options = parser.parse_args()
    make = maker(options.peer)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, on_alarm)
    cases = [json.loads(line) for line in sys.stdin]
    for case in cases:
        missing = [program for program in case.get("needs", []) if not shutil.which(program)]
        if "func" in case:
            said = {"not_run": "it is written in Go"}
        elif missing:
            said = {"not_run": "not installed: " + " ".join(missing)}
        else:
            said = tried(make, case)
        print(json.dumps({"peer": options.peer, "group": case["group"], "case": case["case"], **said}), flush=True)


if __name__ == "__main__":
    main()
