"""Sandboxes for SWE-ReX (PyPI swe-rex): SandboxdDeployment in place of DockerDeployment.

    deployment = SandboxdDeployment(image="sandboxd/base:latest", network="none")
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())

Sessions are those of sandboxd: an exit code is known and not printed for, and a command that asks
for input fails at once, unless the action says that it is interactive.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from typing import TYPE_CHECKING

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
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
    AbstractRuntime,
    Action,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)

from .. import aio, errors
from .._finish import Together
from ..results import Result
from ._shared import FILE_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MAX_OUTPUT = 500_000  # bytes of a session's output; a longer one lacks its middle


class SandboxdRuntime(AbstractRuntime):
    """Runs the actions of SWE-ReX in a sandbox that somebody else closes."""

    def __init__(self, sandbox: aio.Sandbox) -> None:
        self.logger = logging.getLogger("sandboxd.swerex")
        self.sandbox = sandbox
        self._sessions: dict[str, aio.Session] = {}
        self._asks: set[str] = set()  # sessions whose program waits for input

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Asks the sandbox for a sign of life. timeout: seconds."""
        try:
            done = await self.sandbox.exec("true", timeout=timeout)
        except errors.Error as e:
            return IsAliveResponse(is_alive=False, message=str(e))
        return IsAliveResponse(is_alive=done.ok, message=done.error_text.strip())

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Starts a session, and sources the files of the request in it. Raises
        SessionNotInitializedError if they do not come to an end in startup_timeout, or 30 s if that
        is less."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        # Names of SWE-ReX are any text, and another runtime may use this sandbox.
        session = self.sandbox.session(f"rex-{secrets.token_hex(6)}")
        self._sessions[request.session] = session
        sources = "".join(f"source {path}\n" for path in request.startup_source)
        try:
            result = await session.run(sources or "true", timeout=max(request.startup_timeout, 30))
            if result.ended != "done":
                raise SessionNotInitializedError(
                    f"the startup of session {request.session!r} did not end ({result.ended}): "
                    f"{result.output!r}"
                )
        except BaseException:
            del self._sessions[request.session]
            with contextlib.suppress(errors.Error):
                await session.end()
            raise
        return CreateBashSessionResponse(output=result.output)

    def _session(self, name: str) -> aio.Session:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def run_in_session(self, action: Action) -> Observation:
        """Runs a command in a session, types to its program if the action is interactive, or
        interrupts it. See swerex.runtime.abstract.BashAction."""
        session = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await self._interrupt(session, action)
        interactive = action.is_interactive_command or action.is_interactive_quit
        if not action.command.strip() and not interactive:
            return BashObservation(exit_code=None if action.check == "ignore" else 0)
        result = await self._result(session, action, interactive)
        output, matched = _match(action.expect, result)
        finished = result.ended in ("done", "interrupted", "dead")
        asks = interactive and result.ended == "waiting" and not action.expect
        if not (finished or asks or matched):
            raise CommandTimeoutError(_why(action, result))
        if interactive:  # as SWE-ReX has it: without the echo of what was typed
            output = output.lstrip().removeprefix(action.command.strip()).strip()
        code = result.exit_code if action.check != "ignore" else None
        if interactive and result.waiting:
            code = 0  # as SWE-ReX has it
        observation = BashObservation(
            output=output,
            exit_code=code,
            expect_string=matched,
            failure_reason="the output lacks its middle" if result.truncated else "",
        )
        if action.check == "raise" and code != 0:
            message = f"Command {action.command!r} failed with exit code {code}. "
            raise NonZeroExitCodeError(
                f"{message}Here is the output:\n{result.output!r}\n{action.error_msg}"
            )
        return observation

    async def _interrupt(
        self, session: aio.Session, action: BashInterruptAction
    ) -> BashObservation:
        """Interrupts the program, which may live on if it then prints what the action expects."""
        seconds = max(action.timeout, 30)
        if action.expect:
            result = await session.keys("^C", timeout=max(action.timeout, 1))
            output, matched = _match(action.expect, result)
            if matched:
                if not result.waiting:
                    self._asks.discard(action.session)
                return BashObservation(output=output, exit_code=0, expect_string=matched)
        result = await session.interrupt(timeout=seconds)
        if result.phase != "prompt":
            raise CommandTimeoutError(f"the session is not interrupted: it is {result.phase}")
        self._asks.discard(action.session)
        return BashObservation(output=result.output, exit_code=result.exit_code)

    async def _result(self, session: aio.Session, action: BashAction, interactive: bool) -> Result:
        """Types to the program that the last action has left at its prompt, or runs a command."""
        if interactive and action.session in self._asks:
            text = action.command.removesuffix("\n")
            result = await session.type(text, timeout=action.timeout, max_output=_MAX_OUTPUT)
        else:
            try:
                result = await session.run(
                    action.command, timeout=action.timeout, max_output=_MAX_OUTPUT
                )
            except errors.Busy as e:
                raise CommandTimeoutError(f"the session is not at its prompt: {e}") from e
            except errors.Usage as e:
                if e.code != "syntax" and "\0" not in action.command:
                    raise
                info = {"bash_stdout": "", "bash_stderr": e.message}
                raise BashIncorrectSyntaxError(str(e), extra_info=info) from e
        if result.waiting:
            self._asks.add(action.session)
        else:
            self._asks.discard(action.session)
        return result

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Ends a session with all that runs in it."""
        session = self._session(request.session)
        await session.end()
        del self._sessions[request.session]
        self._asks.discard(request.session)
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Runs a command outside the sessions. See swerex.runtime.abstract.Command."""
        text: str | list[str] = command.command
        if isinstance(text, str) and not command.shell:
            text = [text]
        if isinstance(text, list) and command.shell:
            text = text[0]  # as subprocess.run has it: the rest are arguments of sh
        if isinstance(text, str):
            text = ["sh", "-c", text]
        if command.merge_output_streams:
            text = ["sh", "-c", 'exec "$@" 2>&1', "sh", *text]
        try:
            done = await self.sandbox.exec(
                text, timeout=command.timeout, env=command.env, cwd=command.cwd
            )
        except errors.Timeout as e:
            raise CommandTimeoutError(f"{command.command!r}: {e}") from e
        if done.truncated:
            raise errors.Limit(
                f"{command.command!r} printed more than is kept", hint="redirect it to a file"
            )
        if command.check and not done.ok:
            raise NonZeroExitCodeError(
                f"Command {command.command!r} failed with exit code {done.exit_code}. "
                f"Stdout:\n{done.text!r}\nStderr:\n{done.error_text!r}\n{command.error_msg}"
            )
        return CommandResponse(stdout=done.text, stderr=done.error_text, exit_code=done.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Returns the text of a file. Raises FileNotFoundError."""
        try:
            data = await self.sandbox.files.read(request.path, timeout=FILE_SECONDS)
        except errors.NotFound as e:
            raise FileNotFoundError(str(e)) from e
        return ReadFileResponse(
            content=data.decode(request.encoding or "utf-8", request.errors or "strict")
        )

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Writes a file as UTF-8, and creates its directories."""
        await self.sandbox.files.write(request.path, request.content, timeout=FILE_SECONDS)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copies a file or directory of this machine to the sandbox."""
        await self.sandbox.files.put(request.source_path, request.target_path, timeout=FILE_SECONDS)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Ends all sessions."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.end()
        return CloseResponse()


def _match(expect: list[str], result: Result) -> tuple[str, str]:
    """Returns the output of a call and the first of the patterns that it matches. If a program
    still runs, its output ends before the last match, which is the prompt."""
    for pattern in expect:
        for text in (result.output, result.output + result.prompt):
            if found := list(re.finditer(pattern, text)):
                ended = result.ended in ("done", "interrupted", "dead")
                return (result.output if ended else text[: found[-1].start()]), pattern
    return result.output, ""


def _why(action: BashAction, result: Result) -> str:
    command = f"command {action.command!r}"
    if result.waiting:
        return f"{command} waits for input: {result.prompt!r}"
    if result.ended == "deadline":
        return f"timeout after {action.timeout} seconds while running {command}"
    return f"{command} still runs ({result.ended})"


class SandboxdDeployment(AbstractDeployment):
    """A sandbox from `start` to `stop`. options: see sandboxd.CreateOptions."""

    def __init__(
        self, *, logger: logging.Logger | None = None, **options: Unpack[aio.CreateOptions]
    ) -> None:
        self.logger = logger or logging.getLogger("sandboxd.swerex")
        self._options = options
        self._sandbox: aio.Sandbox | None = None
        self._runtime: SandboxdRuntime | None = None
        self._hooks = CombinedDeploymentHook()
        self._end = Together()

    def add_hook(self, hook: DeploymentHook) -> None:
        """Adds what is told of each step of `start`."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Asks the sandbox for a sign of life. timeout: seconds."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Creates the sandbox. Raises DeploymentStartupError with the reason."""
        if self._sandbox:
            raise DeploymentStartupError("the deployment is started; stop it first")
        self._hooks.on_custom_step("Creating sandbox")
        try:
            options = self._options.copy()
            options.setdefault("about", "a SWE-ReX deployment")
            self._sandbox = await aio.Sandbox.create(**options)
        except errors.Error as e:
            raise DeploymentStartupError(str(e)) from e
        self._runtime = SandboxdRuntime(self._sandbox)

    async def stop(self) -> None:
        """Removes the sandbox. It may be called again, also after it has failed."""
        await self._end.finish(self._remove)

    async def _remove(self) -> None:
        sandbox = self._sandbox
        if sandbox is None:
            return
        with contextlib.suppress(errors.NotFound):  # somebody has removed it
            await sandbox.remove()
        self._sandbox = self._runtime = None
        await sandbox.close()

    @property
    def runtime(self) -> SandboxdRuntime:
        """What runs actions. Raises DeploymentNotStartedError before `start`."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    def __del__(self) -> None:
        """Leaves the sandbox: an event loop is needed to remove it. Call `stop`."""
