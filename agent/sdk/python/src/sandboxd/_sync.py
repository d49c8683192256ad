"""Gateways, sandboxes, sessions and files, without async. Each call is that of `sandboxd.aio`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _sandbox as aio
from ._exec import MAX_OUTPUT
from ._files import MAX_GET, MAX_READ, FileInfo
from ._files import Files as AsyncFiles
from ._portal import Portal
from ._session import DEFAULT_TIMEOUT, Phase, ShowScreen
from ._session import Session as AsyncSession
from .results import ExecResult, Result, SandboxInfo, Screen

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sandbox import CreateOptions

_Kind: TypeAlias = type[BaseException] | None


class Gateway:
    """A connection to a daemon; see sandboxd.aio.Gateway. Use it with `with`, or close it.

    It may be used by several threads at once.
    """

    def __init__(
        self, gateway: str = "", *, identity: str = "", state: str | os.PathLike[str] = ""
    ) -> None:
        """Connects to a daemon; see sandboxd.aio.Gateway.connect."""
        self._portal = Portal.enter()
        self._open = True
        try:
            self._aio = self._portal.call(
                aio.Gateway.connect(gateway, identity=identity, state=state)
            )
        except BaseException:
            self._portal.leave()
            raise

    def create(
        self,
        name: str = "",
        *,
        if_missing: bool = False,
        keep: bool = False,
        **options: Unpack[CreateOptions],
    ) -> Sandbox:
        """Creates a sandbox, and waits until it is ready; see sandboxd.aio.Gateway.create."""
        made = self._portal.call(
            self._aio.create(name, if_missing=if_missing, keep=keep, **options)
        )
        return Sandbox._of(Portal.enter(), made)

    def sandbox(self, name: str) -> Sandbox:
        """Returns the sandbox of that name, which need not exist yet."""

        async def make() -> aio.Sandbox:
            return self._aio.sandbox(name)

        return Sandbox._of(Portal.enter(), self._portal.call(make()))

    def sandboxes(self) -> list[SandboxInfo]:
        """Returns the sandboxes that the caller may use."""
        return self._portal.call(self._aio.sandboxes())

    def command(self, *words: str, input: bytes | None = None) -> list[dict[str, Any]]:
        """Runs a command of the daemon's command line; see sandboxd.aio.Gateway.command."""
        return self._portal.call(self._aio.command(*words, input=input))

    def close(self) -> None:
        """Closes the connection. Sandboxes and their sessions continue."""
        if self._open:
            self._open = False
            _end(self._portal, self._aio.close)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, kind: _Kind, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _end(portal: Portal, close: Any) -> None:
    """Closes what is of this process, and leaves the portal."""
    if portal.pid != os.getpid():
        return
    try:
        portal.call(close())
    finally:
        portal.leave()


