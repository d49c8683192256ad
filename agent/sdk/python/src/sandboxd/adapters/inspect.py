"""Sandboxes for Inspect (PyPI inspect-ai): `sandbox="sandboxd"`, or ("sandboxd", config).

Each sample gets a sandbox, which is removed at its end. The daemon is that of this machine, or the
one of $SANDBOXD_GATEWAY. A config is a SandboxdConfig or the path of a YAML file with its fields;
`sandboxd.yaml` beside the task is found.
"""

from __future__ import annotations

import posixpath
import secrets
import shlex
from pathlib import Path
from typing import Any, Literal, overload

import yaml  # type: ignore[import-untyped]
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from .. import aio, errors
from ._shared import SharedGateway

_PREFIX = "inspect-"
_ABOUT = "a sample of Inspect"
_CANNOT_EXECUTE = 126  # POSIX sh: the command was found and may not be executed


class SandboxdConfig(BaseModel, frozen=True):
    """What the sandboxes of a sample are made of. See CreateOptions for the fields; what is left
    out is the daemon's default."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    dockerfile: str | None = None
    network: str | None = None
    allow: tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    user: str | None = None
    workdir: str | None = None
    sudo: bool | None = None
    memory: str | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: str | None = None
    isolation: str | None = None


def _options(config: object) -> aio.CreateOptions:
    if isinstance(config, str):
        read = yaml.safe_load(Path(config).read_text()) or {}
        config = SandboxdConfig.model_validate(read)
    if config is None:
        config = SandboxdConfig()
    if not isinstance(config, SandboxdConfig):
        raise errors.Usage(
            f"sandbox config {type(config).__name__}", hint="pass a SandboxdConfig or a YAML file"
        )
    options: aio.CreateOptions = config.model_dump(exclude_none=True)  # type: ignore[assignment]
    return options


_connection = SharedGateway()


def _gateway() -> aio.Gateway:
    if _connection.gateway is None:
        raise SandboxUnavailableError("the task has no connection to the daemon of sandboxd")
    return _connection.gateway


@sandboxenv(name="sandboxd")
class SandboxdSandboxEnvironment(SandboxEnvironment):
    """A sandbox of a sample. Relative paths are below its working directory."""

    def __init__(self, sandbox: aio.Sandbox, directory: str) -> None:
        super().__init__()
        self.sandbox, self.directory = sandbox, directory

    @classmethod
    def default_concurrency(cls) -> int | None:
        """As many samples at once as Inspect wants: the daemon has limits of its own."""
        return None

    @classmethod
    def config_files(cls) -> list[str]:
        """The files that are a config if they lie beside a task."""
        return ["sandboxd.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Restores a config from the log of an eval."""
        return SandboxdConfig.model_validate(config)

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Connects to the daemon, which is started if it is this machine's and does not run."""
        await _connection.enter()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Disconnects after the last task. Sandboxes are removed with their samples."""
        await _connection.leave()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Creates the sandbox "default" of a sample."""
        name = _PREFIX + secrets.token_hex(6)
        options = _options(config)
        options["about"] = _ABOUT
        sandbox = await _gateway().create(name, keep=True, **options)
        directory = options.get("workdir") or (await sandbox.exec("pwd")).text.rstrip("\n")
        return {"default": cls(sandbox, directory)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Removes the sandbox of a sample, also of one that was interrupted."""
        for environment in environments.values():
            sandbox = environment.as_type(cls).sandbox
            try:
                await sandbox.remove()
            except errors.NotFound:
                pass
            finally:
                await sandbox.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Removes the sandbox of that name, or all that samples have left behind."""
        async with await aio.Gateway.connect() as gateway:
            for info in await gateway.sandboxes():
                ours = info.name.startswith(_PREFIX) and info.about == _ABOUT
                if ours and id in (None, info.name):
                    await gateway.command("rm", "--force", info.name)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command. See SandboxEnvironment.exec.

        A command that did not end in time is not run again: it may have done half of its work. A
        user who may not enter the working directory runs it at home.
        Output that is no UTF-8 is replaced.
        """
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        command: list[str] | str = cmd
        if user is not None and cwd is None:  # who may not be allowed in, as in /root
            command = f"cd -- {shlex.quote(self.directory)} 2>/dev/null\n{shlex.join(cmd)}"
        elif cwd is None or not posixpath.isabs(cwd):
            cwd = self._path(cwd or "")
        try:
            done = await self.sandbox.exec(
                command,
                input=input or b"",
                cwd=cwd,
                env=env,
                user=user,
                timeout=timeout,
                max_output=limit,
            )
        except errors.Unavailable as e:
            raise SandboxUnavailableError(str(e)) from e
        except errors.Error as e:
            if user is not None and e.code in ("failed", "usage", "denied"):
                raise SandboxUserUnsupportedError(f"user {user}: {e}") from e
            raise
        if done.truncated:
            text = done.text if len(done.stdout) >= len(done.stderr) else done.error_text
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, truncated_output=text
            )
        if done.exit_code == _CANNOT_EXECUTE and "permission denied" in done.error_text.lower():
            raise PermissionError(done.error_text.strip())
        return ExecResult(done.ok, done.exit_code, done.text, done.error_text)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file and creates its directories. See SandboxEnvironment.write_file."""
        path = self._path(file)
        try:
            await self.sandbox.files.write(path, contents)
        except errors.Error as e:
            await self._explain(path, e)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file. See SandboxEnvironment.read_file."""
        path = self._path(file)
        try:
            data = await self.sandbox.files.read(
                path, max_bytes=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
            )
        except errors.Limit as e:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit, truncated_output=None) from e
        except errors.Error as e:
            await self._explain(path, e)
        return data.decode() if text else data

    async def _explain(self, path: str, e: errors.Error) -> None:
        """Raises the error of Python for one of SFTP, which has no word for a directory."""
        if isinstance(e, errors.NotFound):
            raise FileNotFoundError(str(e)) from e
        if isinstance(e, errors.Denied):
            raise PermissionError(str(e)) from e
        if not isinstance(e, errors.Lost) and (await self.sandbox.exec(["test", "-d", path])).ok:
            raise IsADirectoryError(f"{path} is a directory") from e
        raise e

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Returns the ssh command with which a person joins the sandbox."""
        if user is not None:
            raise NotImplementedError("people join as the user of the sandbox")
        try:
            info = await self.sandbox.describe()
        except errors.NotFound as e:
            raise ConnectionError(str(e)) from e
        return SandboxConnection(type="sandboxd", command=info.ssh_command, container=info.name)

    def _path(self, path: str) -> str:
        return posixpath.join(self.directory, path)
