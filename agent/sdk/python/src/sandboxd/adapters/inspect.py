"""Sandboxes for Inspect (PyPI inspect-ai): `sandbox="sandboxd"`, or ("sandboxd", config).

Each sample gets a sandbox, which is removed at its end. The daemon is that of this machine, or the
one of $SANDBOXD_GATEWAY. A config is a SandboxdConfig or the path of a YAML file with its fields;
`sandboxd.yaml` beside the task is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import secrets
import shlex
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

import anyio
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
from ._shared import FILE_SECONDS, SharedGateway

_PREFIX = "inspect-"
_ABOUT = "a sample of Inspect"
_CANNOT_EXECUTE = 126  # POSIX sh: the command was found and may not be executed


class SandboxdConfig(BaseModel, frozen=True):
    """What the sandboxes of a sample are made of. See CreateOptions for the fields; what is left
    out is the daemon's default. In a YAML file, a relative dockerfile is beside that file."""

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
    volumes: tuple[str, ...] | None = None
    ttl: str | None = None
    delete_after: str | None = None
    isolation: str | None = None
    flags: tuple[str, ...] | None = None

    def __hash__(self) -> int:
        # Inspect keeps configs in sets, and env has no hash.
        return hash(self.model_dump_json(exclude={"env"}))


def _options(config: object) -> aio.CreateOptions:
    if isinstance(config, str):
        path = Path(config).absolute()
        config = SandboxdConfig.model_validate(yaml.safe_load(path.read_text()) or {})
        if config.dockerfile:
            dockerfile = os.path.normpath(path.parent / config.dockerfile)
            config = config.model_copy(update={"dockerfile": dockerfile})
    if config is None:
        config = SandboxdConfig()
    if not isinstance(config, SandboxdConfig):
        raise errors.Usage(
            f"sandbox config {type(config).__name__}", hint="pass a SandboxdConfig or a YAML file"
        )
    options: aio.CreateOptions = config.model_dump(exclude_none=True)  # type: ignore[assignment]
    return options


_connection = SharedGateway()


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError as e:
        raise errors.Usage(
            "sandboxd needs asyncio", hint="set INSPECT_ASYNC_BACKEND=asyncio, the default"
        ) from e


