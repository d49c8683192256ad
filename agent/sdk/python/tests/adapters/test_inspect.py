"""Inspect's own checks of a sandbox, and an eval with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxd import Gateway, Usage
from sandboxd.adapters.inspect import SandboxdConfig, SandboxdSandboxEnvironment, _options

USERS = {"root": SandboxdConfig(), "other": SandboxdConfig(user="nobody", workdir="/var/tmp")}
# root may do what these expect to be denied
OF_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
# a sandbox with a user, and without sudo, runs nothing as root
OF_OTHERS = {"test_exec_as_user"}


@pytest.fixture(params=USERS)
async def sandbox_env(
    state: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SandboxEnvironment]:
    name = request.node.originalname
    if name in (OF_ROOT if request.param == "root" else OF_OTHERS):
        request.applymarker(pytest.mark.xfail(strict=True))
    env, config = SandboxdSandboxEnvironment, USERS[request.param]
    await env.task_init("checks", config)
    made = await env.sample_init("checks", config, {})
    yield made["default"]
    await env.sample_cleanup("checks", config, made, False)
    await env.task_cleanup("checks", config, True)


def test_all_checks_are_here() -> None:
    checks = {n for n in dir(self_check) if n.startswith("test_")}
    assert checks <= set(globals()) and len(checks) > 30


def test_eval(state: Path, tmp_path: Path) -> None:
    def call(command: str) -> ModelOutput:
        return ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command})

    outputs = []
    for i in range(3):
        outputs += [call(f"echo $(({i} + 40)) >answer"), call("cat answer; hostname")]
        outputs += [ModelOutput.from_content("mockllm/model", f"it is {i + 40}")]
    task = Task(
        dataset=[Sample(input="add", target=str(i + 40)) for i in range(3)],
        solver=[use_tools(bash(timeout=30)), generate()],
        scorer=includes(),
        sandbox=("sandboxd", SandboxdConfig(network="none", memory="512m")),
    )
    model = get_model("mockllm/model", custom_outputs=outputs)

    async def count(text: str) -> int:  # Inspect's own estimate loads a table from the Internet
        return len(text) // 4

    model.api.count_text_tokens = count  # type: ignore[method-assign]
    (log,) = eval(task, model=model, max_samples=1, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1.0
    said: list[str] = []
    for sample in log.samples or []:
        said += [m.text for m in sample.messages if m.role == "tool"]
    assert [s.split("\n")[0] for s in said if s] == ["40", "41", "42"]
    assert left() == []


def left() -> list[str]:
    with Gateway() as gateway:
        return [s.name for s in gateway.sandboxes() if s.name.startswith("inspect-")]


async def test_connection_and_cleanup(sandbox_env: Any) -> None:
    connection = await sandbox_env.connection()
    assert connection.command.startswith("ssh ") and connection.container in connection.command
    await SandboxdSandboxEnvironment.cli_cleanup(None)  # inspect sandbox cleanup sandboxd
    with pytest.raises(ConnectionError):
        await sandbox_env.connection()


def test_config(tmp_path: Path) -> None:
    (tmp_path / "sandboxd.yaml").write_text("network: none\ncpus: 1\n")
    assert _options(str(tmp_path / "sandboxd.yaml")) == {"network": "none", "cpus": 1}
    with pytest.raises(ValueError, match="colour"):
        SandboxdConfig.model_validate({"colour": "blue"})
    with pytest.raises(Usage):
        _options(object())
