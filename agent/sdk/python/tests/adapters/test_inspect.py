"""Inspect's own checks of a sandbox, and an eval with a scripted model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import (
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxd import Gateway, NotFound, Usage
from sandboxd.adapters import inspect as inspect_module
from sandboxd.adapters.inspect import SandboxdConfig, SandboxdSandboxEnvironment, _options
from sandboxd.aio import CreateOptions

USERS = {
    "root": SandboxdConfig(),
    "other": SandboxdConfig(user="nobody", workdir="/var/tmp", sudo=True),
}
# root may do what these expect to be denied
OF_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
env = SandboxdSandboxEnvironment


@pytest.fixture(params=USERS)
async def sandbox_env(
    state: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SandboxEnvironment]:
    if request.param == "root" and request.node.originalname in OF_ROOT:
        request.applymarker(pytest.mark.xfail(strict=True))
    config = USERS[request.param]
    await env.task_init("checks", config)
    made = await env.sample_init("checks", config, {})
    yield made["default"]
    await env.sample_cleanup("checks", config, made, False)
    await env.task_cleanup("checks", config, True)


def test_all_checks_are_here() -> None:
    checks = {n for n in dir(self_check) if n.startswith("test_")}
    assert checks <= set(globals()) and len(checks) > 30


def evaluate(task: Task, to: Path, *outputs: ModelOutput, fails: bool = False) -> Any:
    """Runs an eval with a model that says this, and returns its log."""
    model = get_model("mockllm/model", custom_outputs=list(outputs))

    async def count(text: str) -> int:  # Inspect's own estimate loads a table from the Internet
        return len(text) // 4

    model.api.count_text_tokens = count  # type: ignore[method-assign]
    (log,) = eval(task, model=model, max_samples=1, log_dir=str(to), display="none")
    assert log.status == ("error" if fails else "success"), log.error
    return log


def left() -> list[str]:
    with Gateway() as gateway:
        return [s.name for s in gateway.sandboxes() if s.name.startswith("inspect-")]


def test_eval(state: Path, tmp_path: Path) -> None:
    def call(command: str) -> ModelOutput:
        return ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command})

    outputs = []
    for i in range(3):
        outputs += [call(f"echo $(({i} + $MORE)) >answer"), call("cat answer; hostname")]
        outputs += [ModelOutput.from_content("mockllm/model", f"it is {i + 40}")]
    config = SandboxdConfig(network="none", memory="512m", env={"MORE": "40"})
    task = Task(
        dataset=[Sample(input="add", target=str(i + 40)) for i in range(3)],
        solver=[use_tools(bash(timeout=30)), generate()],
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("sandboxd", config),
    )
    log = evaluate(task, tmp_path, *outputs)
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1.0
    said: list[str] = []
    for sample in log.samples or []:
        said += [m.text for m in sample.messages if m.role == "tool"]
    lines = [s.split("\n") for s in said if s]
    assert [words[0] for words in lines] == ["40", "41", "42"]
    assert len({words[1] for words in lines}) == 3, "each sample has a sandbox of its own"
    assert left() == []
    restored = read_eval_log(log.location).eval.sandbox
    assert restored and restored.config == config


@solver
def fails() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        assert (await sandbox().exec(["cat", "there"])).stdout == "brought"
        assert (await sandbox().exec(["cat", "set-up"])).stdout == "set\n"
        process = await sandbox().exec_remote(["sh", "-c", "echo from Inspect"], stream=False)
        assert process.stdout == "from Inspect\n", process.stderr
        raise ZeroDivisionError

    return solve


def test_eval_that_fails(state: Path, tmp_path: Path) -> None:
    sample = Sample(
        input="-", files={"there": "brought"}, setup="echo set >set-up", sandbox="sandboxd"
    )
    log = evaluate(Task(dataset=[sample], solver=fails()), tmp_path, fails=True)
    assert log.error and "ZeroDivisionError" in log.error.traceback
    assert left() == []


async def test_sample_that_is_cancelled(state: Path) -> None:
    await env.task_init("cancelled", None)
    for steps in (1, 10, 100):  # of the event loop, until the daemon has read more or less of it
        making = asyncio.create_task(env.sample_init("cancelled", None, {}))
        for _ in range(steps):
            await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert await asyncio.to_thread(left) == []
    await env.task_cleanup("cancelled", None, True)


async def test_errors(sandbox_env: Any) -> None:
    with pytest.raises(TimeoutError) as late:
        await sandbox_env.exec(["sh", "-c", "echo part; exec tail -f /etc/hostname"], timeout=1)
    assert late.value.truncated_output.startswith("part\n")  # type: ignore[attr-defined]
    inner = await sandbox_env.exec(["bash", "-c", "echo out; /etc/passwd"])
    assert (inner.returncode, inner.stdout) == (126, "out\n"), "of the command's own command"
    with pytest.raises(ValueError, match="embedded null byte"):
        await sandbox_env.exec(["echo", "\0"])
    with pytest.raises(ValueError, match="embedded null byte"):
        await sandbox_env.read_file("\0")
    await sandbox_env.write_file("bytes", b"\xc3(")
    with pytest.raises(UnicodeDecodeError):
        await sandbox_env.read_file("bytes")
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox_env.exec(["true"], user="nonexistent")
    with pytest.raises(Usage, match="longer"):  # which is not about the user
        await sandbox_env.exec(["echo", *["x" * 1000] * 120], user="root")
    await sandbox_env.sandbox.remove()
    for user in (None, "root"):
        with pytest.raises(SandboxUnavailableError):
            await sandbox_env.exec(["true"], user=user)
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.read_file("bytes")
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.write_file("bytes", "")


async def test_pipes(sandbox_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_module, "FILE_SECONDS", 1)
    await sandbox_env.exec(["mkfifo", "answer.txt"])
    with pytest.raises(TimeoutError):
        await sandbox_env.read_file("answer.txt")
    with pytest.raises(TimeoutError):
        await sandbox_env.write_file("answer.txt", "x")


async def test_connection_and_cleanup(sandbox_env: Any) -> None:
    connection = await sandbox_env.connection()
    assert connection.command.startswith("ssh ") and connection.container in connection.command
    joined = await asyncio.to_thread(
        subprocess.run, f"{connection.command} echo joined", shell=True, capture_output=True
    )
    assert joined.stdout == b"joined\n", joined.stderr
    with pytest.raises(NotImplementedError):
        await sandbox_env.connection(user="daemon")
    # As the command does, which finds the adapter in the list of installed packages.
    program = "import sandboxd.adapters.inspect; from inspect_ai._cli.main import main; main()"
    cleanup = [sys.executable, "-c", program, "sandbox", "cleanup", "sandboxd"]
    with pytest.raises(NotFound):
        await env.cli_cleanup("inspect-other")
    done = await asyncio.to_thread(subprocess.run, cleanup, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert await asyncio.to_thread(left) == []
    with pytest.raises(ConnectionError):
        await sandbox_env.connection()


def test_config(tmp_path: Path) -> None:
    file = tmp_path / "sandboxd.yaml"
    file.write_text("network: none\ncpus: 1\ndockerfile: Dockerfile\n")
    dockerfile = str(tmp_path / "Dockerfile")
    assert _options(str(file)) == {"network": "none", "cpus": 1, "dockerfile": dockerfile}
    with pytest.raises(ValueError, match="colour"):
        SandboxdConfig.model_validate({"colour": "blue"})
    with pytest.raises(Usage):
        _options(object())
    assert {*SandboxdConfig.model_fields, "about"} == {*CreateOptions.__annotations__}
    one, same = SandboxdConfig(env={"A": "1", "B": "2"}), SandboxdConfig(env={"B": "2", "A": "1"})
    assert one == same and hash(one) == hash(same)