async def _remove(sandbox: aio.Sandbox) -> None:
    """Removes a sandbox that may be gone already."""
    with contextlib.suppress(errors.NotFound):
        try:
            await sandbox.remove()
        except errors.Lost:  # the connection broke; the next call makes another one
            await sandbox.remove()


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
        """Connects to the daemon, which is started if it is this machine's and does not run.

        Raises Usage or ValidationError for a config that is wrong, and Unavailable or Denied if
        there is no daemon for the caller.
        """
        _check_loop()
        _options(config)
        await _connection.enter()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Disconnects after the last task. Sandboxes are removed with their samples."""
        await _connection.leave()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Creates the sandbox "default" of a sample. If that fails or is cancelled, none is left.

        Raises Error if the daemon cannot create it.
        """
        gateway, name = _gateway(), _PREFIX + secrets.token_hex(6)
        options = _options(config)
        options["about"] = _ABOUT
        creation = asyncio.create_task(gateway.create(name, keep=True, **options))
        try:
            # What is cancelled here may go on in the daemon; _undo has to know how it ended.
            sandbox = await asyncio.shield(creation)
            return {"default": cls(sandbox, options.get("workdir") or await _directory(sandbox))}
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _undo(gateway.sandbox(name), creation)
            raise

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Removes the sandbox of a sample, also of one that was interrupted. Inspect does not call
        this with --no-sandbox-cleanup; `inspect sandbox cleanup sandboxd` removes those."""
        with anyio.CancelScope(shield=True):
            for environment in environments.values():
                sandbox = environment.as_type(cls).sandbox
                try:
                    await _remove(sandbox)
                finally:
                    await sandbox.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Removes the sandbox of that name, or without one all that samples have, also those of an
        eval that runs. Raises NotFound if no sample has one of the name."""
        _check_loop()
        async with await aio.Gateway.connect() as gateway:
            infos = [i for i in await gateway.sandboxes() if id in (None, i.name)]
            ours = [i for i in infos if i.name.startswith(_PREFIX) and i.about == _ABOUT]
            if id is not None and not ours:
                raise errors.NotFound(
                    f"no sample has a sandbox {id}", hint="see `sandboxd ls` for those that exist"
                )
            for info in ours:
                await _remove(gateway.sandbox(info.name))

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

        timeout: seconds. A command that did not end in time gets HUP, and is not run again,
        whatever timeout_retry says: it may have done half of its work. concurrency says nothing, as
        no process of this machine runs it. A user who may not enter the working directory runs it
        at home. Output that is no UTF-8 is replaced.

        Raises Lost if the connection breaks, and Usage for a command that is longer than 96 KiB
        with a user, and for names of variables that are no names in a shell.
        """
        _check_text(*cmd)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        command: list[str] | str = cmd
        if user is not None and cwd is None:  # who may not be allowed in, as in /root
            command = f"cd -- {shlex.quote(self.directory)} 2>/dev/null\n{shlex.join(cmd)}"
        else:
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
        except errors.Timeout as e:
            late = TimeoutError(str(e))
            # Inspect shows it to the model, and has no argument for it.
            late.truncated_output = _text(e.stdout + e.stderr)  # type: ignore[attr-defined]
            raise late from e
        except (errors.Unavailable, errors.NotFound) as e:
            raise SandboxUnavailableError(e.message) from e
        except errors.Error as e:
            if user is not None and e.code in ("failed", "usage", "denied"):
                await self._check_user(user)
            raise
        if done.truncated:
            longer = done.stdout if len(done.stdout) >= len(done.stderr) else done.stderr
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, truncated_output=_text(longer)
            )
        said = done.error_text.strip()
        if (
            done.exit_code == _CANNOT_EXECUTE
            and not done.stdout
            and said.lower().endswith(f": {cmd[0]}: permission denied".lower())
            and "\n" not in said
        ):  # the shell says so of the command, and not a shell of the command of something else
            raise PermissionError(said)
        return ExecResult(done.ok, done.exit_code, done.text, done.error_text)

    async def _check_exists(self) -> None:
        """Raises SandboxUnavailableError if somebody has removed the sandbox."""
        try:
            await self.sandbox.describe()
        except errors.NotFound as e:
            raise SandboxUnavailableError(e.message) from e

    async def _check_user(self, user: str) -> None:
        """Raises SandboxUserUnsupportedError if nothing can run as the user."""
        try:
            await self.sandbox.exec("exit 0", user=user)
        except errors.Error as e:
            if e.code in ("failed", "usage", "denied"):
                raise SandboxUserUnsupportedError(f"user {user}: {e}") from e
            raise

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file and creates its directories. See SandboxEnvironment.write_file."""
        path = self._path(file)
        try:
            await self.sandbox.files.write(path, contents, timeout=FILE_SECONDS)
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
                path, max_bytes=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, timeout=FILE_SECONDS
            )
        except errors.Limit as e:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit, truncated_output=None) from e
        except errors.Error as e:
            await self._explain(path, e)
        return data.decode() if text else data

    async def _explain(self, path: str, e: errors.Error) -> NoReturn:
        """Raises the error of Python for one of SFTP, which has no word for a directory."""
        if isinstance(e, errors.Unavailable):
            raise SandboxUnavailableError(e.message) from e
        await self._check_exists()
        if isinstance(e, errors.NotFound):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e
        if isinstance(e, errors.Denied):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path) from e
        if not isinstance(e, errors.Lost) and (await self.sandbox.exec(["test", "-d", path])).ok:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from e
        raise e

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Returns the ssh command with which a person joins the sandbox, as the user of its
        sessions. Raises ConnectionError if it does not run, and NotImplementedError for another
        user."""
        try:
            info = await self.sandbox.describe()
        except errors.NotFound as e:
            raise ConnectionError(str(e)) from e
        if info.state != "running":
            raise ConnectionError(f"sandbox {info.name} is {info.state}")
        if user not in (None, info.user):
            raise NotImplementedError(f"people join as {info.user}, the user of the sandbox")
        return SandboxConnection(type="sandboxd", command=info.ssh_command, container=info.name)

    def _path(self, path: str) -> str:
        _check_text(path)
        return posixpath.join(self.directory, path)


def _check_text(*texts: str) -> None:
    if any("\0" in text for text in texts):
        raise ValueError("embedded null byte")  # which Inspect tells the model


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")


async def _directory(sandbox: aio.Sandbox) -> str:
    """Returns the working directory of commands."""
    done = await sandbox.exec("pwd")
    if not done.ok or not done.text.startswith("/"):
        raise errors.Error(f"sandbox {sandbox.name}: pwd: {done.error_text.strip() or done.text}")
    return done.text.rstrip("\n")


async def _undo(sandbox: aio.Sandbox, creation: asyncio.Task[aio.Sandbox]) -> None:
    """Removes a sandbox whose creation has ended, or ends it."""
    if not creation.done():
        await _remove(sandbox)  # ends the creation, if the daemon has read of it
    with contextlib.suppress(errors.Error):
        made = await creation
        try:
            await _remove(made)
        finally:
            await made.close()
    await sandbox.close()
