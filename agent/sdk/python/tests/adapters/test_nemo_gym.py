"""NeMo Gym's own sandbox classes work with sandboxes of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nemo_gym")

from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec, SandboxStatus, create_provider
from nemo_gym.sandbox.providers.base import SandboxCreateError
from nemo_gym.sandbox.providers.registry import get_provider_class, register_provider

from sandboxd import Error, Gateway, Lost, NotFound, Usage
from sandboxd.adapters.nemo_gym import SandboxdProvider

IMAGE = os.environ.get("SANDBOXD_TEST_IMAGE", "sandboxd/base:latest")
register_provider("sandboxd", SandboxdProvider, override=True)
CONFIG = {"sandboxd": {"create": {"network": "none", "env": {"A": "a", "B": "b"}}}}


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec(**{"image": IMAGE, **fields})


def left() -> set[str]:
    with Gateway() as gateway:
        return {s.name for s in gateway.sandboxes() if s.about.startswith("NeMo Gym")}


def test_what_it_runs(state: Path, tmp_path: Path) -> None:
    wanted = spec(
        workdir="/srv", env={"B": "2"}, files={"/srv/in/there.txt": "brought ü\n"},
        metadata={"task": "t-1"}, resources={"cpu": 0.5, "memory_mib": 256}, ttl_s=3600,
    )  # fmt: skip
    with Sandbox(CONFIG, wanted).start() as sandbox:
        assert sandbox.status() == SandboxStatus.RUNNING
        done = sandbox.exec("pwd; cat in/there.txt; echo $A$B$C; echo err >&2; exit 7",
                            env={"C": "3"})  # fmt: skip
        assert (done.stdout, done.stderr) == ("/srv\nbrought ü\na23\n", "err\n")
        assert (done.return_code, done.error_type) == (7, None)
        assert sandbox.exec("id -un", user="nobody").stdout == "nobody\n"
        assert sandbox.exec("id -u", user=65534).stdout == "65534\n"
        assert sandbox.exec("pwd", cwd="/tmp").stdout == "/tmp\n"
        (tmp_path / "up").write_bytes(bytes(range(256)))
        sandbox.upload(tmp_path / "up", "/srv/new/dir/up")
        sandbox.download("/srv/new/dir/up", tmp_path / "down" / "file")
        assert (tmp_path / "down" / "file").read_bytes() == bytes(range(256))
        with Gateway() as gateway:
            (found,) = [s for s in gateway.sandboxes() if s.about == "NeMo Gym task=t-1"]
            limits = found.raw["limits"]
        assert (found.network, limits["memory"], limits["cpus"]) == ("none", 256 << 20, 0.5)
        assert (found.raw["ttl_ms"], found.raw["delete_after_ms"]) == (3_600_000, 1000)
    assert sandbox.status() == SandboxStatus.STOPPED
    assert left() == set()


async def test_what_goes_wrong(state: Path, tmp_path: Path) -> None:
    sandbox = await AsyncSandbox(CONFIG, spec()).start()
    late = await sandbox.exec("echo part; exec tail -f /etc/hostname", timeout_s=1)
    assert (late.return_code, late.error_type) == (125, "timeout")
    assert late.stdout and late.stdout.startswith("part\n")
    nobody = await sandbox.exec("true", user="no-such-user")
    assert (nobody.return_code, nobody.error_type) == (125, "sandbox")
    forged = await sandbox.exec("echo 'sandboxd: no sandbox' >&2; exit 255")
    assert (forged.return_code, forged.error_type) == (255, None)
    with pytest.raises(Usage):
        await sandbox.exec("true", env={"A-B": "x"})
    with pytest.raises(NotFound):
        await sandbox.download("/no/such", tmp_path / "x")
    assert sandbox._handle
    with Gateway() as gateway:
        gateway.sandbox(sandbox._handle.sandbox_id).remove()
    gone = await sandbox.exec("true")
    assert (gone.return_code, gone.error_type) == (125, "sandbox")
    assert await sandbox.status() == SandboxStatus.STOPPED
    await sandbox.stop()
    await sandbox.stop()


async def test_one_provider_for_many(state: Path) -> None:
    provider = create_provider(CONFIG)
    first = [AsyncSandbox(provider, spec()) for _ in range(4)]
    await asyncio.gather(*(s.start() for s in first))
    await first[0].stop()  # which closes what it takes for its own
    done = await asyncio.gather(*(s.exec("echo here") for s in first[1:]))
    assert [d.stdout for d in done] == ["here\n"] * 3
    await asyncio.gather(*(s.stop() for s in first))
    async with await AsyncSandbox(provider, spec()).start() as again:
        assert (await again.exec("true")).return_code == 0
    assert await asyncio.to_thread(left) == set()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"image": "no-such-image:1"}, "no-such-image"),
        ({"resources": {"gpu": 1}}, "GPU"),
        ({"entrypoint": ["sleep"]}, "entrypoint"),
        ({"provider_options": {"colour": "blue"}}, "colour"),
        ({"provider_options": {"network": "nonsense"}}, "nonsense"),
        ({"ready_timeout_s": 0.01}, "not ready"),
    ],
)
async def test_what_cannot_be_created(state: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SandboxCreateError, match=says):
        await AsyncSandbox(CONFIG, spec(**fields)).start()
    while await asyncio.to_thread(left):
        pass


async def test_start_that_is_cancelled(state: Path) -> None:
    for steps in (1, 100, 10_000):
        start = asyncio.create_task(AsyncSandbox(CONFIG, spec()).start())
        for _ in range(steps):
            await asyncio.sleep(0)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await start).stop()
        while await asyncio.to_thread(left):
            pass


def test_daemon_that_is_away(tmp_path: Path) -> None:
    away = {"sandboxd": {"gateway": "ssh://127.0.0.1:1"}}
    with pytest.raises(SandboxCreateError, match=r"127\.0\.0\.1:1"), Sandbox(away, spec()) as made:
        made.start()


def test_it_is_found_by_its_name() -> None:
    from importlib.metadata import entry_points

    found = [e for e in entry_points(group="nemo_gym.sandbox_providers") if e.name == "sandboxd"]
    assert {e.load() for e in found} == {SandboxdProvider}
    assert get_provider_class("sandboxd") is SandboxdProvider


async def test_results_that_are_no_whole_ones(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = create_provider(CONFIG)
    handle = await provider.create(spec())
    much = await provider.exec(handle, "head -c 70000000 /dev/zero | tr '\\0' a; echo the end")
    assert (len(much.stdout or ""), much.error_type) == (64 << 20, "output")
    said = await provider.exec(handle, "printf x >>/tmp/n; wc -c </tmp/n", env={"LC_ALL": "xx_XX"})
    assert (said.stdout, said.error_type) == ("1\n", None)

    async def breaks(*_: object, **__: object) -> None:
        raise Lost("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(handle.raw.sandbox, "exec", breaks)
        patch.setattr(handle.raw.sandbox, "remove", breaks)
        lost = await provider.exec(handle, "true")
        assert (lost.return_code, lost.error_type) == (125, "lost")
        with pytest.raises(Lost):
            await provider.close(handle)
    await provider.exec(handle, "mkfifo /tmp/pipe")
    with pytest.raises(Error, match="no regular file"):
        await provider.download_file(handle, "/tmp/pipe", tmp_path / "pipe")
    await asyncio.gather(*(provider.close(handle) for _ in range(8)))
    await provider.close(handle)
    assert await asyncio.to_thread(left) == set()
