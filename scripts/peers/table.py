"""Prints the scores side by side: table.py [--docs FILE] DIR PEER…, from the results that scripts/peers/run left in DIR. With --docs the
section of FILE about other products is written anew."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

TITLES = {
    "sandboxd": "sandboxd",
    "swe-rex": "SWE-ReX",
    "openhands-tmux": "OpenHands, tmux",
    "openhands-tmux-session": "OpenHands, tmux without its pool",
    "openhands-subprocess": "OpenHands, subprocess",
    "tmux-agent": "tmux agent",
}
BEGIN, END = "<!-- other products: written by make -C scripts conformance-peers -->", "<!-- end of other products -->"


def lines(path: Path) -> Iterator[dict]:
    for line in path.read_text().splitlines():
        if line.startswith("{"):
            yield json.loads(line)


class Results:
    """What became of each case, by product."""

    def __init__(self, directory: Path, peers: list[str]) -> None:
        self.directory, self.peers = directory, peers
        self.of: dict[str, dict[tuple[str, str], dict]] = {
            peer: {(o["group"], o["case"]): o for o in lines(directory / f"{peer}.jsonl") if "case" in o} for peer in ["sandboxd", *peers]
        }
        cases = [(case["group"], case["case"]) for case in lines(directory / "cases.jsonl")]
        # A case counts when every product could run it.
        self.cases = [c for c in cases if all(c in self.of[p] and not self.of[p][c].get("not_run") for p in self.of)]
        self.left_out = len(cases) - len(self.cases)

    def table(self) -> str:
        """A row for each group; a cell says how many cases pass, and how many would without reports."""
        groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for case in self.cases:
            groups[case[0]].append(case)
        rows = [["group", "cases", *(TITLES[p] for p in self.of)], ["---"] * (2 + len(self.of))]
        rows += [[group, str(len(cases)), *(self.cell(p, cases) for p in self.of)] for group, cases in groups.items()]
        rows.append(["**all**", str(len(self.cases)), *(self.cell(p, self.cases) for p in self.of)])
        rows.append(["no call for it", "", "0", *(str(sum(bool(self.of[p][c]["cannot"]) for c in self.cases)) for p in self.peers)])
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def cell(self, peer: str, cases: list[tuple[str, str]]) -> str:
        passed = sum(self.of[peer][case]["pass"] for case in cases)
        if peer == "sandboxd":
            return str(passed)
        return f"{passed} ({sum(self.of[peer][case]['works'] for case in cases)})"

    def latencies(self) -> str:
        bench = {row["what"]: row["sandboxd"]["median"] for row in json.loads((self.directory / "bench.json").read_text())["rows"]}
        ran, asked = (bench[what] for what in bench if what.startswith("Shell.Run"))
        rows = [["product", "version", "`true`, median", "a question, until it is reported"], ["---"] * 4]
        rows.append(["sandboxd", "this one", f"{ran:.1f} ms", f"{asked:.1f} ms"])
        for o in lines(self.directory / "latency.jsonl"):
            never = "never: 30 s"
            if o["question_ms"] < 29_000:
                never = f"never: {o['told']} after {o['question_ms']} ms"
            rows.append([TITLES[o["peer"]], o["version"], f"{o['true_ms']:.0f} ms", never])
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def text(self) -> str:
        text = (Path(__file__).parent / "section.md").read_text()
        return text.format(
            date=datetime.now(UTC).date().isoformat(),
            cores=os.cpu_count(),
            load=f"{os.getloadavg()[2]:.1f}",
            scores=self.table(),
            latencies=self.latencies(),
            left_out=self.left_out,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("dir", type=Path)
    parser.add_argument("peers", nargs="+")
    options = parser.parse_args()
    results = Results(options.dir, options.peers)
    print(results.table(), results.latencies(), sep="\n\n")
    if options.docs:
        section = f"{BEGIN}\n{results.text().strip()}\n{END}"
        old = options.docs.read_text()
        new, found = re.subn(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: section, old, flags=re.DOTALL)
        options.docs.write_text(new if found else old.rstrip("\n") + "\n\n" + section + "\n")


if __name__ == "__main__":
    main()
