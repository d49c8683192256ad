"""Finds the daemon, and logs in to it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from . import errors

if TYPE_CHECKING:
    import asyncssh
    from asyncssh.channel import SSHChannel

CONTROL_USER = "sandboxd"
ANSWER_SECONDS = 30  # how long an answer of the daemon may take that is due at once
_DEFAULT_PORT = 2222
_CONNECT_SECONDS = 30
_KEEPALIVE_SECONDS, _KEEPALIVES = 15, 2  # a silent connection is lost after 30 to 45 s
_CHANNELS = 28  # of a connection; the daemon allows 32 sessions
_NO_DAEMON = (
    "install sandboxd on this machine, or name a daemon: gateway='ssh://HOST:2222' or the "
    "variable SANDBOXD_GATEWAY"
)
_UPDATE = "use a package and a daemon of the same version"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label
_RESOURCE_SHORTAGE = 4  # RFC 4254, section 5.1
_T = TypeVar("_T")


def check_name(name: str) -> str:
    """Returns the name of a sandbox. Raises Usage if it cannot be one, as a flag cannot."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise errors.Usage(
            f"{name!r} cannot be the name of a sandbox",
            hint="use 1 to 63 of a-z, 0-9 and -, without - at the ends",
        )
    return name


def check_text(what: str, value: object, hint: str = "", *, escaped: bool = False) -> str:
    """Returns a text. Raises Usage if it is none, or has characters that nothing takes: NUL, and
    surrogates, unless with escaped those that os.fsdecode makes of bytes that are no UTF-8."""
    if not isinstance(value, str):
        raise errors.Usage(f"{what} is {type(value).__name__}, and not str", hint=hint)
    if "\0" in value:
        raise errors.Usage(f"{what} has a NUL character")
    try:
        value.encode(errors="surrogateescape" if escaped else "strict")
    except UnicodeEncodeError as e:
        raise errors.Usage(f"{what} has the character {value[e.start]!r}, a surrogate") from e
    return value


def to_bytes(what: str, value: object) -> bytes:
    """Returns bytes, or a text as UTF-8. Raises Usage if the value is neither, or no such text."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as e:
            character = value[e.start]
            raise errors.Usage(f"{what} has {character!r}, a surrogate", hint="pass bytes") from e
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise errors.Usage(f"{what} is {type(value).__name__}, and neither str nor bytes")


def check_timeout(timeout: float | None) -> float | None:
    """Returns seconds, or None for no end, which is also what infinity means."""
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout > 0):
        raise errors.Usage(f"timeout {timeout!r}: must be positive seconds, or None for no end")
    return None if timeout is None or math.isinf(timeout) else timeout


def refused(e: asyncssh.ChannelOpenError) -> errors.Error:
    """Returns the error for a channel that the daemon did not open."""
    if e.code == _RESOURCE_SHORTAGE:
        return errors.Limit(e.reason, hint="nothing ran; close what is not used")
    return errors.Unavailable(e.reason, hint="nothing ran; try again")


@dataclass(frozen=True)
class Address:
    """Where a daemon is, and what to log in with.

    identity: path of a private key; empty means those of keys, or without any, those of ssh.
    known_hosts: files that list the daemon's host key; empty means those of ssh.
    local: the daemon of this user on this machine: the ssh configuration does not apply to it.
    """

    host: str
    port: int | None
    identity: str = ""
    known_hosts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    local: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


def default_state() -> Path:
    """Returns the state directory of this user's daemon: $SANDBOXD_STATE, or the daemon's
    default."""
    if state := os.environ.get("SANDBOXD_STATE"):
        return Path(state)
    if os.getuid() == 0:
        return Path("/var/lib/sandboxd-ssh")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "sandboxd-ssh"


def parse_uri(uri: str) -> tuple[str, str, int | None]:
    """Returns user, host and port of ssh://[USER@]HOST[:PORT], with or without ssh://."""
    wrong = errors.Usage(f"{uri!r} is no ssh URI", hint="write ssh://NAME@HOST:PORT")
    try:
        parts = urlsplit(uri if "//" in uri else f"ssh://{uri}")
        port = parts.port
    except ValueError as e:
        raise wrong from e
    more = parts.path not in ("", "/") or parts.query or parts.fragment or parts.password
    if parts.scheme != "ssh" or not parts.hostname or more:
        raise wrong
    return parts.username or "", parts.hostname, port


