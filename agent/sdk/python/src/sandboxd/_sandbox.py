"""Gateways and sandboxes, with async and await."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from . import errors
from ._daemon import (
    ANSWER_SECONDS,
    CONTROL_USER,
    Link,
    check_name,
    check_text,
    check_timeout,
    find,
    parse_uri,
    remote,
    to_bytes,
)
from ._exec import (
    MAX_LINE,
    MAX_OUTPUT,
    Options,
    as_user,
    control,
    daemon_said,
    execute,
    setup,
    shell_text,
)
from ._files import Files
from ._finish import finish
from ._session import DEFAULT_TIMEOUT, Phase, Session, ShowScreen
from .results import ExecResult, Result, SandboxInfo, Screen

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAIN = "main"
_CHANGE_SECONDS = 300  # how long the daemon may take to start, stop or remove a sandbox
_LETTERS = "bcdfghjklmnpqrstvwxz"  # of generated names: without vowels, they are no words
_Kind: TypeAlias = type[BaseException] | None


class CreateOptions(TypedDict, total=False):
    """What a new sandbox is made of. What is left out is the daemon's default.

    image: to boot. dockerfile: on the daemon's machine, to build the image of.
    network: "filtered" (public addresses), "allowlist", "none" or "bridge". allow: hosts for them.
    env: variables of all processes. user, workdir: of sessions. sudo: allow setuid programs.
    memory, disk: such as "2g". cpus: cores. pids: processes and threads.
    volumes: "SRC:DST" or "SRC:DST:ro", directories of the daemon's machine.
    ttl: stop it, and keep its files, when it was not used for so long, such as "30m"; "0" is never.
    delete_after: remove it when it was stopped for so long. isolation: a container runtime.
    about: notes for those who use it.
    flags: further flags of `sandboxd new`, such as ["--shm", "256m"].
    """

    image: str
    dockerfile: str
    network: str
    allow: Sequence[str]
    env: Mapping[str, str]
    user: str
    workdir: str
    sudo: bool
    memory: str
    cpus: float
    pids: int
    disk: str
    volumes: Sequence[str]
    ttl: str
    delete_after: str
    isolation: str
    about: str
    flags: Sequence[str]


def create_words(options: CreateOptions) -> list[str]:
    """Returns the options as flags of `sandboxd new`."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-").removesuffix("s" if name == "volumes" else "")
        if name not in CreateOptions.__annotations__:
            raise errors.Usage(f"create: there is no option {name!r}", hint="see CreateOptions")
        if value is None or (name == "sudo" and value is False):
            continue
        if value is False or value == "":
            raise errors.Usage(f"create: {name}={value!r} says nothing; leave it out")
        if name == "flags":
            words += [str(v) for v in value]  # type: ignore[attr-defined]
        elif value is True:
            words.append(flag)
        elif isinstance(value, Mapping):
            words += [w for k, v in value.items() for w in (flag, f"{k}={v}")]
        elif isinstance(value, str) or not isinstance(value, Sequence):
            words += [flag, str(value)]
        else:
            words += [w for v in value for w in (flag, str(v))]
    return words


