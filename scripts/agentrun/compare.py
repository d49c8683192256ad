#!/usr/bin/env python3
"""Gives the same programs to AgentRun itself and to a daemon of sandboxd, and prints what came of each as rows of a table.

compare.py CONTAINER: a container that AgentRun may use. URL and TOKEN in the environment say where the daemon is."""

import os
import re
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import requests
from agentrun import AgentRun

PROGRAMS = [
    ("print(1)", "print(1)"),
    ("an exception", "def f(x):\n    return 1/x\nprint(f(0))"),
    ("an error of syntax", "print(1"),
    ("sys.exit(7)", "import sys\nsys.exit(7)"),
    ("input()", "print(input('name? '))"),
    ("Unicode", "print('é € 😀 漢字', '\\u202e')"),
    ("1 MB of output", "print('x' * 1_000_000)"),
    ("20,000 lines of output", "for i in range(20000): print(i)"),
    ("an endless loop", "print('begun', flush=True)\nwhile True: pass"),
    ("sleep beyond the timeout", "import time\nprint('begun', flush=True)\ntime.sleep(60)"),
    ("300 MB of memory", "x = bytearray(300 << 20)\nprint(len(x))"),
    ("numpy, the first time", "import numpy as np\nprint(np.array([1, 2, 3]).sum())"),
    ("numpy again", "import numpy as np\nprint(np.array([1, 2, 3]).mean())"),
    ("requests", "import requests\nprint(requests.get('https://pypi.org/simple/six/').status_code)"),
    ("a package that is not there", "import nosuchpackage_xyz"),
    ("a plot", "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('plot.png')\nprint('saved')"),
    ("open() of a file of its own", "with open('a.txt', 'w') as f:\n    f.write('x')\nprint(open('a.txt').read())"),
    ("os.getcwd()", "import os\nprint(os.getcwd())"),
    ("a module of its own, json", "import json\nprint(json.dumps({'a': [1, 2]}))"),
    ("20 million steps", "n = 0\nfor i in range(20_000_000): n += i\nprint(n)"),
]
TOGETHER = [("two at once: time.sleep(2)", "import time\ntime.sleep(2)\nprint('done')", 2), ("20 at once: print(1)", "print(1)", 20)]
TIMEOUT = 10
warnings.filterwarnings("ignore", category=SyntaxWarning)  # RestrictedPython's, of each print


def ours(code):
    r = requests.post(os.environ["URL"] + "/v1/run/", json={"code": code}, headers={"X-API-Key": os.environ["TOKEN"]}, timeout=600).json()
    said = r.get("output", r.get("detail"))
    extra = "".join(f" + {a['name']}" for a in r.get("artifacts", []))
    return said, f"{r.get('status')}{extra}"


def shown(text):
    """A result in a cell of the table: short, in one line."""
    if text is None:
        return "nothing"
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    line = lines[-1] if lines else ""
    if len(text) > 5000:
        line = f"{len(text):,} characters"
    line = re.sub(r"[^ -~\u00a0-\uffff]|\u202e", lambda m: m.group() if m.group().isprintable() else "?", line)
    line = line if len(line) <= 70 else line[:67] + "…"
    return "`" + line.replace("|", "\\|").replace("`", "'") + "`" if line else "no output"


def timed(f, *args):
    began = time.monotonic()
    return f(*args), time.monotonic() - began


def seconds(t):
    return f"{t * 1000:.0f} ms" if t < 1 else f"{t:.1f} s"


def main():
    runner = AgentRun(container_name=sys.argv[1], default_timeout=TIMEOUT)
    theirs = runner.execute_code_in_container
    ours("print(0)")  # from here on sandboxes stand ready; theirs stood before
    for _ in range(100):
        pool = [line for line in os.popen("sandboxd pool --json") if '"ready":4' in line]
        if pool:
            break
        time.sleep(0.1)
    print("| program | AgentRun 0.2.5 | | sandboxd | |\n| --- | --- | --- | --- | --- |")
    for name, code in PROGRAMS:
        got, took = timed(theirs, code)
        (said, status), mine = timed(ours, code)
        said = said if len(said) > 5000 or "Failed to install" not in said else said.splitlines()[0]
        print(f"| {name} | {shown(got)} | {seconds(took)} | {status}: {shown(said)} | {seconds(mine)} |", flush=True)
        time.sleep(1)  # what was taken is replaced
    for name, code, n in TOGETHER:
        with ThreadPoolExecutor(n) as pool:
            got, took = timed(lambda: list(pool.map(theirs, [code] * n)))
            mine, t = timed(lambda: list(pool.map(ours, [code] * n)))
        count = lambda all, good: f"{sum(map(good, all))} of {n} right"
        want = "done\n" if "done" in code else "1\n"
        print(f"| {name} | {count(got, lambda g: g == want)} | {seconds(took)} | {count(mine, lambda g: g[0] == want)} | {seconds(t)} |", flush=True)
    time.sleep(5)
    left = os.popen(f"docker top {sys.argv[1]} -eo pid,args").read().count("python /code/script_")
    mine = len(os.popen("sandboxd ls --json 2>/dev/null").read().splitlines())
    print(f"| left of calls, 5 s later | {left} processes | | {mine} sandboxes | |")


main()
