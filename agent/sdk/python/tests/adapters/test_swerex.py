"""Actions of SWE-ReX in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("swerex")

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from sandboxd import Gateway
from sandboxd.adapters.swerex import SandboxdDeployment, SandboxdRuntime


@pytest.fixture
async def runtime(state: Path) -> AsyncIterator[SandboxdRuntime]:
    deployment = SandboxdDeployment(network="none")
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    await deployment.start()
    assert await deployment.is_alive()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    yield deployment.runtime
    await deployment.stop()
    await deployment.stop()


async def test_sessions(runtime: SandboxdRuntime) -> None:
    run = runtime.run_in_session
    assert (await run(BashAction(command="cd /tmp; X=1"))).exit_code == 0
    assert (await run(BashAction(command="echo $X $PWD"))).output == "1 /tmp\n"
    assert (await run(BashAction(command="exit_code() { return 7; }; exit_code", check="silent"))
            ).exit_code == 7  # fmt: skip
    assert (await run(BashAction(command="false", check="ignore"))).exit_code is None
    with pytest.raises(NonZeroExitCodeError, match="code 1"):
        await run(BashAction(command="false"))
    long = await run(BashAction(command="seq 200000"))
    assert long.failure_reason == "the output lacks its middle" and long.exit_code == 0
    for command in ("(a", "echo a\0b"):
        with pytest.raises(BashIncorrectSyntaxError) as e:
            await run(BashAction(command=command))
        assert e.value.extra_info["bash_stderr"]
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await run(BashAction(command="true", session="Any text"))
    await runtime.create_session(CreateBashSessionRequest(session="Any text"))
    assert (await run(BashAction(command="echo [$X]", session="Any text"))).output == "[]\n"
    await runtime.close_session(CloseBashSessionRequest(session="Any text"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest(session="Any text"))


async def test_interactive(runtime: SandboxdRuntime) -> None:
    async def run(command: str, **more: object) -> str:
        action = BashAction(command=command, expect=[">>> "], **more)  # type: ignore[arg-type]
        return (await runtime.run_in_session(action)).output

    await run("python3 -q", is_interactive_command=True)
    assert await run("print(6 * 7)", is_interactive_command=True) == "42"
    interrupted = await runtime.run_in_session(BashInterruptAction(expect=[">>> "]))
    assert interrupted.expect_string == ">>> "  # Python lives on
    assert await run("print(6 * 8)", is_interactive_command=True) == "48"
    await run("quit()", is_interactive_quit=True)
    await run("python3 -c 'input(\">>> \")'", is_interactive_command=True)
    await runtime.run_in_session(BashInterruptAction(expect=["KeyboardInterrupt"]))
    with pytest.raises(BashIncorrectSyntaxError):  # it has ended: this is for the shell
        await run("(a", is_interactive_command=True)
    observation = await runtime.run_in_session(BashAction(command="echo back"))
    assert observation.output == "back\n"


async def test_waits_and_interrupts(runtime: SandboxdRuntime) -> None:
    with pytest.raises(CommandTimeoutError, match="waits for input: 'name"):
        await runtime.run_in_session(BashAction(command="read -p 'name? ' n", timeout=600))
    await runtime.run_in_session(BashInterruptAction())
    with pytest.raises(CommandTimeoutError, match="timeout after"):
        await runtime.run_in_session(BashAction(command="sleep 60", timeout=1))
    with pytest.raises(CommandTimeoutError, match="not at its prompt"):
        await runtime.run_in_session(BashAction(command="true"))
    await runtime.run_in_session(BashInterruptAction())
    assert (await runtime.run_in_session(BashAction(command="echo on"))).output == "on\n"


async def test_startup(runtime: SandboxdRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="/srv/ok", content="X=1; echo up\n"))
    await runtime.write_file(WriteFileRequest(path="/srv/asks", content="read -p 'name? ' n\n"))
    made = await runtime.create_session(
        CreateBashSessionRequest(session="ok", startup_source=["/srv/ok"])
    )
    assert made.output == "up\n"
    with pytest.raises(SessionNotInitializedError, match="waiting"):
        await runtime.create_session(
            CreateBashSessionRequest(session="asks", startup_source=["/srv/asks"])
        )
    with pytest.raises(SessionDoesNotExistError):
        await runtime.run_in_session(BashAction(command="true", session="asks"))
    other = SandboxdRuntime(runtime.sandbox)  # has sessions of its own
    await other.create_session(CreateBashSessionRequest(session="ok"))
    assert (await other.run_in_session(BashAction(command="echo [$X]", session="ok"))
            ).output == "[]\n"  # fmt: skip
    await other.close()


async def test_commands_and_files(runtime: SandboxdRuntime, tmp_path: Path) -> None:
    done = await runtime.execute(
        Command(command="echo out; echo err >&2; exit 3", shell=True, env={"A": "1"}, cwd="/tmp")
    )
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    merged = await runtime.execute(
        Command(command=["sh", "-c", "echo out; echo err >&2"], merge_output_streams=True)
    )
    assert (merged.stdout, merged.stderr) == ("out\nerr\n", "")
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command=["false"], check=True))
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=1))
    await runtime.write_file(WriteFileRequest(path="/srv/new/a", content="ä"))
    assert (await runtime.read_file(ReadFileRequest(path="/srv/new/a"))).content == "ä"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="/nothing"))
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "b").write_text("b")
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "dir"), target_path="/srv/dir"))
    assert (await runtime.read_file(ReadFileRequest(path="/srv/dir/b"))).content == "b"


async def test_start_that_fails(state: Path) -> None:
    with pytest.raises(DeploymentStartupError, match="no-such-image"):
        await SandboxdDeployment(image="no-such-image:1").start()
    with Gateway() as gateway:
        assert [s.name for s in gateway.sandboxes() if "SWE" in s.about] == []


async def test_start_and_stop(state: Path) -> None:
    deployment = SandboxdDeployment(network="none")
    await deployment.start()
    with pytest.raises(DeploymentStartupError, match="is started"):
        await deployment.start()
    with Gateway() as gateway:
        gateway.command("rm", "--force", deployment.runtime.sandbox.name)  # somebody removes it
        assert not await deployment.is_alive()
        await deployment.stop()
        assert [s.name for s in gateway.sandboxes() if "SWE" in s.about] == []
