"""Harbor's oracle solves local tasks in sandboxes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")

from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from sandboxd import Gateway, Lost
from sandboxd.adapters.harbor import SandboxdEnvironment, _unpack
from sandboxd.aio import Gateway as AsyncGateway

IMAGE = os.environ.get("SANDBOXD_TEST_IMAGE", "sandboxd/base:latest")

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


Make = Callable[..., SandboxdEnvironment]


@pytest.fixture
def make(state: Path, tmp_path: Path) -> Make:
    """Returns an environment of a task. dockerfile: its content; config: of EnvironmentConfig."""

    def of(dockerfile: str = "", config: dict[str, Any] | None = None, **more: Any) -> Any:
        folder = tmp_path / f"task-{len(list(tmp_path.iterdir()))}"
        (folder / "environment").mkdir(parents=True)
        config = dict(config or {})
        if dockerfile:
            (folder / "environment" / "Dockerfile").write_text(dockerfile)
        else:
            config.setdefault("docker_image", IMAGE)
        paths = TrialPaths(trial_dir=folder / "trial")
        paths.mkdir()
        return SandboxdEnvironment(
            environment_dir=folder / "environment", environment_name="t", session_id="t__env",
            trial_paths=paths, task_env_config=EnvironmentConfig(**config), **more,
        )  # fmt: skip

    return of


@asynccontextmanager
async def started(environment: SandboxdEnvironment, force: bool = False) -> AsyncIterator[None]:
    try:
        await environment.start(force)
        yield
    finally:
        await environment.stop(delete=True)
    assert await left() == []


async def left() -> list[str]:
    async with await AsyncGateway.connect() as gateway:
        return [s.name for s in await gateway.sandboxes() if s.name.startswith("harbor-")]


async def test_start_that_is_cancelled_leaves_nothing(make: Make) -> None:
    environment = make(f"FROM {IMAGE}\nRUN sleep 30\n")
    start = asyncio.create_task(environment.start(False))
    while not await left():  # the daemon is building
        pass
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await environment.stop(delete=True)
    assert await left() == []


async def test_start_that_is_cancelled_at_once_leaves_nothing(make: Make) -> None:
    environment = make()
    start = asyncio.create_task(environment.start(False))
    while environment._creation is None:  # the daemon may not have read of it
        await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await environment.stop(delete=True)
    assert await left() == []


async def test_files_are_copied_as_root(make: Make, tmp_path: Path) -> None:
    environment = make(f"FROM {IMAGE}\nRUN useradd -m bob\nUSER bob\nWORKDIR /home/bob\n")
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("echo hello\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / "out").symlink_to("/etc/passwd")
    async with started(environment):
        assert (await environment.exec("id -un; pwd")).stdout == "bob\n/home/bob\n"
        await environment.upload_dir(source, "/tests")
        await environment.upload_file(source / "run.sh", "/opt/a/b.sh")
        await environment.upload_file(source / "run.sh", "/opt/a")
        done = await environment.exec("/tests/link; /opt/a/b.sh; ls /opt/a; mkfifo /tmp/pipe")
        assert done.stdout == "hello\nhello\nb.sh\nrun.sh\n"
        await environment.exec("chmod 700 /tests; mkfifo /tests/pipe", user="root")
        await environment.download_dir("/tests", target)
        found = sorted(p.name for p in target.iterdir())
        assert found == ["empty", "link", "run.sh"]
        assert (target / "link").readlink() == Path("run.sh")
        await environment.download_file("/etc/shadow", target / "x" / "shadow")
        with pytest.raises(RuntimeError, match="No such file"):
            await environment.download_file("/missing", target / "missing")


async def test_prebuilt_image_is_used_unless_a_build_is_forced(make: Make) -> None:
    for force, code in ((False, 1), (True, 0)):
        environment = make(f"FROM {IMAGE}\nRUN touch /built\n", {"docker_image": IMAGE})
        async with started(environment, force):
            assert (await environment.exec("test -e /built")).return_code == code


async def test_resources_mounts_and_options(make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("1")
    mount = {"type": "bind", "source": str(tmp_path / "data"), "target": "/data", "read_only": True}
    config = {"cpus": 1, "memory_mb": 256, "storage_mb": 1024}
    environment = make("", config, mounts=[mount], pids=99)
    async with started(environment):
        limits = (await environment._box.describe()).raw["limits"]
        found = [limits[k] for k in ("cpus", "memory", "disk", "pids")]
        assert found == [1, 256 << 20, 1024 << 20, 99]
        done = await environment.exec("cat /data/a; touch /data/b")
        assert (done.stdout, done.return_code) == ("1", 1)


async def test_network_of_each_phase(make: Make) -> None:
    public = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
    none = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    some = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["192.0.2.9"])
    every, one = ["*"], ["192.0.2.9"]
    environment = make(network_policy=public, phase_network_policies=[none, some])
    async with started(environment):
        for policy, allowed in ((public, every), (none, None), (some, one), (public, every)):
            await environment.set_network_policy(policy)
            info = await environment._box.describe()
            assert (info.network, info.raw.get("allow")) == ("allowlist", allowed)


async def test_stop_that_fails(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks() -> None:
        raise Lost("the connection broke")

    environment = make()
    async with started(environment):
        with monkeypatch.context() as patch:
            patch.setattr(environment._box, "remove", breaks)
            with pytest.raises(Lost):
                await environment.stop(delete=True)
        await asyncio.gather(*(environment.stop(delete=True) for _ in range(8)))


def test_archive_that_is_compressed(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        zeros = tarfile.TarInfo("zeros")
        zeros.size = 1 << 20
        tar.addfile(zeros, io.BytesIO(bytes(zeros.size)))
    with pytest.raises(tarfile.ReadError):
        _unpack(packed.getvalue(), tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


async def test_output_and_timeouts(make: Make) -> None:
    seen: list[tuple[str, str]] = []

    async def see(text: str, stream: str) -> None:
        seen.append((stream, text))

    environment = make()
    async with started(environment):
        with environment.scoped_output_callback(see):
            await environment.exec("echo one; echo two >&2", timeout_sec=0)
            with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
                await environment.exec("echo begun; sleep 600", timeout_sec=1, user="nobody")
    assert seen == [("stdout", "one\n"), ("stderr", "two\n"), ("stdout", "begun\n")]


def test_what_cannot_be_had_is_refused(make: Make, tmp_path: Path) -> None:
    v6 = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["2001:db8::1"])
    volume = {"type": "volume", "source": "v", "target": "/v"}
    with pytest.raises(ValueError, match="IPv6"):
        make(network_policy=v6)
    with pytest.raises(ValueError, match="mount /v"):
        make(mounts=[volume])
    with pytest.raises(ValueError, match="nonsense"):
        make(nonsense=1)
    with pytest.raises(ValueError, match="stream"):
        make(stream=True)


async def test_dockerfile_needs_a_daemon_of_this_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make(f"FROM {IMAGE}\n")
    monkeypatch.setenv("SANDBOXD_GATEWAY", "ssh://192.0.2.1:2222")
    with pytest.raises(ValueError, match="unset SANDBOXD_GATEWAY"):
        await environment.start(False)
    await environment.stop(delete=True)
