"""Compares an answer with what a case wants of it, by the rules of package agent/conformance, with two allowances.

A product that hands over text and not the terminal's bytes is judged by the text: escape sequences, carriage returns, the
echo of what was typed and newlines at the end are as it likes. And what is wanted is of two kinds: what the caller has to be
*told* (that and for what a program waits, that the shell is at its prompt or dead, in which time), and what *works*
(output, exit code, signal). A case passes when both hold; what works is counted by itself too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from peer import Answer

# Words of our own product, which nobody else can be expected to say. They are not looked at.
OWN = {"basis", "note", "steps", "died", "listens", "depth", "program"}

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")


def plain(text: str) -> str:
    """The text without what a product may leave to its caller."""
    return ESCAPE.sub("", text).replace("\r", "").rstrip("\n")


def readings(text: str, typed: str) -> Iterator[str]:
    """The texts that the output may stand for, with the echo of what was typed and without."""
    yield plain(text)
    yield plain(f"{typed}\n{text}")


def exact(text: str) -> Iterator[bytes]:
    """The bytes that the output may stand for: with and without a last newline, with both kinds of line ends."""
    for whole in (text, text + "\n"):
        data = whole.encode(errors="surrogateescape")
        yield data
        yield data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def text_holds(rules: dict, text: str, typed: str = "") -> bool:
    """Whether the text is as it must be."""
    if "is" in rules and plain(rules["is"]) not in readings(text, typed):
        return False
    seen = "\n".join(readings(text, typed))
    if any(part.replace("\r", "") not in seen for part in rules.get("has", [])):
        return False
    if any(part in plain(text) for part in rules.get("lacks", [])):
        return False
    if "matches" in rules and not re.search(go_regexp(rules["matches"]), plain(text)):
        return False
    if "length" in rules and all(len(data) != rules["length"] for data in exact(text)):
        return False
    return "sha256" not in rules or any(hashlib.sha256(data).hexdigest() == rules["sha256"] for data in exact(text))


def go_regexp(pattern: str) -> str:
    """A regular expression of Go's as one of Python's: \\z is \\Z there, and flags stand in front."""
    pattern = pattern.replace(r"\z", r"\Z")
    flags = re.match(r"\(\?([ims]+)\)", pattern)
    return f"(?{flags[1]}:{pattern[flags.end() :]})" if flags else pattern


def judge(want: dict, answer: Answer, ms: float, typed: str = "") -> tuple[list[str], list[str]]:
    """What the caller was not told, and what does not work: the fields, with what was got."""
    told: list[str] = []
    works: list[str] = []

    def check(failed: list[str], name: str, ok: bool, got: object) -> None:
        if not ok:
            failed.append(f"{name}: got {got!r}, want {want[name]!r}"[:400])

    for name, value in want.items():
        match name:
            case "ended":
                check(told, name, answer.ended in value, answer.ended)
            case "phase":
                check(told, name, answer.phase in value, answer.phase)
            case "want" | "foreground":
                check(told, name, False, "")
            case "attention":
                # Whoever never says that a program needs attention is right about one that does not.
                check(told, name, value == "no", "")
            case "error":
                check(told, name, answer.error == value, answer.error)
            case "cwd":
                check(told, name, answer.cwd == value, answer.cwd)
            case "latest_ms":
                check(told, name, ms <= value, round(ms))
            case "earliest_ms":
                check(told, name, ms >= value, round(ms))
            case "exit_code":
                check(works, name, answer.exit_code == value, answer.exit_code)
            case "signal":
                check(works, name, answer.signal == value, answer.signal)
            case "prompt":  # nobody else tells it apart from the output; tmux drops spaces at the end
                ends = {rule: [part.rstrip() for part in parts] for rule, parts in value.items() if rule == "has"}
                check(works, name, text_holds(ends, answer.output), answer.output[-200:])
            case "output" | "bytes":
                check(works, name, text_holds(value, answer.output, typed), answer.output[-200:])
            case "stderr":
                check(works, name, answer.stderr is not None and text_holds(value, answer.stderr), answer.stderr)
            case _ if name not in OWN:
                raise ValueError(f"a want that the judge does not know: {name}")
    return told, works
