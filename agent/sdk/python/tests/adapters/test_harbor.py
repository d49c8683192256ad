"""Harbor's oracle solves local tasks in sandboxes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("harbor")

from sandboxd import Gateway

CLASS = "sandboxd.adapters.harbor:SandboxdEnvironment"
CONFIG = """version = "1.0"
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 120.0
cpus = 1
memory_mb = 256
storage_mb = 1024
"""


def make_task(tasks: Path, number: int) -> Path:
    """Writes a task whose answer is the square of number, in an image of its own."""
    task = tasks / f"square-{number}"
    for folder in ("environment", "solution", "tests"):
        (task / folder).mkdir(parents=True)
    (task / "instruction.md").write_text("Write the square of number.txt to answer.txt.\n")
    (task / "task.toml").write_text(CONFIG)
    (task / "environment" / "Dockerfile").write_text(
        f"FROM sandboxd/base:latest\nWORKDIR /app\nRUN echo {number} >number.txt\n"
    )
    (task / "solution" / "solve.sh").write_text(
        "#!/bin/bash\nn=$(cat number.txt)\necho $((n * n)) >answer.txt\n"
    )
    (task / "tests" / "test.sh").write_text(
        f'#!/bin/bash\n[ "$(cat /app/answer.txt)" = {number**2} ]\n'
        "echo $((1 - $?)) >/logs/verifier/reward.txt\n"
    )
    return task


def run(tmp_path: Path, at_once: int, code: int = 0) -> list[dict[str, object]]:
    """Runs the tasks with the oracle, and returns the results of the trials. code: of Harbor."""
    done = subprocess.run(
        [Path(sys.executable).parent / "harbor", "run", "-p", "tasks", "-a", "oracle", "--env",
         CLASS, "-n", str(at_once), "-o", "jobs"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    if code:
        return [{"exception_info": done.stdout + done.stderr}]
    trials = [json.loads(p.read_text()) for p in tmp_path.glob("jobs/*/*/result.json")]
    with Gateway() as gateway:
        assert [s.name for s in gateway.sandboxes() if s.name.startswith("harbor-")] == []
    return trials


def test_oracle(state: Path, tmp_path: Path) -> None:
    for number in range(10):
        make_task(tmp_path / "tasks", number)
    trials = run(tmp_path, 4)
    rewards = [t["verifier_result"]["rewards"]["reward"] for t in trials]  # type: ignore[index]
    assert rewards == [1.0] * 10, trials


def test_sixty_four_at_once(state: Path, tmp_path: Path) -> None:
    for number in range(64):
        make_task(tmp_path / "tasks", 1000 + number)
    trials = run(tmp_path, 64)
    assert [t["exception_info"] for t in trials] == [None] * 64


def test_compose_is_refused(state: Path, tmp_path: Path) -> None:
    task = make_task(tmp_path / "tasks", 1)
    (task / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    (trial,) = run(tmp_path, 1, code=1)
    assert "Docker Compose (docker-compose.yaml)" in str(trial["exception_info"])
