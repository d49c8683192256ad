"""Measures one product inside the sandbox: latency.py PEER prints an object with the median of 100 calls of true, and how long
a call takes that starts a program which asks, in milliseconds. told says how that call ended."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

from peer import Hint
from play import maker, reap

CALLS = 100
LONGEST = 30.0  # for the question


def main() -> None:
    os.chdir(Path.home())
    peer = maker(sys.argv[1])()
    peer.open("s", {})
    times = []
    for _ in range(CALLS + 5):
        began = time.monotonic()
        answer = peer.run("s", "true", LONGEST, Hint())
        times.append((time.monotonic() - began) * 1000)
        if answer.exit_code != 0:
            raise SystemExit(f"true: {answer}")
    began = time.monotonic()
    answer = peer.run("s", "read -p 'name? ' x", LONGEST, Hint())
    asked = (time.monotonic() - began) * 1000
    said = {
        "peer": peer.name,
        "version": peer.version,
        "true_ms": round(statistics.median(times[5:]), 1),
        "question_ms": round(asked),
        "told": answer.ended,
    }
    print(json.dumps(said), flush=True)
    reap()
    os._exit(0)


if __name__ == "__main__":
    main()
