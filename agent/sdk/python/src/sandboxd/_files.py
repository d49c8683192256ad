"""Files of a sandbox, by SFTP."""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat as modes
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from . import errors
from ._daemon import Link, Slot, check_text, check_timeout, refused, to_bytes

if TYPE_CHECKING:
    import asyncssh
    from asyncssh.channel import SSHChannel

MAX_READ = 256 << 20
MAX_GET = 16 << 30
_BLOCK, _BLOCKS = 32 << 10, 64  # bytes of a request, which every server takes, and requests at once
_MAX_DEPTH = 100
_MAX_ENTRIES = 100_000
_ENTRY = 1 << 10  # bytes that a file counts for besides its own
_IDLE = 4  # channels that are kept
_T = TypeVar("_T")


@dataclass(frozen=True)
class FileInfo:
    """A file of a sandbox. size: bytes. mode: permissions, such as 0o644. modified: Unix time."""

    name: str
    size: int
    mode: int
    modified: float
    is_dir: bool
    is_symlink: bool


class _Channel(NamedTuple):
    """A channel that one call at a time uses."""

    client: asyncssh.SFTPClient
    slot: Slot


def _channel(client: asyncssh.SFTPClient) -> SSHChannel[bytes] | None:
    """Returns the channel of a client, None after its end. asyncssh itself can only ask the server
    to end, which does not read that while it waits for a file, such as a pipe."""
    writer: asyncssh.SSHWriter[bytes] | None = client._handler._writer
    return writer.channel if writer else None