class Session:
    """A terminal with a shell; see sandboxd.aio.Session.

    No call hangs: a command that asks, or still runs at the timeout, continues, and the Result says
    so. ^C interrupts what the call has started, and raises KeyboardInterrupt.
    """

    def __init__(self, portal: Portal, session: AsyncSession) -> None:
        self._portal, self._aio = portal, session

    @property
    def name(self) -> str:
        """The name of the session, such as "main"."""
        return self._aio.name

    def _interrupt(self) -> Any:
        return self._aio.interrupt(timeout=8)

    def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        kill: bool = False,
        hold: bool = False,
        adopt: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Runs shell code when the shell is at its prompt; see sandboxd.aio.Session.run."""
        call = self._aio.run(
            command, timeout=timeout, kill=kill, hold=hold, adopt=adopt, max_output=max_output,
            screen=screen,
        )  # fmt: skip
        return self._portal.call(call, self._interrupt)

    def type(
        self,
        text: str,
        *,
        enter: bool = True,
        timeout: float | None = DEFAULT_TIMEOUT,
        hold: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Types text to the program, and Enter unless enter is False."""
        call = self._aio.type(
            text, enter=enter, timeout=timeout, hold=hold, max_output=max_output, screen=screen
        )
        return self._portal.call(call, self._interrupt)

    def answer(
        self,
        text: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        hold: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Types text and Enter, but only to a program that asks for input; else raises Busy."""
        call = self._aio.answer(
            text, timeout=timeout, hold=hold, max_output=max_output, screen=screen
        )
        return self._portal.call(call, self._interrupt)

    def keys(
        self,
        *keys: str,
        timeout: float | None = DEFAULT_TIMEOUT,
        hold: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Presses keys: names such as "^C", "Up", "Enter", "F1", and single characters."""
        call = self._aio.keys(
            *keys, timeout=timeout, hold=hold, max_output=max_output, screen=screen
        )
        return self._portal.call(call, self._interrupt)

    def wait(
        self,
        *phases: Phase,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Waits until the session is in one of the phases; without any, in any but "running".

        ^C ends the wait only; the program continues."""
        return self._portal.call(
            self._aio.wait(*phases, timeout=timeout, max_output=max_output, screen=screen)
        )

    def interrupt(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Stops the running program by ^C, then TERM, then KILL."""
        return self._portal.call(self._aio.interrupt(timeout=timeout))

    def screen(self) -> Screen:
        """Returns what the terminal shows."""
        return self._portal.call(self._aio.screen())

    def end(self) -> None:
        """Ends the session with its shell and all that runs in it."""
        self._portal.call(self._aio.end())

    def detach(self) -> None:
        """Disconnects. The session continues, and a later call attaches again."""
        self._portal.call(self._aio.detach())


class Files:
    """Files of a sandbox; see sandboxd.aio.Files."""

    def __init__(self, portal: Portal, files: AsyncFiles) -> None:
        self._portal, self._aio = portal, files

    def read(self, path: str, *, max_bytes: int = MAX_READ, timeout: float | None = None) -> bytes:
        """Returns the content of a file; see sandboxd.aio.Files.read."""
        return self._portal.call(self._aio.read(path, max_bytes=max_bytes, timeout=timeout))

    def read_text(
        self, path: str, *, max_bytes: int = MAX_READ, timeout: float | None = None
    ) -> str:
        """Returns the content of a file that is UTF-8. Raises UnicodeDecodeError otherwise."""
        return self._portal.call(self._aio.read_text(path, max_bytes=max_bytes, timeout=timeout))

    def write(
        self, path: str, data: bytes | str, *, mode: int | None = None, parents: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Writes a file; see sandboxd.aio.Files.write."""
        self._portal.call(self._aio.write(path, data, mode=mode, parents=parents, timeout=timeout))

    def put(
        self, local: str | os.PathLike[str], remote: str, *, timeout: float | None = None
    ) -> None:
        """Copies a file or directory to the sandbox; see sandboxd.aio.Files.put."""
        self._portal.call(self._aio.put(local, remote, timeout=timeout))

    def get(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_GET,
        timeout: float | None = None,
    ) -> None:
        """Copies a file or directory from the sandbox; see sandboxd.aio.Files.get."""
        self._portal.call(self._aio.get(remote, local, max_bytes=max_bytes, timeout=timeout))

    def list_dir(self, path: str = ".", *, timeout: float | None = None) -> list[FileInfo]:
        """Returns what a directory has, by name; see sandboxd.aio.Files.list_dir."""
        return self._portal.call(self._aio.list_dir(path, timeout=timeout))

    def stat(self, path: str, *, timeout: float | None = None) -> FileInfo:
        """Returns what a path is, without following a symbolic link."""
        return self._portal.call(self._aio.stat(path, timeout=timeout))

    def exists(self, path: str, *, timeout: float | None = None) -> bool:
        """Reports whether there is something at path."""
        return self._portal.call(self._aio.exists(path, timeout=timeout))

    def mkdir(self, path: str, *, timeout: float | None = None) -> None:
        """Creates a directory and those above it."""
        self._portal.call(self._aio.mkdir(path, timeout=timeout))

    def remove(self, path: str, *, recursive: bool = False, timeout: float | None = None) -> None:
        """Removes a file or directory; see sandboxd.aio.Files.remove."""
        self._portal.call(self._aio.remove(path, recursive=recursive, timeout=timeout))


class Sandbox:
    """An isolated Linux machine with a name; see sandboxd.aio.Sandbox.

    Use it with `with`, or close it. A sandbox that `create` has made is removed at the end of
    `with`, unless it was created with keep; any other one stays. It may be used by several threads
    at once, and where an event loop runs, such as in a notebook.
    """

    _portal: Portal
    _aio: aio.Sandbox
    _open: bool

    def __init__(
        self,
        name: str,
        *,
        gateway: str = "",
        identity: str = "",
        state: str | os.PathLike[str] = "",
    ) -> None:
        """Connects to a sandbox that exists; see sandboxd.aio.Sandbox.connect."""
        portal = Portal.enter()
        try:
            made = portal.call(
                aio.Sandbox.connect(name, gateway=gateway, identity=identity, state=state)
            )
        except BaseException:
            portal.leave()
            raise
        self._set(portal, made)

    def _set(self, portal: Portal, made: aio.Sandbox) -> None:
        self._portal, self._aio, self._open = portal, made, True

    @classmethod
    def _of(cls, portal: Portal, made: aio.Sandbox) -> Sandbox:
        sandbox = cls.__new__(cls)
        sandbox._set(portal, made)
        return sandbox

    @classmethod
    def create(
        cls,
        name: str = "",
        *,
        if_missing: bool = False,
        keep: bool = False,
        gateway: str = "",
        identity: str = "",
        state: str | os.PathLike[str] = "",
        **options: Unpack[CreateOptions],
    ) -> Sandbox:
        """Connects to a daemon and creates a sandbox; see sandboxd.aio.Sandbox.create."""
        portal = Portal.enter()
        try:
            made = portal.call(
                aio.Sandbox.create(
                    name, if_missing=if_missing, keep=keep, gateway=gateway, identity=identity,
                    state=state, **options,
                )
            )  # fmt: skip
        except BaseException:
            portal.leave()
            raise
        return cls._of(portal, made)

    @classmethod
    def connect(
        cls,
        name: str,
        *,
        gateway: str = "",
        identity: str = "",
        state: str | os.PathLike[str] = "",
    ) -> Sandbox:
        """Connects to a sandbox that exists, as Sandbox(name) does."""
        return cls(name, gateway=gateway, identity=identity, state=state)

    def __repr__(self) -> str:
        return repr(self._aio)

    @property
    def name(self) -> str:
        """The name of the sandbox."""
        return self._aio.name

    @property
    def files(self) -> Files:
        """The files of the sandbox."""
        return Files(self._portal, self._aio.files)

    def session(self, name: str = "") -> Session:
        """Returns a session by name; empty is "main". Its first call starts it if needed."""

        async def make() -> AsyncSession:
            return self._aio.session(name)

        return Session(self._portal, self._portal.call(make()))

    def run(
        self,
        command: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        kill: bool = False,
        hold: bool = False,
        adopt: bool = False,
        max_output: int = 0,
        screen: ShowScreen = "auto",
    ) -> Result:
        """Runs shell code in the session "main"; see sandboxd.aio.Session.run."""
        return self.session().run(
            command, timeout=timeout, kill=kill, hold=hold, adopt=adopt, max_output=max_output,
            screen=screen,
        )  # fmt: skip

    def type(
        self, text: str, *, enter: bool = True, timeout: float | None = DEFAULT_TIMEOUT
    ) -> Result:
        """Types text, and Enter unless enter is False; see sandboxd.aio.Session.type."""
        return self.session().type(text, enter=enter, timeout=timeout)

    def answer(self, text: str, *, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Types text and Enter to a program that asks for input; else raises Busy."""
        return self.session().answer(text, timeout=timeout)

    def keys(self, *keys: str, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Presses keys: names such as "^C", "Up", "Enter", "F1", and single characters."""
        return self.session().keys(*keys, timeout=timeout)

    def wait(self, *phases: Phase, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Waits until the session is in one of the phases; without any, in any but "running"."""
        return self.session().wait(*phases, timeout=timeout)

    def interrupt(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Stops the running program by ^C, then TERM, then KILL."""
        return self.session().interrupt(timeout=timeout)

    def screen(self) -> Screen:
        """Returns what the terminal shows."""
        return self.session().screen()

    def exec(
        self,
        command: str | Sequence[str],
        *,
        input: bytes | str = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs a command without a session; see sandboxd.aio.Sandbox.exec. ^C sends it HUP."""
        return self._portal.call(
            self._aio.exec(
                command, input=input, env=env, cwd=cwd, user=user, timeout=timeout,
                max_output=max_output,
            )
        )  # fmt: skip

    @contextmanager
    def port(self, number: int) -> Iterator[str]:
        """Forwards a port of the sandbox to a free one of this machine, for a `with`.

        Gives the URL, http://127.0.0.1:PORT. Other protocols than HTTP pass as well.
        """
        forward = self._aio.port(number)

        async def enter() -> str:
            return await forward.__aenter__()

        async def leave() -> None:
            await forward.__aexit__(None, None, None)

        url = self._portal.call(enter())
        try:
            yield url
        finally:
            self._portal.call(leave())

    def describe(self) -> SandboxInfo:
        """Returns what the daemon knows of the sandbox. Raises NotFound if it does not exist."""
        return self._portal.call(self._aio.describe())

    def allow(self, *hosts: str, remove: bool = False) -> None:
        """Allows the sandbox to connect to more hosts; see sandboxd.aio.Sandbox.allow."""
        self._portal.call(self._aio.allow(*hosts, remove=remove))

    def stop(self) -> None:
        """Stops the sandbox. Its files stay, its programs end."""
        self._portal.call(self._aio.stop())

    def start(self) -> None:
        """Starts the sandbox if it is stopped. `run` and `exec` do so by themselves."""
        self._portal.call(self._aio.start())

    def remove(self) -> None:
        """Removes the sandbox with its files and recordings, even if it runs."""
        self._portal.call(self._aio.remove())

    def close(self) -> None:
        """Disconnects. The sandbox and its sessions continue."""
        if self._open:
            self._open = False
            _end(self._portal, self._aio.close)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: _Kind, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._open:
            self._open = False
            _end(self._portal, lambda: self._aio.__aexit__(kind, e, tb))
