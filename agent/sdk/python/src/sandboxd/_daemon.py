"""Finds the daemon, and logs in to it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import errors

if TYPE_CHECKING:
    import asyncssh

CONTROL_USER = "sandboxd"
_DEFAULT_PORT = 2222
_CONNECT_SECONDS = 30
_KEEPALIVE_SECONDS, _KEEPALIVES = 15, 2  # a silent connection is lost after 30 to 45 s
_CHANNELS = 28  # of a connection; the daemon allows 32 sessions
_NO_DAEMON = (
    "install sandboxd on this machine, or name a daemon: gateway='ssh://HOST:2222' or the "
    "variable SANDBOXD_GATEWAY"
)


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
    parts = urlsplit(uri if "//" in uri else f"ssh://{uri}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    wrong = parts.path not in ("", "/") or parts.query or parts.fragment or parts.password
    if parts.scheme != "ssh" or not parts.hostname or port == -1 or wrong:
        raise errors.Usage(f"{uri!r} is no ssh URI", hint="write ssh://NAME@HOST:PORT")
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
    host, _, port_text = up["ssh"].rpartition(":")
    host = host.strip("[]")
    if host in ("", "0.0.0.0", "::"):  # it listens on all addresses
        host = "127.0.0.1"
    return Address(
        host, int(port_text), identity or up["identity"], (up["known_hosts"],), local=True
    )


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
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if "error" in value:
            raise errors.from_wire(value["error"])
        if "ssh" in value:
            return dict(value)
    said = err.decode("utf-8", "replace").strip().splitlines()
    raise errors.Unavailable(
        f"sandboxd up failed with code {up.returncode}: {said[-1] if said else 'it said nothing'}",
        hint="run sandboxd doctor",
    )


async def login(address: Address, user: str) -> asyncssh.SSHClientConnection:
    """Logs in to the daemon as user, which names a sandbox or is CONTROL_USER."""
    # It takes 0.3 s to import, which a program that only imports this package need not wait for.
    import asyncssh

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
    except (OSError, asyncssh.Error, asyncio.TimeoutError) as e:
        raise errors.Unavailable(
            f"cannot connect to {address}: {e or 'it does not answer'}",
            hint="is the daemon running? see sandboxd daemon status",
        ) from e


class Slot:
    """A place for a channel on a connection, of which the daemon allows only so many."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self.connection, self.used = connection, 0

    @property
    def usable(self) -> bool:
        """Whether the connection works as far as is known, and has room."""
        return self.used < _CHANNELS and not self.connection.is_closed()

    def release(self) -> None:
        """Gives the place back."""
        self.used -= 1


class Link:
    """Connections to the daemon as one user name: one, and more if there are many calls at once.
    They are opened again after they broke. A link is of one event loop and one process."""

    def __init__(self, address: Address, user: str) -> None:
        self.address, self.user = address, user
        self._slots: list[Slot] = []
        self._opening = asyncio.Lock()
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._closed = False

    async def acquire(self) -> Slot:
        """Returns a place for a channel, which the caller releases."""
        self.check()
        async with self._opening:
            self.check()
            self._slots = [s for s in self._slots if not s.connection.is_closed()]
            slot = next((s for s in self._slots if s.usable), None)
            if slot is None:
                slot = Slot(await login(self.address, self.user))
                if self._closed:  # meanwhile
                    slot.connection.close()
                    self.check()
                self._slots.append(slot)
            slot.used += 1
            return slot

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Gives a connection with a place for a channel."""
        slot = await self.acquire()
        try:
            yield slot.connection
        finally:
            slot.release()

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
        slots, self._slots = self._slots, []
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        for slot in slots:
            if asyncio.get_running_loop() is not self._loop:
                self._loop.call_soon_threadsafe(slot.connection.close)
                continue
            slot.connection.close()
            await slot.connection.wait_closed()

    async def command(self, *words: str, input: bytes | None = None) -> list[dict[str, Any]]:
        """Runs a command of the daemon with --json, and returns its objects, one of each line."""
        import asyncssh

        line = shlex.join([words[0], "--json", *words[1:]])
        try:
            async with self.channel() as connection:
                process = await connection.create_process(line, encoding=None)
                try:
                    out, err = await process.communicate(input)
                finally:
                    process.close()  # of a caller that was cancelled: it ends the command
        except asyncssh.ChannelOpenError as e:
            raise errors.Unavailable(f"{words[0]}: {e.reason}", hint="nothing ran") from e
        except (asyncssh.Error, OSError) as e:
            raise self.lost(f"{words[0]}: {e}") from e
        objects = []
        for text in out.splitlines():
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if isinstance(value, dict):
                if isinstance(value.get("error"), dict) and "ended" not in value:
                    raise errors.from_wire(value["error"])
                objects.append(value)
        if process.exit_status is None:
            raise self.lost(f"{words[0]}: the connection ended")
        if process.exit_status != 0 and not objects:
            said = err.decode("utf-8", "replace").strip()
            raise errors.Error(f"{words[0]}: {said or f'code {process.exit_status}'}")
        return objects

    def lost(self, why: str, connection: asyncssh.SSHClientConnection | None = None) -> errors.Lost:
        """Returns the error for a call that was under way when its connection or channel ended."""
        alive = connection is not None and not connection.is_closed()
        return errors.Lost(
            why,
            reason="guest_died" if alive else "gateway_unreachable",
            hint="it may have run; the next call connects again",
        )
