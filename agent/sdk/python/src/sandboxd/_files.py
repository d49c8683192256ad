"""Files of a sandbox, by SFTP."""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat as modes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import errors
from ._daemon import Link, Slot

if TYPE_CHECKING:
    import asyncssh

MAX_READ = 256 << 20
_CHUNK = 4 << 20
_MAX_DEPTH = 100


@dataclass(frozen=True)
class FileInfo:
    """A file of a sandbox. size: bytes. mode: permissions, such as 0o644. modified: Unix time."""

    name: str
    size: int
    mode: int
    modified: float
    is_dir: bool
    is_symlink: bool


class Files:
    """Files of a sandbox. Paths are absolute, or relative to the home directory of its user.

    All calls raise NotFound and Denied, Lost if the connection breaks, and Error with what SFTP
    says, such as "Failure" for a full disk.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._client: asyncssh.SFTPClient | None = None
        self._slot: Slot | None = None  # of _client
        self._opening = asyncio.Lock()

    async def _sftp(self) -> asyncssh.SFTPClient:
        self._link.check()
        async with self._opening:
            if self._client and self._slot and not self._slot.connection.is_closed():
                return self._client
            self._slot = await self._link.acquire()
            try:
                self._client = await self._slot.connection.start_sftp_client(
                    path_errors="surrogateescape"
                )
            except BaseException:
                self._slot.release()
                self._slot = None
                raise
            return self._client

    @asynccontextmanager
    async def _call(self, what: str, path: str) -> AsyncIterator[asyncssh.SFTPClient]:
        """Gives the SFTP client, and the errors of SFTP their types."""
        import asyncssh

        try:
            yield await self._sftp()
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as e:
            raise errors.NotFound(f"{path}: no such file in the sandbox") from e
        except asyncssh.SFTPPermissionDenied as e:
            raise errors.Denied(f"{path}: permission denied in the sandbox") from e
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as e:
            raise self._lost(what, path, e) from e
        except asyncssh.SFTPError as e:
            raise errors.Error(f"{what} {path}: {e.reason}") from e
        except asyncssh.ChannelOpenError as e:
            raise errors.Unavailable(e.reason, hint="nothing was done") from e
        except (asyncssh.Error, ConnectionError) as e:
            raise self._lost(what, path, e) from e

    def _lost(self, what: str, path: str, e: Exception) -> errors.Lost:
        slot, self._slot, self._client = self._slot, None, None
        if slot:
            slot.release()
        return self._link.lost(f"{what} {path}: {e}", slot.connection if slot else None)

    async def read(self, path: str, *, max_bytes: int = MAX_READ) -> bytes:
        """Returns the content of a file. Raises Limit if it is longer than max_bytes; `get` copies
        files of any length."""
        content = bytearray()
        async with self._call("read", path) as sftp, sftp.open(path, "rb") as f:
            while chunk := await f.read(min(_CHUNK, max_bytes + 1 - len(content))):
                content += chunk if isinstance(chunk, bytes) else chunk.encode()
                if len(content) > max_bytes:
                    raise errors.Limit(
                        f"{path} is longer than {max_bytes} bytes", hint="use get, or max_bytes="
                    )
        return bytes(content)

    async def read_text(self, path: str, *, max_bytes: int = MAX_READ) -> str:
        """Returns the content of a file that is UTF-8. Raises UnicodeDecodeError otherwise."""
        return (await self.read(path, max_bytes=max_bytes)).decode()

    async def write(
        self, path: str, data: bytes | str, *, mode: int | None = None, parents: bool = True
    ) -> None:
        """Writes a file, which is created or replaced; a str is written as UTF-8.

        mode: its permissions, such as 0o755; None keeps them. parents: creates its directories.
        """
        async with self._call("write", path) as sftp:
            if parents:
                await _make_parents(sftp, path)
            async with sftp.open(path, "wb") as f:
                await f.write(data.encode() if isinstance(data, str) else data)
            if mode is not None:
                await sftp.chmod(path, mode)

    async def put(self, local: str | os.PathLike[str], remote: str) -> None:
        """Copies a file, or a directory with all below it, from this machine to the path remote.

        The content of a directory is merged into remote if that exists. Permissions and symbolic
        links are kept, devices and sockets left out. Directories above remote are created.
        """
        async with self._call("put", remote) as sftp:
            source = Path(local)
            await _make_parents(sftp, remote)
            if source.is_dir():
                await self._put_dir(sftp, source, remote)
            else:
                await sftp.put(os.fspath(source), remote, preserve=True)

    async def _put_dir(self, sftp: asyncssh.SFTPClient, local: Path, remote: str) -> None:
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
                await self._put_dir(sftp, source, to)
                await sftp.chmod(to, modes.S_IMODE(source.stat().st_mode))
            elif source.is_file():
                await sftp.put(os.fspath(source), to, preserve=True)

    async def get(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copies a file, or a directory with all below it, to the path local of this machine.

        Nothing outside local is written, whatever the sandbox says that it has. Symbolic links are
        left out, as are devices and sockets.
        """
        async with self._call("get", remote) as sftp:
            target = Path(local)
            if await sftp.isdir(remote):
                await self._get_dir(sftp, remote, target, 0)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                await sftp.get(remote, os.fspath(target), preserve=False)

    async def _get_dir(
        self, sftp: asyncssh.SFTPClient, remote: str, local: Path, depth: int
    ) -> None:
        if depth > _MAX_DEPTH:
            raise errors.Error(f"{remote}: more than {_MAX_DEPTH} directories deep")
        local.mkdir(parents=True, exist_ok=True)
        async for entry in sftp.scandir(remote):
            name = os.fsdecode(entry.filename)
            if name in (".", ".."):
                continue
            if not name or "/" in name or os.sep in name or "\0" in name:
                raise errors.Error(f"{remote}: the sandbox names a file {name!r}")
            kind, to = entry.attrs.permissions or 0, local / name
            if modes.S_ISDIR(kind):
                if to.is_symlink():
                    raise errors.Error(f"{to} is a symbolic link", hint="remove it first")
                await self._get_dir(sftp, posixpath.join(remote, name), to, depth + 1)
            elif modes.S_ISREG(kind):
                if to.is_symlink():
                    to.unlink()
                await sftp.get(posixpath.join(remote, name), os.fspath(to))
                to.chmod(modes.S_IMODE(kind) & 0o777)

    async def list_dir(self, path: str = ".") -> list[FileInfo]:
        """Returns what a directory has, by name, without "." and ".."."""
        async with self._call("list_dir", path) as sftp:
            found = [e async for e in sftp.scandir(path)]
            infos = [_info(os.fsdecode(e.filename), e.attrs) for e in found]
            return sorted((i for i in infos if i.name not in (".", "..")), key=lambda i: i.name)

    async def stat(self, path: str) -> FileInfo:
        """Returns what a path is, without following a symbolic link."""
        async with self._call("stat", path) as sftp:
            return _info(posixpath.basename(path), await sftp.lstat(path))

    async def exists(self, path: str) -> bool:
        """Reports whether there is something at path."""
        try:
            await self.stat(path)
        except errors.NotFound:
            return False
        return True

    async def mkdir(self, path: str) -> None:
        """Creates a directory and those above it. It is no error if it exists."""
        async with self._call("mkdir", path) as sftp:
            await sftp.makedirs(path, exist_ok=True)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, an empty directory, or with recursive a directory with all below it."""
        async with self._call("remove", path) as sftp:
            if not modes.S_ISDIR((await sftp.lstat(path)).permissions or 0):
                await sftp.remove(path)
            elif recursive:
                await sftp.rmtree(path)
            else:
                await sftp.rmdir(path)


def _info(name: str, a: asyncssh.SFTPAttrs) -> FileInfo:
    kind = a.permissions or 0
    return FileInfo(
        name, a.size or 0, modes.S_IMODE(kind), float(a.mtime or 0),
        modes.S_ISDIR(kind), modes.S_ISLNK(kind),
    )  # fmt: skip


async def _make_parents(sftp: asyncssh.SFTPClient, path: str) -> None:
    above = posixpath.dirname(path)
    if above not in ("", "/"):
        await sftp.makedirs(above, exist_ok=True)