class Gateway:
    """A connection to a daemon, which creates sandboxes and decides who may use them.

    Use it with `async with`, or close it. One gateway serves any number of sandboxes at once.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @classmethod
    async def connect(
        cls, gateway: str = "", *, identity: str = "", state: str | os.PathLike[str] = ""
    ) -> Gateway:
        """Connects to a daemon.

        gateway: its address, ssh://HOST:PORT. Empty is $SANDBOXD_GATEWAY, or else the daemon of
            this user on this machine, which is started if none runs.
        identity: path of the private key to log in with. Empty is the key of the state directory,
            or the keys that ssh would use.
        state: the state directory of the daemon on this machine; empty is its default.

        Raises Unavailable if there is no daemon, Denied if it does not let the caller in.
        """
        link = Link(await find(gateway, identity, state), CONTROL_USER)
        try:
            (await link.acquire()).release()
        except BaseException:
            await link.close()
            raise
        return cls(link)

    async def create(
        self,
        name: str = "",
        *,
        if_missing: bool = False,
        keep: bool = False,
        **options: Unpack[CreateOptions],
    ) -> Sandbox:
        """Creates a sandbox, and waits until it is ready.

        name: a DNS label; empty is a generated one. if_missing: returns the sandbox of the name if
        it exists, instead of raising Exists; the options do not change it.
        keep: it stays when the `async with` of the Sandbox ends, which otherwise removes a sandbox
        that this call has created.
        """
        words = ["new", *create_words(options)]
        if name:
            check_name(name)
            owned = await self._new(name, words, if_missing)
            return Sandbox(self, name, owned=owned and not keep)
        name = "box-" + "".join(secrets.choice(_LETTERS) for _ in range(8))
        try:
            await self._new(name, words, False)
        except (asyncio.CancelledError, errors.Lost):  # it may be there, and nobody knows its name
            await finish(self._undo(name))
            raise
        return Sandbox(self, name, owned=not keep)

    async def _new(self, name: str, words: list[str], if_missing: bool) -> bool:
        """Creates a sandbox, and reports whether it did. With if_missing, it may be there."""
        try:
            await control(self._link, *words, name)
            return True
        except errors.Exists:
            if not if_missing:
                raise
        await control(self._link, *words, "--if-missing", name)  # waits until it is ready
        return False

    async def _undo(self, name: str) -> None:
        with contextlib.suppress(errors.Error):
            await control(self._link, "rm", "--force", name, timeout=ANSWER_SECONDS)

    def sandbox(self, name: str) -> Sandbox:
        """Returns the sandbox of that name, which need not exist yet."""
        return Sandbox(self, name)

    async def sandboxes(self) -> list[SandboxInfo]:
        """Returns the sandboxes that the caller may use."""
        found = await control(self._link, "ls", timeout=ANSWER_SECONDS)
        return [SandboxInfo.of(s) for s in found]

    async def command(self, *words: str, input: bytes | None = None) -> list[dict[str, Any]]:
        """Runs a command of the daemon's command line with --json, such as ("secret", "ls"), and
        returns the objects that it prints. Its flags and objects are in the daemon's reference."""
        if not words:
            raise errors.Usage("command: no words")
        return await control(self._link, *words, input=input)

    async def close(self) -> None:
        """Closes the connection. Sandboxes and their sessions continue."""
        await self._link.close()

    async def __aenter__(self) -> Gateway:
        return self

    async def __aexit__(
        self, kind: _Kind, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class Sandbox:
    """An isolated Linux machine with a name.

    `run`, `type`, `answer`, `keys`, `wait`, `interrupt` and `screen` are those of its session
    "main"; `session` returns others. `exec` runs a command apart, and `files` reads and writes.

    Use it with `async with`, or close it. A sandbox that `create` has made is removed at the end of
    `async with`, unless it was created with keep; any other one stays.
    """

    def __init__(
        self, gateway: Gateway, name: str, *, session: str = MAIN, owned: bool = False,
        close_gateway: bool = False,
    ) -> None:  # fmt: skip
        self._gateway, self._name = gateway, check_name(name)
        self._owned, self._close_gateway = owned, close_gateway
        self._link = Link(gateway._link.address, name)
        self._main = session
        self._sessions: dict[str, Session] = {}
        self._files = Files(self._link, self._check)

    @classmethod
    async def create(
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
        """Connects to a daemon and creates a sandbox; see Gateway.connect and Gateway.create."""
        connected = await Gateway.connect(gateway, identity=identity, state=state)
        try:
            made = await connected.create(name, if_missing=if_missing, keep=keep, **options)
        except BaseException:
            await connected.close()
            raise
        made._close_gateway = True
        return made

    @classmethod
    async def connect(
        cls,
        name: str,
        *,
        gateway: str = "",
        identity: str = "",
        state: str | os.PathLike[str] = "",
    ) -> Sandbox:
        """Connects to a sandbox that exists.

        name: its name, or ssh://NAME@HOST:PORT. NAME~SESSION selects another session than "main".
        See Gateway.connect for the rest. Raises NotFound if there is no such sandbox.
        """
        if "@" in check_text("the name of a sandbox", name) or "//" in name:
            user, host, port = parse_uri(name)
            if not user:
                raise errors.Usage(f"{name!r} names no sandbox", hint="write ssh://NAME@HOST:PORT")
            if gateway:
                raise errors.Usage(f"{name!r} names a daemon, and gateway= another one")
            address, name = remote(host, port, identity, state), user
        else:
            address = await find(gateway, identity, state)
        name, _, session = name.partition("~")
        made = cls(Gateway(Link(address, CONTROL_USER)), name, session=session or MAIN,
                   close_gateway=True)  # fmt: skip
        try:
            await made.describe()
        except BaseException:
            await made.close()
            raise
        return made

    def __repr__(self) -> str:
        return f"<Sandbox {self._name} of {self._link.address}>"

    @property
    def name(self) -> str:
        """The name of the sandbox."""
        return self._name

    @property
    def files(self) -> Files:
        """The files of the sandbox."""
        return self._files

    def session(self, name: str = "") -> Session:
        """Returns a session by name; empty is "main". Its first call starts it if needed."""
        name = name or self._main
        if name not in self._sessions:
            self._sessions[name] = Session(self._link, self._name, name)
        return self._sessions[name]

    async def run(
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
        """Runs shell code in the session; see Session.run."""
        return await self.session().run(
            command, timeout=timeout, kill=kill, hold=hold, adopt=adopt, max_output=max_output,
            screen=screen,
        )  # fmt: skip

    async def type(
        self, text: str, *, enter: bool = True, timeout: float | None = DEFAULT_TIMEOUT
    ) -> Result:
        """Types text, and Enter unless enter is False; see Session.type."""
        return await self.session().type(text, enter=enter, timeout=timeout)

    async def answer(self, text: str, *, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Types text and Enter to a program that asks; see Session.answer."""
        return await self.session().answer(text, timeout=timeout)

    async def keys(self, *keys: str, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Presses keys; see Session.keys."""
        return await self.session().keys(*keys, timeout=timeout)

    async def wait(self, *phases: Phase, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Waits until the session is in one of the phases; see Session.wait."""
        return await self.session().wait(*phases, timeout=timeout)

    async def interrupt(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> Result:
        """Stops the running program; see Session.interrupt."""
        return await self.session().interrupt(timeout=timeout)

    async def screen(self) -> Screen:
        """Returns what the terminal shows."""
        return await self.session().screen()

    async def exec(
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
        """Runs a command without a session.

        command: a list is a program and its arguments, a string is shell text.
        input: its standard input. env: further variables.
        cwd: its directory; None is that of sessions; if it is missing, the exit code says so.
        user: NAME or UID[:GID]; None is the user of sessions.
        timeout: seconds; None waits without an end.
        max_output: of stdout and of stderr, in bytes; the rest is dropped, and `truncated` set.

        env, cwd and user need a shell in the image.

        A command that fails is no error. Raises Timeout and Lost; NotFound and Unavailable if the
        sandbox does not exist or does not start; and with user Error if the daemon cannot or may
        not run it as that.
        """
        line, timeout = setup(env, cwd) + shell_text(command), check_timeout(timeout)
        data = to_bytes("exec: input", input)
        if not isinstance(max_output, int) or max_output < 0:
            raise errors.Usage(f"exec: max_output {max_output!r}: pass a number of bytes")
        if len(line.encode()) > MAX_LINE:
            began = asyncio.get_running_loop().time()
            line = await self._script(line, user, timeout)
            if timeout is not None:
                timeout = max(timeout - asyncio.get_running_loop().time() + began, 0.001)
        options = Options(input=data, timeout=timeout, max_output=max_output)
        if user is not None:
            try:
                return await as_user(self._gateway._link, self._name, user, line, **options)
            except errors.Error as e:
                if e.code in ("failed", "usage"):
                    await self._check(e.message)
                raise
        done = await execute(self._link, line, **options)
        if said := daemon_said(done):  # or a command that prints the same, which proves nothing
            await self._check(said)
        return done

    async def _check(self, said: str) -> None:
        """Raises NotFound, or Unavailable with what was said, if the sandbox does not run."""
        state = (await self.describe()).state
        if state != "running":
            raise errors.Unavailable(said, hint=f"the sandbox is {state}")

    async def _script(self, line: str, user: str | None, timeout: float | None) -> str:
        """Writes a command that is too long for a request to a file, and returns one that runs it
        and removes it first."""
        if user is not None:
            raise errors.Usage(
                f"the command is longer than {MAX_LINE} bytes",
                hint="write it to a file that the user may read, and run that",
            )
        path = f"/tmp/.sandboxd-{secrets.token_hex(8)}"

        async def write() -> None:
            await self._files.write(path, b"", mode=0o600, parents=False)
            await self._files.write(path, line, parents=False)

        try:
            await asyncio.wait_for(write(), timeout)
        except asyncio.TimeoutError as e:
            raise errors.Timeout(
                f"the sandbox did not take the command within {timeout:g} s", hint="it did not run"
            ) from e
        return f"exec 9<{path}; rm -f {path}; . /dev/fd/9"

    @asynccontextmanager
    async def port(self, number: int) -> AsyncIterator[str]:
        """Forwards a port of the sandbox to a free one of this machine, for an `async with`.

        Gives the URL, http://127.0.0.1:PORT. Other protocols than HTTP pass as well.
        """
        if not isinstance(number, int) or not 1 <= number <= 65535:
            raise errors.Usage(f"port {number!r}: must be 1 to 65535")
        slot = await self._link.acquire()
        try:
            listener = await slot.ssh.forward_local_port("127.0.0.1", 0, "127.0.0.1", number)
            try:
                yield f"http://127.0.0.1:{listener.get_port()}"
            finally:
                listener.close()
        finally:
            slot.release()

    async def describe(self) -> SandboxInfo:
        """Returns what the daemon knows of the sandbox. Raises NotFound if it does not exist."""
        found = await control(self._gateway._link, "describe", self._name, timeout=ANSWER_SECONDS)
        if not found:
            raise errors.Error(f"describe: the daemon says nothing of {self._name}")
        return SandboxInfo.of(found[0])

    async def allow(self, *hosts: str, remove: bool = False) -> None:
        """Allows the sandbox to connect to more hosts, now and after a restart: NAME, *.NAME,
        addresses, ranges, and "*" for all that "filtered" reaches, each with or without :PORT.
        remove: takes them back, and ends the connections that nothing else allows. The network
        must be "filtered" or "allowlist"."""
        for host in hosts:
            if not isinstance(host, str) or host.startswith("-"):
                raise errors.Usage(f"allow: {host!r} is no host")
        flags = ["--remove"] if remove else []
        await self._change("allow", *flags, self._name, *hosts)

    async def stop(self) -> None:
        """Stops the sandbox. Its files stay, its programs end."""
        await self._change("stop", self._name)

    async def start(self) -> None:
        """Starts the sandbox if it is stopped. `run` and `exec` do so by themselves."""
        await self._change("start", self._name)

    async def remove(self) -> None:
        """Removes the sandbox with its files and recordings, even if it runs."""
        await self._change("rm", "--force", self._name)
        self._owned = False

    async def _change(self, *words: str) -> None:
        await control(self._gateway._link, *words, timeout=_CHANGE_SECONDS)

    async def close(self) -> None:
        """Disconnects. The sandbox and its sessions continue."""
        for session in self._sessions.values():
            await session.detach()
        await self._link.close()
        if self._close_gateway:
            await self._gateway.close()

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(
        self, kind: _Kind, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await finish(self._leave())

    async def _leave(self) -> None:
        try:
            if self._owned:
                await self.remove()
        except errors.NotFound:
            pass  # somebody has removed it
        finally:
            await self.close()