def remote(host: str, port: int | None, identity: str, state: str | os.PathLike[str]) -> Address:
    """Returns the address of a daemon that is named by a URI."""
    home = Path(state) if state else default_state()
    known = [p for p in (home / "known_hosts", Path.home() / ".ssh" / "known_hosts") if _has(p)]
    keys: list[Path] = []
    if not identity and _has(home / "identity"):
        names = ("id_ed25519", "id_ecdsa", "id_rsa")
        keys = [home / "identity", *(p for n in names if _has(p := Path.home() / ".ssh" / n))]
    return Address(host, port, identity, tuple(map(str, known)), keys=tuple(str(k) for k in keys))


def _has(path: Path) -> bool:
    return os.access(path, os.R_OK)


async def find(gateway: str, identity: str, state: str | os.PathLike[str]) -> Address:
    """Returns the address of the daemon that gateway or $SANDBOXD_GATEWAY names. If neither does,
    it is that of this machine, which is started if none runs."""
    if gateway := gateway or os.environ.get("SANDBOXD_GATEWAY", ""):
        user, host, port = parse_uri(gateway)
        if user not in ("", CONTROL_USER):
            raise errors.Usage(
                f"gateway {gateway!r} has the user name {user!r}",
                hint=f"write ssh://{host}:{port or _DEFAULT_PORT}",
            )
        return remote(host, port, identity, state)
    up = await _up(state)
    try:
        host, _, port_text = up["ssh"].rpartition(":")
        port, key, known = int(port_text), str(up["identity"]), str(up["known_hosts"])
    except (KeyError, AttributeError, ValueError) as e:
        raise errors.Error("sandboxd up does not say where the daemon is", hint=_UPDATE) from e
    host = host.strip("[]")
    if host in ("", "0.0.0.0", "::"):  # it listens on all addresses
        host = "127.0.0.1"
    return Address(host, port, identity or key, (known,), local=True)


