"""The programs of the documentation run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent
PAGES = [PACKAGE / "README.md", PACKAGE / "../../../docs/how-to/python-client.md"]
PROGRAMS = [
    (f"{page.stem}-{i}", code)
    for page in PAGES
    for i, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
]


@pytest.mark.parametrize("code", [c for _, c in PROGRAMS], ids=[name for name, _ in PROGRAMS])
def test_program(state: Path, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    # What a comment says that a line prints, it prints.
    for said in re.findall(r"# prints ([^:\n]+)", code):
        for word in said.split(", "):
            assert word in done.stdout, said


def test_types(tmp_path: Path) -> None:
    for name, code in PROGRAMS:
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."],
        capture_output=True, text=True, cwd=tmp_path,
        env={"MYPYPATH": str(PACKAGE / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
