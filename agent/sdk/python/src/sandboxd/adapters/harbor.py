"""Sandboxes for Harbor (PyPI harbor, Python 3.12 or later):

    harbor run --env sandboxd.adapters.harbor:SandboxdEnvironment …

The daemon is that of this machine, or the one of $SANDBOXD_GATEWAY. Dockerfiles of tasks are built
by the daemon, which must be of this machine for that, as are directories that are mounted. Both
must be below the daemon's `mount_roots`.

Options, as in `--environment-kwarg isolation=runsc`: see SandboxdOptions. Others are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import posixpath
import secrets
import shlex
import tarfile
from pathlib import Path
from typing import Any

from harbor.environments.base import (
    BaseEnvironment,
    ExecResult,
    transfer_tar_filter,
)
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.environments.options import EnvironmentOptions
from harbor.environments.tar_transfer import tar_pack_succeeded
from harbor.models.task.config import NetworkMode, NetworkPolicy

from .. import aio, errors, results
from .._finish import Together
from ._shared import FILE_SECONDS, SharedGateway

_connection = SharedGateway()
_MAX_OUTPUT = 256 << 20  # bytes of stdout, and of stderr
_MAX_TRANSFER = 1 << 30  # bytes
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


class SandboxdOptions(EnvironmentOptions):
    """What users may set besides the task: the runtime of the container (None is the daemon's
    default), the largest number of processes and threads (None is the default), and whether setuid
    programs such as sudo work."""

    isolation: str | None = None
    pids: int | None = None
    sudo: bool = False


class SandboxdEnvironment(BaseEnvironment):
    """A sandbox for a trial, from `start` to `stop`, which is called after a `start` that failed,
    too."""

    options_model = SandboxdOptions
    options: SandboxdOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._gateway: aio.Gateway | None = None
        self._creation: asyncio.Task[aio.Sandbox] | None = None
        self._sandbox: aio.Sandbox | None = None
        self._ready, self._end = False, Together()
        self._name = ""
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """The name of the environment in results."""
        return "sandboxd"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What tasks may ask for. The network may differ from phase to phase. Sandboxes have IPv4
        only."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """CPUs and memory are limits; nothing is reserved."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    @property
    def _dockerfile(self) -> Path:
        return Path(self.environment_dir) / "Dockerfile"

    def _validate_definition(self) -> None:
        """Raises ValueError for tasks of several services, and for mounts of other than
        directories."""
        files = [f for f in _COMPOSE if (self.environment_dir / f).exists()]
        if files or self.extra_docker_compose_paths:
            raise ValueError(
                f"task {self.environment_name} needs Docker Compose ({', '.join(files)}), which "
                "sandboxd does not run; use Harbor's docker environment for it"
            )
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )
        for mount in self._host_mounts:
            if mount["type"] != "bind" or not mount.get("source"):
                raise ValueError(f"mount {mount['target']}: only directories (bind) can be mounted")

    async def start(self, force_build: bool) -> None:
        """Creates the sandbox, and builds its image if the task has a Dockerfile, and no
        docker_image or force_build. What has not changed is not built again.

        Raises ValueError for what only a daemon of this machine can do, if it is another one's, and
        Error if the daemon cannot do it.
        """
        options = self._options(force_build)
        name = "harbor-" + secrets.token_hex(6)
        self._gateway = await _connection.enter()
        # A creation that is cancelled goes on in the daemon: stop has to know how it ended.
        self._creation = asyncio.create_task(self._gateway.create(name, keep=True, **options))
        self._name = name
        self._sandbox = await asyncio.shield(self._creation)
        await self._upload_environment_dir_after_start()  # which may create the working directory
        made = await self.ensure_dirs(self._mount_targets(writable_only=True))
        if made is not None and made.return_code != 0:
            raise RuntimeError(f"cannot create {self._mount_targets()}: {made.stderr}")
        self._ready = True

    def _options(self, force_build: bool) -> aio.CreateOptions:
        prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir,
            docker_image=self.task_env_config.docker_image,
            force_build=force_build,
        )
        if (not prebuilt or self._host_mounts) and os.environ.get("SANDBOXD_GATEWAY"):
            what = "mounts" if prebuilt else "a Dockerfile"
            raise ValueError(
                f"task {self.environment_name} has {what}, which only a daemon of this machine can "
                "read; unset SANDBOXD_GATEWAY, or give the task a docker_image and no mounts"
            )
        options = aio.CreateOptions(about=f"Harbor {self.session_id}", env=self._startup_env())
        if prebuilt:
            options["image"] = self.task_env_config.docker_image or ""
        else:
            options["dockerfile"] = str(self._dockerfile.resolve())
        if self._host_mounts:
            options["volumes"] = [
                f"{Path(m['source']).resolve()}:{m['target']}" + ":ro" * bool(m.get("read_only"))
                for m in self._host_mounts
            ]
        if self.options.isolation:
            options["isolation"] = self.options.isolation
        if self.options.pids:
            options["pids"] = self.options.pids
        options["sudo"] = self.options.sudo
        options["network"] = "allowlist"
        options["allow"] = _allowed(self.network_policy)
        if cpus := self._effective_cpus:
            options["cpus"] = float(cpus)
        if memory := self._effective_memory_mb:
            options["memory"] = f"{memory}m"
        if storage := self._effective_storage_mb:
            options["disk"] = f"{storage}m"
        return options

    @property
    def _box(self) -> aio.Sandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment has not started")
        return self._sandbox

    async def stop(self, delete: bool) -> None:
        """Removes the sandbox; without delete, stops it and keeps its files. One that is not ready
        is removed in any case. It may be called again, also after it has failed."""
        if self._gateway:
            await self._end.finish(lambda: self._stop(delete or not self._ready))

    async def _stop(self, delete: bool) -> None:
        gateway, creation, sandbox = self._gateway, self._creation, self._sandbox
        if gateway is None:
            return
        if creation and sandbox is None:  # start failed, or was cancelled
            if not creation.done():
                with contextlib.suppress(errors.NotFound):  # the daemon has not read of it yet
                    await gateway.sandbox(self._name).remove()  # ends the creation
            with contextlib.suppress(errors.Error):
                sandbox = await creation
        if sandbox:
            with contextlib.suppress(errors.NotFound):
                await (sandbox.remove() if delete else sandbox.stop())
        self._gateway = self._creation = self._sandbox = None
        self._ready = False
        try:
            if sandbox:
                await sandbox.close()
        finally:
            await _connection.leave()

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        before, after = set(_allowed(self._network_policy)), set(_allowed(network_policy))
        if after - before:
            await self._box.allow(*sorted(after - before))
        if before - after:
            await self._box.allow(*sorted(before - after), remove=True)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copies a file to the sandbox as root, into target_path if that is a directory or ends
        with a slash, and creates the directories above. Raises RuntimeError if that fails, as do
        the other three; each holds what it copies, which may be 1 GiB, in memory."""
        source = Path(source_path)
        data = await asyncio.to_thread(source.read_bytes)
        target, name = shlex.quote(target_path), shlex.quote(source.name)
        above = shlex.quote(target_path if target_path.endswith("/") else
                            posixpath.dirname(target_path) or ".")  # fmt: skip
        mode = f"{source.stat().st_mode & 0o777:o}"
        await self._as_root(
            f'mkdir -p -- {above} && t={target} && {{ [ ! -d "$t" ] || t="$t"/{name}; }} && '
            f'cat >"$t" && chmod {mode} -- "$t"',
            data,
        )

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Merges a directory into one of the sandbox, as root, who owns the copies."""
        data = await asyncio.to_thread(_pack, Path(source_dir))
        target = shlex.quote(target_dir)
        await self._as_root(f"mkdir -p -- {target} && tar -xof - -C {target}", data)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copies a file that root can read from the sandbox."""
        done = await self._as_root(f"cat -- {shlex.quote(source_path)}")
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(Path(target_path).write_bytes, done.stdout)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Merges a directory of the sandbox that root can read into one of this machine. Devices,
        FIFOs, and links that lead out of it are left out; a warning names the links."""
        done = await self._as_root(f"tar -cf - -C {shlex.quote(source_dir)} .", is_tar=True)
        left_out = await asyncio.to_thread(_unpack, done.stdout, Path(target_dir))
        if left_out:
            self.logger.warning(f"{source_dir}: left out links that lead out of it: {left_out}")

    async def _as_root(
        self, command: str, data: bytes = b"", *, is_tar: bool = False
    ) -> results.ExecResult:
        done = await self._box.exec(
            command,
            input=data,
            cwd="/",
            user="root",
            max_output=_MAX_TRANSFER,
            timeout=FILE_SECONDS,
        )
        if done.truncated:
            raise RuntimeError(f"{command}: more than {_MAX_TRANSFER} bytes")
        changed = is_tar and tar_pack_succeeded(
            done.exit_code, stdout=None, stderr=done.error_text, logger=self.logger
        )  # a file that grows while it is read is no failure
        if not done.ok and not changed:
            raise RuntimeError(f"{command}: {done.error_text.strip() or done.exit_code}")
        return done

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command with bash. See BaseEnvironment.exec. timeout_sec: 0 and None wait without
        an end. A command that does not end in time gets HUP, and raises RuntimeError, as does one
        that prints more than 256 MiB. Output callbacks get the output at the end."""
        who = self._resolve_user(user)
        stdout = stderr = b""
        try:
            done = await self._box.exec(
                ["bash", "-c", command],
                cwd=cwd or self.task_env_config.workdir,
                env=self._merge_env(env),
                timeout=timeout_sec or None,
                user=None if who is None else str(who),
                max_output=_MAX_OUTPUT,
            )
            stdout, stderr = done.stdout, done.stderr
        except errors.Timeout as e:
            stdout, stderr = e.stdout, e.stderr
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from e
        finally:
            if emit := self._output_callback():
                for text in filter(None, [stdout.decode("utf-8", "replace")]):
                    await emit(text, "stdout")
                for text in filter(None, [stderr.decode("utf-8", "replace")]):
                    await emit(text, "stderr")
        if done.truncated:
            raise RuntimeError(f"Command printed more than {_MAX_OUTPUT} bytes")
        return ExecResult(stdout=done.text, stderr=done.error_text, return_code=done.exit_code)

    async def attach(self) -> None:
        """Joins the sandbox with ssh, and returns when that ends."""
        words = shlex.split((await self._box.describe()).ssh_command)
        await (await asyncio.create_subprocess_exec(*words)).wait()


def _allowed(policy: NetworkPolicy) -> list[str]:
    return ["*"] if policy.network_mode == NetworkMode.PUBLIC else policy.allowed_hosts


def _pack(source: Path) -> bytes:
    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
        return member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(source.iterdir()):
            tar.add(path, arcname=path.name, filter=owned_by_root)
    return packed.getvalue()


def _unpack(packed: bytes, target: Path) -> list[str]:
    """Unpacks an archive of the sandbox, and returns the links that it does not make."""
    left_out: list[str] = []

    def safe(member: tarfile.TarInfo, to: str) -> tarfile.TarInfo | None:
        try:
            return transfer_tar_filter(member, to)
        except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
            left_out.append(member.name)
            return None

    target.mkdir(parents=True, exist_ok=True)
    # mode: without one, it would unpack a compressed archive, whose content has no limit.
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
        tar.extractall(target, filter=safe)
    return left_out
