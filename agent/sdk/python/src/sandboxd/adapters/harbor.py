"""Sandboxes for Harbor (PyPI harbor, Python 3.12 or later):

    harbor run --env sandboxd.adapters.harbor:SandboxdEnvironment …

The daemon is that of this machine, or the one of $SANDBOXD_GATEWAY. Dockerfiles of tasks are built
by the daemon, which must be of this machine for that.
"""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    effective_exec_cwd,
    require_agent_environment_definition,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from .. import aio, errors
from ._shared import SharedGateway

_connection = SharedGateway()
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


class SandboxdEnvironment(BaseEnvironment):
    """A sandbox for a trial, from `start` to `stop`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sandbox: aio.Sandbox | None = None
        self._workdir: str | None = None  # of the image; known after start
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """The name of the environment in results."""
        return "sandboxd"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What tasks may ask for. Networks can be restricted, and the restriction be changed
        between phases, but not be lifted."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
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
        return self.environment_dir / "Dockerfile"

    def _validate_definition(self) -> None:
        """Raises ValueError for tasks of several services, and for networks that are public in one
        phase only."""
        files = [f for f in _COMPOSE if (self.environment_dir / f).exists()]
        if files or self.extra_docker_compose_paths:
            raise ValueError(
                f"task {self.environment_name} needs Docker Compose ({', '.join(files)}), which "
                "sandboxd does not run; use Harbor's docker environment for it"
            )
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )
        policies = [self.network_policy, *self._phase_network_policies]
        public = [p.network_mode == NetworkMode.PUBLIC for p in policies]
        if any(public) and not all(public):
            raise ValueError(
                f"task {self.environment_name} has a public network in some phases only; a sandbox "
                "with a public network cannot be restricted later"
            )

    async def start(self, force_build: bool) -> None:
        """Creates the sandbox, and builds its image if the daemon does not have it. force_build
        raises ValueError: images are built again when what they are made of has changed."""
        if force_build:
            raise ValueError("sandboxd builds an image again when its files change: omit the flag")
        gateway = await _connection.enter()
        try:
            name = "harbor-" + secrets.token_hex(6)
            self._sandbox = await gateway.create(name, keep=True, **self._options())
        except errors.Error:
            await _connection.leave()
            raise
        self._workdir = (await self._sandbox.describe()).raw.get("cwd")
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    def _options(self) -> aio.CreateOptions:
        options = aio.CreateOptions(about=f"Harbor {self.session_id}", env=self._startup_env())
        if self._dockerfile.exists():
            options["dockerfile"] = str(self._dockerfile.resolve())
        elif image := self.task_env_config.docker_image:
            options["image"] = image
        if self.network_policy.network_mode == NetworkMode.PUBLIC:
            options["network"] = "filtered"
        else:
            options["network"] = "allowlist"
            options["allow"] = self.network_policy.allowed_hosts
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
        """Removes the sandbox; without delete, stops it and keeps its files."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        try:
            await (sandbox.remove() if delete else sandbox.stop())
        except errors.NotFound:
            pass
        finally:
            await sandbox.close()
            await _connection.leave()

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        before = set(self._network_policy.allowed_hosts)
        after = set(network_policy.allowed_hosts)
        if network_policy.network_mode == NetworkMode.PUBLIC:
            raise ValueError("a restricted network of a sandbox cannot become public")
        if after - before:
            await self._box.allow(*sorted(after - before))
        if before - after:
            await self._box.allow(*sorted(before - after), remove=True)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copies a file to the sandbox, and creates its directories."""
        await self._box.files.put(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Merges a directory into one of the sandbox."""
        await self._box.files.put(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copies a file from the sandbox."""
        await self._box.files.get(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Merges a directory of the sandbox into one of this machine, without symbolic links."""
        await self._box.files.get(source_dir, target_dir)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command with bash. See BaseEnvironment.exec. A command that does not end in time
        gets HUP, and raises RuntimeError."""
        who = self._resolve_user(user)
        try:
            done = await self._box.exec(
                ["bash", "-c", command],
                cwd=effective_exec_cwd(cwd, self.task_env_config.workdir, self._workdir),
                env=self._merge_env(env),
                timeout=timeout_sec,
                user=None if who is None else str(who),
            )
        except errors.Timeout as e:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from e
        return ExecResult(stdout=done.text, stderr=done.error_text, return_code=done.exit_code)

    async def attach(self) -> None:
        """Joins the sandbox with ssh, in place of this process."""
        words = shlex.split((await self._box.describe()).ssh_command)
        os.execvp(words[0], words)