class Files:
    """Files of a sandbox. Paths are absolute, or relative to the home directory of its user, which
    ~/ means as well.

    timeout: of a call, in seconds; None waits without an end, also for a pipe that nobody writes
    to. All calls raise NotFound and Denied, Timeout, Lost if the connection breaks, and Error with
    what SFTP says, such as "Failure" for a full disk.
    """

    def __init__(self, link: Link, explain: Callable[[str], Awaitable[None]]) -> None:
        # explain raises NotFound or Unavailable if the sandbox does not run.
        self._link, self._explain = link, explain
        self._idle: list[_Channel] = []

    async def _open(self) -> _Channel:
        self._link.check()
        while self._idle:
            channel = self._idle.pop()
            if _channel(channel.client) and not channel.slot.ssh.is_closed():
                return channel
            channel.slot.release()
        slot = await self._link.acquire()
        start = slot.ssh.start_sftp_client(path_errors="surrogateescape")
        return _Channel(await slot.open(start, _channel), slot)

    def _close(self, channel: _Channel, answered: bool) -> None:
        """Keeps the channel for the next call, if the server has answered this one."""
        if answered and len(self._idle) < _IDLE:
            self._idle.append(channel)
            return
        channel.slot.close(_channel(channel.client))

    async def _call(
        self,
        what: str,
        path: str,
        act: Callable[[asyncssh.SFTPClient], Awaitable[_T]],
        timeout: float | None,
    ) -> _T:
        """Acts with an SFTP client, which no other call uses meanwhile: a server may answer one
        request after the other. The errors of SFTP get their types.

        A call that was cancelled or is late does not wait for the server, which may never answer.
        Its channel is closed, and what it still does ends with that.
        """
        import asyncssh

        timeout = check_timeout(timeout)
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout
        late = errors.Timeout(f"{what} {path}: not done after {timeout} s")
        try:
            try:
                channel = await asyncio.wait_for(self._open(), timeout)
            except asyncio.TimeoutError:
                raise late from None
            except (asyncssh.SFTPError, asyncssh.ChannelOpenError) as e:
                await self._explain(f"{what} {path}: the sandbox has no SFTP server")
                if isinstance(e, asyncssh.ChannelOpenError):
                    raise refused(e) from e
                why = f"{what} {path}: SFTP did not start: {e.reason}"
                raise errors.Unavailable(why, hint="nothing was done") from e
            acting = asyncio.ensure_future(act(channel.client))
            try:
                left = None if end is None else max(end - asyncio.get_running_loop().time(), 0)
                await asyncio.wait({acting}, timeout=left)
                if not acting.done():
                    raise late
                return acting.result()
            finally:
                answered = acting.done()
                if not answered:
                    acting.cancel()
                    acting.add_done_callback(lambda t: t.cancelled() or t.exception())
                self._close(channel, answered)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as e:
            raise errors.NotFound(f"{path}: no such file in the sandbox") from e
        except asyncssh.SFTPPermissionDenied as e:
            raise errors.Denied(f"{path}: permission denied in the sandbox") from e
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as e:
            raise self._link.lost(f"{what} {path}: {e}", channel.slot) from e
        except asyncssh.SFTPError as e:
            reason = e.reason.strip()
            raise errors.Error(reason if path in reason else f"{what} {path}: {reason}") from e
        except (asyncssh.Error, ConnectionError) as e:
            raise self._link.lost(f"{what} {path}: {e}") from e

    async def read(
        self, path: str, *, max_bytes: int = MAX_READ, timeout: float | None = None
    ) -> bytes:
        """Returns the content of a file. Raises Limit if it is longer than max_bytes; `get` copies
        longer ones."""
        path = _home("read", path)

        async def act(sftp: asyncssh.SFTPClient) -> bytes:
            content = bytearray()
            await _copy_from(sftp, path, content.extend, max_bytes)
            return bytes(content)

        return await self._call("read", path, act, timeout)

    async def read_text(
        self, path: str, *, max_bytes: int = MAX_READ, timeout: float | None = None
    ) -> str:
        """Returns the content of a file that is UTF-8. Raises UnicodeDecodeError otherwise."""
        return (await self.read(path, max_bytes=max_bytes, timeout=timeout)).decode()

    async def write(
        self, path: str, data: bytes | str, *, mode: int | None = None, parents: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Writes a file, which is created or replaced; a str is written as UTF-8.

        mode: its permissions, such as 0o755; None keeps them. parents: creates its directories.
        """
        path = _home("write", path)
        content = to_bytes("write: data", data)
        if mode is not None and not isinstance(mode, int):
            raise errors.Usage(f"write: mode {mode!r}: pass a number such as 0o644")

        async def act(sftp: asyncssh.SFTPClient) -> None:
            if parents:
                await _make_parents(sftp, path)
            at = 0

            def take(size: int) -> bytes:
                nonlocal at
                at += size
                return content[at - size : at]

            await _copy_to(sftp, take, path)
            if mode is not None:
                await sftp.chmod(path, mode)

        await self._call("write", path, act, timeout)

    async def put(
        self, local: str | os.PathLike[str], remote: str, *, timeout: float | None = None
    ) -> None:
        """Copies a file, or a directory with all below it, from this machine to the path remote.

        The content of a directory is merged into remote if that exists. Permissions and symbolic
        links are kept, devices and sockets left out. Directories above remote are created.
        """
        source, remote = Path(local), _home("put", remote)
        if not modes.S_ISREG(kind := source.stat().st_mode) and not modes.S_ISDIR(kind):
            raise errors.Usage(f"{source} is neither a file nor a directory")

        async def act(sftp: asyncssh.SFTPClient) -> None:
            await _make_parents(sftp, remote)
            if source.is_file() and await sftp.isdir(remote):
                raise errors.Error(
                    f"{remote} is a directory", hint=f"write {posixpath.join(remote, source.name)}"
                )
            if source.is_dir():
                await _put_dir(sftp, source, remote)
            else:
                await _put_file(sftp, source, remote)

        await self._call("put", remote, act, timeout)

    async def get(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_GET,
        timeout: float | None = None,
    ) -> None:
        """Copies a file, or a directory with all below it, to the path local of this machine.

        Nothing outside local is written, whatever the sandbox says that it has. Symbolic links are
        left out, as are devices and sockets. max_bytes: of all files together; raises Limit if
        there is more, and leaves what was copied.
        """
        remote = _home("get", remote)

        async def act(sftp: asyncssh.SFTPClient) -> None:
            target, getter = Path(local), _Getter(sftp, max_bytes)
            if modes.S_ISDIR(mode := (await sftp.stat(remote)).permissions or 0):
                await getter.directory(remote, target, 0)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                await getter.file(remote, target, mode)

        await self._call("get", remote, act, timeout)

    async def list_dir(self, path: str = ".", *, timeout: float | None = None) -> list[FileInfo]:
        """Returns what a directory has, by name, without "." and "..". Raises Limit if it has more
        than 100,000 entries."""
        path = _home("list_dir", path)

        async def act(sftp: asyncssh.SFTPClient) -> list[FileInfo]:
            infos = []
            async with _scan(sftp, path) as entries:
                async for entry in entries:
                    if name := _name(path, entry):
                        infos.append(_info(name, await _attrs(sftp, path, name, entry)))
                    if len(infos) > _MAX_ENTRIES:
                        raise errors.Limit(f"{path} has more than {_MAX_ENTRIES} entries")
            return sorted(infos, key=lambda i: i.name)

        return await self._call("list_dir", path, act, timeout)

    async def stat(self, path: str, *, timeout: float | None = None) -> FileInfo:
        """Returns what a path is, without following a symbolic link."""
        path = _home("stat", path)

        async def act(sftp: asyncssh.SFTPClient) -> FileInfo:
            return _info(posixpath.basename(path), await sftp.lstat(path))

        return await self._call("stat", path, act, timeout)

    async def exists(self, path: str, *, timeout: float | None = None) -> bool:
        """Reports whether there is something at path."""
        try:
            await self.stat(path, timeout=timeout)
        except errors.NotFound:
            return False
        return True

    async def mkdir(self, path: str, *, timeout: float | None = None) -> None:
        """Creates a directory and those above it. It is no error if it exists."""
        path = _home("mkdir", path)
        await self._call("mkdir", path, lambda sftp: sftp.makedirs(path, exist_ok=True), timeout)

    async def remove(
        self, path: str, *, recursive: bool = False, timeout: float | None = None
    ) -> None:
        """Removes a file, an empty directory, or with recursive a directory with all below it."""
        path = _home("remove", path)

        async def act(sftp: asyncssh.SFTPClient) -> None:
            if not modes.S_ISDIR((await sftp.lstat(path)).permissions or 0):
                await sftp.remove(path)
            elif recursive:
                await sftp.rmtree(path)
            else:
                await sftp.rmdir(path)

        await self._call("remove", path, act, timeout)


def _home(what: str, path: str) -> str:
    """Returns the path for SFTP, whose relative paths are of the home directory."""
    path = check_text(f"{what}: the path", path, escaped=True)
    return path[2:] or "." if path == "~" or path.startswith("~/") else path


def _info(name: str, a: asyncssh.SFTPAttrs) -> FileInfo:
    kind = a.permissions or 0
    return FileInfo(
        name, a.size or 0, modes.S_IMODE(kind), float(a.mtime or 0),
        modes.S_ISDIR(kind), modes.S_ISLNK(kind),
    )  # fmt: skip


def _name(path: str, entry: asyncssh.SFTPName) -> str:
    """Returns the name of an entry of a directory, or "" for the directory and the one above."""
    name = os.fsdecode(entry.filename)
    if not name or "/" in name or os.sep in name or "\0" in name:
        raise errors.Error(f"{path}: the sandbox names a file {name!r}")
    return "" if name in (".", "..") else name


async def _attrs(
    sftp: asyncssh.SFTPClient, path: str, name: str, entry: asyncssh.SFTPName
) -> asyncssh.SFTPAttrs:
    """Returns the attributes of an entry, which a server may leave out."""
    if entry.attrs.permissions is not None:
        return entry.attrs
    return await sftp.lstat(posixpath.join(path, name))


def _scan(
    sftp: asyncssh.SFTPClient, path: str
) -> aclosing[AsyncGenerator[asyncssh.SFTPName, None]]:
    """Returns what gives the entries of a directory, and closes it."""
    return aclosing(cast("AsyncGenerator[asyncssh.SFTPName, None]", sftp.scandir(path)))


async def _copy_from(
    sftp: asyncssh.SFTPClient, path: str, write: Callable[[bytes], object], most: int
) -> int:
    """Passes the content of a file to write until its end, which its size does not tell of files
    such as those of /proc. Returns its length. Raises Limit if it has more than most bytes."""
    at, blocks = 0, 1
    async with sftp.open(path, "rb", block_size=0) as f:
        while True:
            # Of requests that asyncssh makes at once, those that nobody waits for any more fail
            # with a message on stderr.
            reads = (f.read(_BLOCK, at + i * _BLOCK) for i in range(blocks))
            for data in cast("list[bytes]", await asyncio.gather(*reads)):
                if not data:
                    return at
                if at + len(data) > most:
                    raise errors.Limit(
                        f"{path} is longer than {most} bytes", hint="max_bytes= allows more"
                    )
                write(data)
                at += len(data)
                if len(data) < _BLOCK:
                    break  # what follows it was asked for at a wrong offset
            blocks = min(2 * blocks, _BLOCKS)


async def _copy_to(sftp: asyncssh.SFTPClient, read: Callable[[int], bytes], path: str) -> None:
    """Writes what read returns, until it returns nothing, to a file that is created or replaced."""
    at = 0
    async with sftp.open(path, "wb", block_size=0) as f:
        while data := read(_BLOCK * _BLOCKS):
            blocks = range(0, len(data), _BLOCK)
            await asyncio.gather(*(f.write(data[i : i + _BLOCK], at + i) for i in blocks))
            at += len(data)


async def _put_file(sftp: asyncssh.SFTPClient, local: Path, remote: str) -> None:
    with local.open("rb") as source:
        await _copy_to(sftp, source.read, remote)
        of = os.fstat(source.fileno())
    await sftp.chmod(remote, modes.S_IMODE(of.st_mode))
    await sftp.utime(remote, (of.st_atime, of.st_mtime))


async def _put_dir(sftp: asyncssh.SFTPClient, local: Path, remote: str) -> None:
    await sftp.makedirs(remote, exist_ok=True)
    for source in sorted(local.iterdir()):
        to = posixpath.join(remote, source.name)
        if source.is_symlink():
            if await sftp.islink(to):
                await sftp.remove(to)
            # Servers take the target first, as OpenSSH's does, and unlike the specification.
            # asyncssh knows that only of servers that are named so.
            await sftp.symlink(to, os.readlink(source))
        elif source.is_dir():
            await _put_dir(sftp, source, to)
            await sftp.chmod(to, modes.S_IMODE(source.stat().st_mode))
        elif source.is_file():
            await _put_file(sftp, source, to)


class _Getter:
    """Copies files from a sandbox, which may say anything, until they are too much."""

    def __init__(self, sftp: asyncssh.SFTPClient, most: int) -> None:
        self._sftp, self._left = sftp, most

    async def file(self, remote: str, local: Path, mode: int) -> None:
        if not modes.S_ISREG(mode):
            raise errors.Error(f"{remote} is no regular file")
        with local.open("wb") as to:
            self._left -= await _copy_from(self._sftp, remote, to.write, self._left)
        local.chmod(modes.S_IMODE(mode) & 0o777)

    async def directory(self, remote: str, local: Path, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise errors.Error(f"{remote}: more than {_MAX_DEPTH} directories deep")
        local.mkdir(parents=True, exist_ok=True)
        async with _scan(self._sftp, remote) as entries:
            await self._entries(entries, remote, local, depth)

    async def _entries(
        self, entries: AsyncIterator[asyncssh.SFTPName], remote: str, local: Path, depth: int
    ) -> None:
        async for entry in entries:
            if not (name := _name(remote, entry)):
                continue
            self._left -= _ENTRY
            if self._left < 0:
                raise errors.Limit(
                    f"{remote}: more files than max_bytes", hint="max_bytes= allows more"
                )
            attrs = await _attrs(self._sftp, remote, name, entry)
            mode, to = attrs.permissions or 0, local / name
            if modes.S_ISDIR(mode):
                if to.is_symlink():
                    raise errors.Error(f"{to} is a symbolic link", hint="remove it first")
                await self.directory(posixpath.join(remote, name), to, depth + 1)
            elif modes.S_ISREG(mode):
                if to.is_symlink():
                    to.unlink()
                await self.file(posixpath.join(remote, name), to, mode)


async def _make_parents(sftp: asyncssh.SFTPClient, path: str) -> None:
    above = posixpath.dirname(path)
    if above not in ("", "/"):
        await sftp.makedirs(above, exist_ok=True)
