"""mini-swe-agent's own agent and its deterministic model, in a sandbox."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("minisweagent")

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from sandboxd import Gateway, Lost, Usage
from sandboxd.adapters.minisweagent import SandboxdEnvironment

IMAGE = os.environ.get("SANDBOXD_TEST_IMAGE", "sandboxd/base:latest")
CLASS = "sandboxd.adapters.minisweagent.SandboxdEnvironment"


def sandboxes() -> list[str]:
    with Gateway() as gateway:
        return [s.name for s in gateway.sandboxes() if "mini-swe" in s.about]


def test_agent(state: Path) -> None:
    env = get_environment(
        {"environment_class": CLASS, "image": IMAGE, "network": "none", "env": {"WHO": "bob"}}
    )
    assert isinstance(env, SandboxdEnvironment)
    commands = [
        "cd /tmp && printf 'def f():\\n    return 41\\n' >f.py",
        "sed -i s/41/42/ /tmp/f.py; ls /nothing; echo $WHO; exit 3",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat /tmp/f.py",
    ]
    outputs = [make_output("next", [{"command": c}]) for c in commands]
    model = DeterministicModel(outputs=outputs)
    agent = DefaultAgent(model, env, system_template="on {{system}}", instance_template="{{task}}")
    assert agent.run("return 42")["submission"] == "def f():\n    return 42\n"
    said = "\n".join(str(m["content"]) for m in agent.messages)
    assert "on Linux" in said and "<returncode>3</returncode>" in said
    assert said.index("/nothing") < said.index("bob")  # stderr is in order
    assert len(sandboxes()) == 1
    env.cleanup()
    env.cleanup()
    assert sandboxes() == []


def test_timeout(state: Path) -> None:
    env = SandboxdEnvironment(image=IMAGE, timeout=1)
    result = env.execute({"command": "echo begun; sleep 60"})
    assert (result["output"], result["returncode"]) == ("begun\n", -1)
    assert "still ran" in result["exception_info"]
    assert env.execute({"command": "echo again"})["output"] == "again\n"
    env.cleanup()
    assert sandboxes() == []


def test_end_of_the_program(state: Path) -> None:
    program = f"""
from minisweagent.environments import get_environment
env = get_environment({{"environment_class": "{CLASS}", "image": "{IMAGE}"}})
print(env.execute({{"command": "echo in it"}})["output"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.endswith("in it\n\n"), done.stderr
    assert sandboxes() == []


def test_unknown_option(state: Path) -> None:
    with pytest.raises(ValueError, match="colour"):
        SandboxdEnvironment(image=IMAGE, colour="blue")


def test_commands_that_cannot_be(state: Path) -> None:
    env = SandboxdEnvironment(image=IMAGE)
    for command in ("echo a\0b", "echo \udc80"):
        result = env.execute({"command": command})
        assert (result["returncode"], result["output"]) == (-1, "")
        assert result["exception_info"]
    assert env.execute({"command": "echo on"})["output"] == "on\n"
    env.cleanup()


@pytest.mark.parametrize("option", [{"env": {"A.B": "1"}}, {"forward_env": ["A.B"]}])
def test_name_of_a_variable(state: Path, option: dict[str, object]) -> None:
    with pytest.raises(Usage, match=r"A\.B"):
        SandboxdEnvironment(image=IMAGE, **option)
    assert sandboxes() == []


def test_interpreter(state: Path) -> None:
    env = SandboxdEnvironment(image=IMAGE, interpreter=["bash", "-c"], env={"BASH_ENV": "/tmp/rc"})
    env.execute({"command": "echo 'V=of-the-file' >/tmp/rc"})
    assert env.execute({"command": "echo $V; shopt -q login_shell"})["output"] == "of-the-file\n"
    assert env.execute({"command": "shopt -q login_shell"})["returncode"] == 1
    env.cleanup()


def test_benchmark_without_an_image(state: Path) -> None:
    from minisweagent.run.benchmarks.swebench import get_sb_environment

    config = {"environment": {"environment_class": CLASS, "interpreter": ["bash", "-c"]}}
    with pytest.raises(ValueError, match="name an image"):
        get_sb_environment(config, {"instance_id": "astropy__astropy-1"})
    assert sandboxes() == []


def test_submission_that_is_cut(state: Path) -> None:
    env = SandboxdEnvironment(image=IMAGE, max_output=3000)
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; "
    result = env.execute({"command": done + "yes | head -c 9000"})
    assert result["output"].endswith("[only the first 3000 bytes are kept]\n")
    with pytest.raises(Submitted):
        env.execute({"command": done + "yes | head -c 900"})
    env.cleanup()
    assert sandboxes() == []


def test_cleanup_that_fails(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = SandboxdEnvironment(image=IMAGE)
    assert env.sandbox
    with monkeypatch.context() as patch:
        patch.setattr(env.sandbox, "remove", breaks)
        with pytest.raises(Lost):
            env.cleanup()
    env.cleanup()
    assert sandboxes() == []


def breaks() -> None:
    raise Lost("the connection broke")


def test_collected_in_the_thread_of_the_loop(state: Path) -> None:
    env = SandboxdEnvironment(image=IMAGE)
    assert env.sandbox
    loop = env.sandbox._portal._loop
    env.itself = env  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    try:
        del env
        loop.call_soon_threadsafe(gc.collect)
        while sandboxes():  # without an end if it stays
            pass
    finally:
        gc.enable()
