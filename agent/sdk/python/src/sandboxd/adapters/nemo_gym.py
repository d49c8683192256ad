"""Sandboxes for NVIDIA NeMo Gym (PyPI nemo-gym, Python 3.12 or later):

    sandbox:
      sandboxd:
        create: {network: none, pids: 512}

The provider is found under the name sandboxd when this package is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from .. import aio, errors
from .._finish import Together
from ._shared import FILE_SECONDS, SharedGateway

_NO_PROCESS = 125  # what providers return instead of an exit code
_MAX_ABOUT = 1000  # characters; the daemon takes 4 KiB
_STATES = {
    "creating": SandboxStatus.STARTING,
    "starting": SandboxStatus.STARTING,
    "running": SandboxStatus.RUNNING,
    "stopped": SandboxStatus.STOPPED,
    "failed": SandboxStatus.ERROR,
}


class SandboxdProvider:
    """Creates sandboxes, and runs commands in them.

    gateway, identity, state: the daemon, see sandboxd.aio.Gateway.connect. Empty is that of this
        machine, which is started if none runs, or the one of $SANDBOXD_GATEWAY.
    create: CreateOptions of all sandboxes. What a SandboxSpec says goes before them, and its
        provider_options, which are CreateOptions too, before both.
    timeout_s: of commands that have none; None waits without an end.
    """

    name = "sandboxd"

    def __init__(
        self,
        *,
        gateway: str = "",
        identity: str = "",
        state: str = "",
        create: Mapping[str, Any] | None = None,
        timeout_s: float | None = 180,
    ) -> None:
        self._connection = SharedGateway(gateway=gateway, identity=identity, state=state)
        self._create, self._timeout = dict(create or {}), timeout_s

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Creates a sandbox, which runs when this returns. One whose creation fails, takes longer
        than spec.ready_timeout_s or is cancelled is removed.

        spec.ttl_s: a sandbox that was not used for so long is removed. Raises SandboxCreateError,
        also for what sandboxes do not have: GPUs, and an entrypoint of their own.
        """
        options = _options(spec, self._create)
        try:
            gateway = await self._connection.enter()
        except errors.Error as e:
            raise SandboxCreateError(str(e)) from e
        try:
            creation = gateway.create(keep=True, **options)
            made = await asyncio.wait_for(creation, spec.ready_timeout_s)
        except BaseException as e:
            await self._connection.leave()
            if isinstance(e, asyncio.TimeoutError):
                late = f"the sandbox was not ready after {spec.ready_timeout_s} s"
                raise SandboxCreateError(late) from e
            if isinstance(e, errors.Error):
                raise SandboxCreateError(str(e)) from e
            raise
        return SandboxHandle(made.name, self.name, _Made(made))

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Runs shell text. user: a name or a number; None is the user of the sandbox.

        A command that did not run has return_code 125 and error_type "sandbox"; one that did not
        end in time gets HUP, and has error_type "timeout" and what it had printed; one that may
        have run, as the connection broke, has "lost"; one that printed more than 64 MiB has
        "output", and the first of it. Raises Usage for a command that is empty, and for names of
        variables that are no names in a shell.
        """
        try:
            done = await _sandbox(handle).exec(
                command,
                cwd=cwd,
                env=env,
                user=None if user is None else str(user),
                timeout=self._timeout if timeout_s is None else timeout_s,
            )
        except errors.Timeout as e:
            said = (e.stderr.decode("utf-8", "replace") + f"\n{e}").lstrip("\n")
            out = e.stdout.decode("utf-8", "replace")
            return SandboxExecResult(out, said, _NO_PROCESS, error_type="timeout")
        except errors.Usage:
            raise
        except errors.Lost as e:
            return SandboxExecResult(None, str(e), _NO_PROCESS, error_type="lost")
        except errors.Error as e:
            return SandboxExecResult(None, str(e), _NO_PROCESS, error_type="sandbox")
        kind = "output" if done.truncated else None
        return SandboxExecResult(done.text, done.error_text, done.exit_code, error_type=kind)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copies a file of this machine to the sandbox, and creates the directories above it."""
        await _sandbox(handle).files.put(source_path, target_path, timeout=FILE_SECONDS)

    async def download_file(
        self, handle: SandboxHandle, source_path: str, target_path: Path
    ) -> None:
        """Copies a file of the sandbox to this machine, and creates the directories above it."""
        await _sandbox(handle).files.get(source_path, target_path, timeout=FILE_SECONDS)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Returns the state of the sandbox; STOPPED if it was removed, UNKNOWN if the daemon does
        not answer."""
        try:
            info = await _sandbox(handle).describe()
        except errors.NotFound:
            return SandboxStatus.STOPPED
        except errors.Error:
            return SandboxStatus.UNKNOWN
        return _STATES.get(info.state, SandboxStatus.UNKNOWN)

    async def close(self, handle: SandboxHandle) -> None:
        """Removes the sandbox. It may be called again. Raises Error if the daemon cannot."""
        if handle.raw is not None:
            await handle.raw.end.finish(lambda: self._remove(handle))

    async def _remove(self, handle: SandboxHandle) -> None:
        made = _sandbox(handle)
        with contextlib.suppress(errors.NotFound):
            await made.remove()
        handle.raw = None
        try:
            await made.close()
        finally:
            await self._connection.leave()

    async def aclose(self) -> None:
        """Does nothing: the connection ends with the last sandbox. Callers that share a provider
        each call this."""


class _Made:
    """What a handle has until it is closed."""

    def __init__(self, sandbox: aio.Sandbox) -> None:
        self.sandbox, self.end = sandbox, Together()


def _sandbox(handle: SandboxHandle) -> aio.Sandbox:
    if handle.raw is None:
        raise errors.Usage(f"sandbox {handle.sandbox_id} is closed")
    return cast(_Made, handle.raw).sandbox


def _options(spec: SandboxSpec, defaults: Mapping[str, Any]) -> aio.CreateOptions:
    needs = spec.resources
    if needs.gpu or needs.gpu_type:
        raise SandboxCreateError("sandboxes have no GPUs; leave out resources.gpu")
    if spec.entrypoint:
        raise SandboxCreateError("a sandbox has no entrypoint; start the program with exec")
    said = {
        "about": " ".join(["NeMo Gym", *(f"{k}={v}" for k, v in spec.metadata.items())]),
        "image": spec.image,
        "workdir": spec.workdir,
        "env": {**defaults.get("env", {}), **spec.env} or None,
        "cpus": needs.cpu,
        "memory": needs.memory_mib and f"{needs.memory_mib}m",
        "disk": needs.disk_gib and f"{needs.disk_gib}g",
        "ttl": spec.ttl_s and f"{spec.ttl_s}s",
        "delete_after": spec.ttl_s and "1s",
    }
    said["about"] = str(said["about"])[:_MAX_ABOUT]
    wanted = {k: v for k, v in said.items() if v is not None}
    options = {**defaults, **wanted, **spec.provider_options}
    if unknown := options.keys() - aio.CreateOptions.__annotations__.keys():
        raise SandboxCreateError(f"there is no option {sorted(unknown)[0]!r}; see CreateOptions")
    return cast(aio.CreateOptions, options)