async def _up(state: str | os.PathLike[str]) -> dict[str, Any]:
    """Runs `sandboxd up`, which starts the daemon or finds the one that runs."""
    program = shutil.which("sandboxd")
    if not program:
        raise errors.Unavailable("there is no program sandboxd on the PATH", hint=_NO_DAEMON)
    env = dict(os.environ)
    if state:
        env["SANDBOXD_STATE"] = os.fspath(state)
    try:
        up = await asyncio.create_subprocess_exec(
            program, "up", "--json", env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await up.communicate()
    except OSError as e:
        raise errors.Unavailable(f"{program}: {e}", hint=_NO_DAEMON) from e
    for value in json_lines(out):
        errors.check_wire(value.get("error"))
        if "ssh" in value:
            return value
    said = err.decode("utf-8", "replace").strip().splitlines()
    raise errors.Unavailable(
        f"sandboxd up failed with code {up.returncode}: {said[-1] if said else 'it said nothing'}",
        hint="run sandboxd doctor",
    )


def json_lines(out: bytes) -> list[dict[str, Any]]:
    """Returns the JSON objects of an output that has one in a line, and leaves out the rest."""
    objects = []
    for line in out.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


async def login(address: Address, user: str) -> asyncssh.SSHClientConnection:
    """Logs in to the daemon as user, which names a sandbox or is CONTROL_USER."""
    # It takes 0.3 s to import, which a program that only imports this package need not wait for.
    import asyncssh

    # At level INFO, asyncssh logs each command with its variables, which may be secrets.
    logger = logging.getLogger("asyncssh")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    options: dict[str, Any] = {}
    if address.local:
        options.update(config=None, agent_path=None)
    if address.identity:
        options.update(client_keys=[address.identity], agent_path=None)
    elif address.keys:
        options.update(client_keys=list(address.keys), ignore_encrypted=True)
    port = address.port or (() if not address.local else _DEFAULT_PORT)
    try:
        if address.known_hosts:
            options.update(known_hosts=asyncssh.read_known_hosts(list(address.known_hosts)))
        return await asyncssh.connect(
            address.host, port, username=user, connect_timeout=_CONNECT_SECONDS,
            keepalive_interval=_KEEPALIVE_SECONDS, keepalive_count_max=_KEEPALIVES, **options,
        )  # fmt: skip
    except asyncssh.HostKeyNotVerifiable as e:
        files = ", ".join(address.known_hosts) or "~/.ssh/known_hosts"
        raise errors.Denied(
            f"{address}: the host key is not trusted: {e.reason}",
            hint=f"add the key of the daemon's known_hosts file to {files}",
        ) from e
    except asyncssh.PermissionDenied as e:
        key = address.identity or "one of your keys"
        raise errors.Denied(
            f"{address} does not accept {key}",
            hint="the daemon's admin lets a key in: see sandboxd help token, or pass identity=",
        ) from e
    except asyncssh.KeyImportError as e:
        raise errors.Usage(f"identity {address.identity}: {e}") from e
    except FileNotFoundError as e:
        raise errors.Usage(f"{e.filename or e}: there is no such file") from e
    except IsADirectoryError as e:
        raise errors.Usage(f"identity {address.identity} is a directory") from e
    except ValueError as e:  # of a file of known hosts or of ssh's configuration, or of a name
        raise errors.Usage(f"cannot connect to {address}: {e}") from e
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as e:
        raise errors.Unavailable(
            f"cannot connect to {address}: {e or 'it does not answer'}",
            hint="is the daemon running? see sandboxd daemon status",
        ) from e


class Slot:
    """A place for a channel on a connection, of which the daemon allows only so many. It is free
    again when the channel is closed on both sides."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.used += 1
        self._closing: asyncio.Future[None] | None = None  # asyncio itself keeps no task alive

    @property
    def ssh(self) -> asyncssh.SSHClientConnection:
        """The connection."""
        return self.connection.ssh

    async def open(
        self, opening: Awaitable[_T], channel: Callable[[_T], SSHChannel[bytes] | None]
    ) -> _T:
        """Returns what is opened, which has the channel. If that fails, the place is free again. If
        the caller is cancelled, what was being opened is closed, which asyncssh would not do."""

        def late(task: asyncio.Future[_T]) -> None:
            if task.cancelled() or task.exception():
                self.release()
            else:
                self.close(channel(task.result()))

        task = asyncio.ensure_future(opening)
        try:
            return await asyncio.shield(task)
        except BaseException as e:
            task.add_done_callback(late)  # also if it is done: the caller was cancelled then
            if isinstance(e, (AssertionError, AttributeError)):  # asyncssh's, if it has ended
                raise ConnectionError("the connection ended") from e
            raise

    def close(self, channel: SSHChannel[bytes] | None) -> None:
        """Closes a channel at once, without what was not sent yet."""
        if channel is None:
            self.release()
            return
        channel.abort()
        self._closing = asyncio.ensure_future(channel.wait_closed())
        self._closing.add_done_callback(lambda _: self.release())

    def release(self) -> None:
        """Gives the place back."""
        self.connection.used -= 1


class Connection:
    """A connection, and how many of its places for channels are used."""

    def __init__(self, ssh: asyncssh.SSHClientConnection) -> None:
        self.ssh, self.used = ssh, 0

    @property
    def usable(self) -> bool:
        """Whether it works as far as is known, and has room."""
        return self.used < _CHANNELS and not self.ssh.is_closed()


class Link:
    """Connections to the daemon as one user name: one, and more if there are many calls at once.
    They are opened again after they broke. A link is of one event loop and one process."""

    def __init__(self, address: Address, user: str) -> None:
        self.address, self.user = address, user
        self._connections: list[Connection] = []
        self._opening = asyncio.Lock()
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._closed = False

    async def acquire(self) -> Slot:
        """Returns a place for a channel, which the caller releases."""
        self.check()
        found = self._usable()
        if found is None:
            async with self._opening:
                found = self._usable()  # which another caller has opened meanwhile
                if found is None:
                    found = Connection(await login(self.address, self.user))
                    self._connections.append(found)
                    if self._closed:
                        found.ssh.close()
            self.check()
        return Slot(found)

    def _usable(self) -> Connection | None:
        self._connections = [c for c in self._connections if not c.ssh.is_closed()]
        return next((c for c in self._connections if c.usable), None)

    def check(self) -> None:
        """Raises Usage if this is not the process and event loop that the connection is of."""
        if os.getpid() != self._pid:
            raise errors.Usage(
                "this connection was opened before a fork", hint="connect again in this process"
            )
        if asyncio.get_running_loop() is not self._loop:
            state = "is closed" if self._loop.is_closed() else "is another one"
            raise errors.Usage(
                f"this connection was opened in an event loop that {state}",
                hint="connect again in this loop, or use the synchronous classes",
            )
        if self._closed:
            raise errors.Usage("it is closed", hint="connect again")

    async def close(self) -> None:
        """Closes the connections. It may be called again."""
        self._closed = True
        connections, self._connections = self._connections, []
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        for connection in connections:
            if asyncio.get_running_loop() is not self._loop:
                self._loop.call_soon_threadsafe(connection.ssh.close)
                continue
            connection.ssh.close()
            await connection.ssh.wait_closed()

    def lost(self, why: str, slot: Slot | None = None) -> errors.Lost:
        """Returns the error for a call that was under way when its connection or channel ended."""
        alive = slot is not None and not slot.ssh.is_closed()
        return errors.Lost(
            why,
            reason="guest_died" if alive else "gateway_unreachable",
            hint="it may have run; the next call connects again",
        )
