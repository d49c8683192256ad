"""Sandboxes, daemons, networks and callers that do what nobody expects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

import sandboxd
from sandboxd import Error, Limit, Lost, NotFound, Sandbox, Timeout, Unavailable, Usage, aio
from sandboxd import _finish as finish_module
from sandboxd import _sandbox as sandbox_module
from sandboxd import _session as session_module
from sandboxd._daemon import CONTROL_USER, Address, Link
from sandboxd._portal import Portal
from sandboxd._stream import Broken, Stream

IMAGE = os.environ.get("SANDBOXD_TEST_IMAGE", "sandboxd/base:latest")
NO_NAMES = ["--all", "--help", "-f", "", "a b", "A", "a/b", "a\n", "x" * 64, "a-"]


async def used(sbx: aio.Sandbox, *counts: int) -> None:
    """Waits until the connections have so many channels."""
    while sum(c.used for c in sbx._link._connections) not in counts:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name(shared: Sandbox, name: str) -> None:
    with sandboxd.Gateway() as gateway:
        with pytest.raises(Usage):
            gateway.sandbox(name)
        if name:
            with pytest.raises(Usage):
                gateway.create(name)
    with pytest.raises(Usage):
        Sandbox(name or "ssh://")
    with pytest.raises(Usage):
        shared.allow("--remove")
    assert shared.run("true").ok


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_what_is_no_timeout(shared: Sandbox, timeout: float) -> None:
    for call in (shared.run, shared.exec, shared.files.read):
        with pytest.raises(Usage, match="positive"):
            call("/etc/hostname", timeout=timeout)
    assert shared.run("echo $((1 + 1))", timeout=float("inf")).output == "2\n"


NO_VALUES = {
    "run": lambda s: s.run(["ls"]),
    "run bytes": lambda s: s.run(b"ls"),
    "run timeout": lambda s: s.run("ls", timeout="5"),
    "type": lambda s: s.type(5),
    "keys": lambda s: s.keys(13),
    "wait": lambda s: s.wait("promt"),
    "session": lambda s: s.session(5).run("ls"),
    "exec": lambda s: s.exec(["echo", 1]),
    "exec None": lambda s: s.exec(None),
    "exec env": lambda s: s.exec("true", env={"A": 1}),
    "exec list": lambda s: s.exec("true", env=["A=1"]),
    "exec input": lambda s: s.exec("true", input=5),
    "write": lambda s: s.files.write("/tmp/x", {"a": 1}),
    "read": lambda s: s.files.read(5),
    "allow": lambda s: s.allow(["a.org"]),
    "exec surrogate": lambda s: s.exec("echo \udc80"),
    "exec input surrogate": lambda s: s.exec("cat", input="\ud800"),
    "exec cwd": lambda s: s.exec("pwd", cwd="/\ud800"),
    "run surrogate": lambda s: s.run("echo \ud800"),
    "write surrogate": lambda s: s.files.write("/tmp/x", "\ud800"),
    "path surrogate": lambda s: s.files.stat("/tmp/\ud800"),
    "port": lambda s: s.port("80").__enter__(),
    "name": lambda s: Sandbox(5),  # type: ignore[arg-type]
    "network": lambda s: Sandbox.create(network=False),  # type: ignore[arg-type]
    "network empty": lambda s: Sandbox.create(network=""),
}


@pytest.mark.parametrize("call", NO_VALUES.values(), ids=NO_VALUES)
def test_what_is_no_value(shared: Sandbox, call: Any) -> None:
    with pytest.raises(Usage):
        call(shared)
    assert shared.run("true").ok


def test_files_of_a_sandbox_that_was_stopped(state: Path) -> None:
    with sandboxd.Gateway() as gateway, gateway.create("halted", image=IMAGE) as sbx:
        for _ in range(2):
            sbx.files.write("~/kept", "x")
            assert sbx.files.read_text(".//kept") == "x"
            sbx.stop()
            assert sbx.files.read_text("~/kept") == "x"
            sbx.run("cd")
        gateway.sandbox("halted").remove()
        for call in (sbx.files.read, sbx.exec, sbx.run):
            with pytest.raises(NotFound, match="no sandbox halted"):
                call("/etc/hostname")


def test_directories_where_files_are_due(shared: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    with pytest.raises(Error, match=r"^/srv is a directory; write /srv/a\.py$"):
        shared.files.put(tmp_path / "a.py", "/srv")
    for call in (shared.files.read, lambda path: shared.files.write(path, "x")):
        with pytest.raises(Error, match=r"^(read|open) /etc: is a directory$"):
            call("/etc")


def test_what_is_no_uri_and_no_file(up: dict[str, str], tmp_path: Path) -> None:
    for uri in ("ssh://[", "ssh://a@[::1", "ssh://a@b:x"):
        with pytest.raises(Usage, match="ssh URI"):
            Sandbox(uri)
    (tmp_path / "known_hosts").write_text("@nonsense\n\0\nhost ssh-ed25519 AAA\n")
    with pytest.raises(Error):
        sandboxd.Gateway(f"ssh://{up['ssh']}", identity=up["identity"], state=tmp_path)


def test_output_that_looks_like_the_daemon(shared: Sandbox) -> None:
    said = "echo 'sandboxd: no sandbox shared for you; create it' >&2; exit"
    for code in (2, 125, 255):
        for user in (None, "nobody", "root"):
            done = shared.exec(f"{said} {code}", user=user)
            assert (done.exit_code, done.stdout) == (code, b"")
            assert done.error_text == "sandboxd: no sandbox shared for you; create it\n"


def test_pipe_that_nobody_writes_to(shared: Sandbox) -> None:
    shared.exec("rm -f /tmp/pipe /tmp/plain; mkfifo /tmp/pipe; echo plain >/tmp/plain")
    for _ in range(40):  # more than a connection has channels
        with pytest.raises(Timeout, match="/tmp/pipe"):
            shared.files.read("/tmp/pipe", timeout=0.05)
    assert shared.files.read_text("/tmp/plain", timeout=60) == "plain\n"
    with pytest.raises(Error, match="no regular file"):
        shared.files.get("/tmp/pipe", "/tmp/never")
    assert not Path("/tmp/never").exists()


async def test_pipe_leaves_other_calls_alone(shared: Sandbox) -> None:
    async with await aio.Sandbox.connect("shared") as sbx:
        await sbx.exec("rm -f /tmp/pipe2 /tmp/pipe3; mkfifo /tmp/pipe2 /tmp/pipe3")
        reads = asyncio.create_task(sbx.files.read("/tmp/pipe2"))
        with pytest.raises(Timeout):
            await sbx.files.read("/tmp/pipe3", timeout=0.5)
        assert not reads.done()
        await sbx.exec("echo late >/tmp/pipe2")
        assert await sbx.files.read("/etc/hostname", timeout=60)
        with pytest.raises(Error, match="seek"):  # SFTP reads at offsets
            await reads
        await used(sbx, 1, 2)  # which are kept; the second read may take that of the first


def test_sizes_that_lie(shared: Sandbox, tmp_path: Path) -> None:
    shared.files.get("/proc/version", tmp_path / "version")
    assert (tmp_path / "version").read_text().startswith("Linux version")
    assert shared.files.read("/proc/version").startswith(b"Linux version")
    shared.exec("mkdir -p /tmp/lies; truncate -s 8T /tmp/lies/sparse")
    for i, remote in enumerate(("/tmp/lies", "/tmp/lies/sparse")):
        with pytest.raises(Limit, match="sparse"):
            shared.files.get(remote, tmp_path / f"copy-{i}", max_bytes=5_000_000)
    with pytest.raises(Limit):
        shared.files.get("/proc/sys", tmp_path / "many", max_bytes=20_000)


def test_files_of_all_lengths(shared: Sandbox, tmp_path: Path) -> None:
    block = 32 << 10
    for size in (0, 1, block - 1, block, block + 1, 3 * block, 200 * block + 7):
        data = (bytes(range(251)) * (size // 251 + 1))[:size]
        shared.files.write("/tmp/length", data)
        assert shared.files.read("/tmp/length") == data
        assert shared.files.read("/tmp/length", max_bytes=size) == data
        if size:
            with pytest.raises(Limit):
                shared.files.read("/tmp/length", max_bytes=size - 1)
        shared.files.get("/tmp/length", tmp_path / "length")
        assert (tmp_path / "length").read_bytes() == data
        shared.files.put(tmp_path / "length", "/tmp/length-2")
        assert shared.exec("cmp /tmp/length /tmp/length-2").ok


def test_directory_without_end(shared: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd._files._MAX_ENTRIES", 10)
    with pytest.raises(Limit, match="/etc"):
        shared.files.list_dir("/etc")


async def test_calls_that_are_cancelled_leave_no_channel(shared: Sandbox) -> None:
    async with await aio.Sandbox.connect("shared") as sbx:
        await sbx.exec("true")

        async def cancel_after(steps: int, call: Any) -> None:
            task = asyncio.ensure_future(call)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, NotFound):  # of a session
                await task

        for i in range(60):
            await cancel_after(i % 20, sbx.session(f"c{i % 3}").wait("prompt", timeout=60))
            await cancel_after(i % 20, sbx.exec("true"))
            await cancel_after(i % 20, sbx.files.stat("/"))
            await cancel_after(i % 20, sbx.port(1234).__aenter__())
        for i in range(3):
            await sbx.session(f"c{i}").detach()
        await used(sbx, 0, 1, 2, 3, 4)  # those of files stay
        done = await asyncio.gather(*(sbx.exec(f"sleep 0.5; echo {i}") for i in range(24)))
        assert [d.text for d in done] == [f"{i}\n" for i in range(24)]


async def test_create_that_is_cancelled_at_any_time(state: Path) -> None:
    async with await aio.Gateway.connect() as gateway:
        before = {s.name for s in await gateway.sandboxes()}
        made = await gateway.create(image=IMAGE)
        assert made.name.startswith("box-")
        await made.remove()
        for moment in ("sent", "listed", "answered"):
            create = asyncio.create_task(gateway.create(image=IMAGE))
            await asyncio.sleep(0)
            if moment != "sent":
                while {s.name for s in await gateway.sandboxes()} == before:
                    assert not create.done()
            if moment == "answered":
                while not any(
                    s.name not in before and s.state == "running" for s in await gateway.sandboxes()
                ):
                    pass
            create.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await create).remove()
            while {s.name for s in await gateway.sandboxes()} != before:
                pass


async def test_only_one_creator_owns_a_sandbox(state: Path) -> None:
    async with await aio.Gateway.connect() as gateway:
        made = await asyncio.gather(
            *(gateway.create("both", if_missing=True, image=IMAGE) for _ in range(4))
        )
        assert sorted(s._owned for s in made) == [False, False, False, True]
        await made[0].remove()
        for sbx in made:
            await sbx.close()


def test_threads_that_race_with_close(shared: Sandbox) -> None:
    raised: list[BaseException] = []
    for i in range(20):
        sbx = Sandbox("shared")

        def call(sbx: Sandbox = sbx) -> None:
            try:
                while True:
                    sbx.exec("true")
            except BaseException as e:
                raised.append(e)

        threads = [threading.Thread(target=call, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(i):
            sbx.describe()
        sbx.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert {type(e) for e in raised} <= {Usage, Lost, Unavailable}, raised


def test_timeouts_survive_pickle() -> None:
    late = Timeout("late", hint="wait")
    late.stdout, late.stderr = b"out", b"err"
    again = pickle.loads(pickle.dumps(late))
    assert (str(again), again.stdout, again.stderr) == ("late; wait", b"out", b"err")
    assert again.code == "timeout"


class Server(asyncssh.SSHServer):
    """A daemon that lets everybody in."""

    def begin_auth(self, username: str) -> bool:
        return False


class Fake:
    """A daemon that does what a test says when a channel asks for something."""

    def __init__(self) -> None:
        self.answer: Any = None

    async def link(self, tmp_path: Path, **options: Any) -> Link:
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.server = await asyncssh.create_server(
            Server, "127.0.0.1", 0, server_host_keys=[key], encoding=None,
            process_factory=self._serve, **options,
        )  # fmt: skip
        port = self.server.get_port()
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {key.export_public_key().decode()}")
        return Link(Address("127.0.0.1", port, known_hosts=(str(known),)), CONTROL_USER)

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        await self.answer(process)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[tuple[Fake, aio.Gateway]]:
    made = Fake()
    link = await made.link(tmp_path)
    gateway = aio.Gateway(link)
    yield made, gateway
    await gateway.close()
    made.server.close()


async def silent(process: asyncssh.SSHServerProcess[bytes]) -> None:
    await process.wait_closed()


async def test_silent_daemon(
    fake: tuple[Fake, aio.Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, gateway = fake
    monkeypatch.setattr(session_module, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(session_module, "_START_SECONDS", 0.2)

    daemon.answer = silent
    sbx = gateway.sandbox("x")
    with pytest.raises(Unavailable, match="does not answer"):
        await sbx.run("true", timeout=0.1)

    async def attaches(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(frame(1, b'{"versions": [1]}') + frame(3, b'{"state": [], "x": 1}'))
        await process.wait_closed()

    daemon.answer = attaches
    with pytest.raises(Lost, match="does not answer"):
        await sbx.run("true", timeout=0.1)
    with pytest.raises(Timeout):
        await sbx.exec("true", timeout=0.1)
    await used(sbx, 1)  # that of the session, which may answer yet
    await sbx.close()


async def test_daemon_that_takes_commands_and_is_silent(
    fake: tuple[Fake, aio.Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, gateway = fake
    monkeypatch.setattr(sandbox_module, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(sandbox_module, "_CHANGE_SECONDS", 0.1)

    daemon.answer = silent
    sbx = gateway.sandbox("x")
    calls = [gateway.sandboxes, sbx.describe, sbx.start, sbx.stop, sbx.remove]
    for call in [*calls, lambda: sbx.allow("example.com")]:
        with pytest.raises(Timeout, match="has not answered for"):
            await call()
    with pytest.raises(Timeout, match="has not answered for"):
        async with aio.Sandbox(gateway, "x", owned=True):
            pass

    async def says(process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.command == "echo":
            process.stderr.write(b"sandboxd: no\n")
            process.exit(255)
        else:
            await process.wait_closed()

    daemon.answer = says
    with pytest.raises(Timeout):
        await sbx.exec("echo", timeout=30)
    await sbx.close()


class OddNames(asyncssh.SFTPServer):
    """A server of a hostile root."""

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        if path == b"/names":
            attrs = asyncssh.SFTPAttrs(permissions=0o100644)
            yield asyncssh.SFTPName(b"../../etc/passwd", attrs=attrs)
        elif path == b"/no-attributes":
            yield asyncssh.SFTPName(b"dir", attrs=asyncssh.SFTPAttrs())

    def stat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return asyncssh.SFTPAttrs(permissions=0o40755)

    lstat = stat


async def test_names_that_lead_elsewhere(tmp_path: Path) -> None:
    daemon = Fake()
    gateway = aio.Gateway(await daemon.link(tmp_path, sftp_factory=OddNames))
    sbx = gateway.sandbox("x")
    for call in (sbx.files.list_dir("/names"), sbx.files.get("/names", tmp_path / "names")):
        with pytest.raises(Error, match="names a file"):
            await call
    assert [i.is_dir for i in await sbx.files.list_dir("/no-attributes")] == [True]
    await sbx.files.get("/no-attributes", tmp_path / "attributes")
    assert (tmp_path / "attributes" / "dir").is_dir()
    await sbx.close()
    await gateway.close()
    daemon.server.close()


@pytest.mark.parametrize("steps", [0, 1, 5, 10])
async def test_end_that_is_cancelled_removes_the_sandbox(shared: Sandbox, steps: int) -> None:
    sbx = await aio.Sandbox.create(image=IMAGE)
    entered, end = asyncio.Event(), asyncio.Event()

    async def use() -> None:
        async with sbx:
            entered.set()
            await end.wait()

    task = asyncio.ensure_future(use())
    await entered.wait()
    end.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    while not task.done():  # as anyio does it
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    async with await aio.Gateway.connect() as gateway:
        assert sbx.name not in [i.name for i in await gateway.sandboxes()]


async def test_work_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_module, "_SECONDS", 0.1)
    go_on, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        ended.set()

    task = asyncio.ensure_future(finish_module.finish(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await ended.wait()


def test_finalizer_that_runs_anywhere(shared: Sandbox) -> None:
    def finalizer() -> None:
        with Portal._lock:  # as the garbage collector may come when this thread has it
            assert shared.describe().name == "shared"

    thread = threading.Thread(target=finalizer, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_secrets_are_not_logged(shared: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Sandbox.create(image=IMAGE, env={"TOKEN": "hunter1"}) as sbx:
        sbx.exec("true", env={"TOKEN": "hunter2"})
    assert "hunter" not in caplog.text


async def test_daemon_that_cuts(fake: tuple[Fake, aio.Gateway]) -> None:
    daemon, gateway = fake

    async def cut(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.get_extra_info("connection").abort()

    daemon.answer = cut
    sbx = gateway.sandbox("x")
    for _ in range(3):
        with pytest.raises(Lost):  # it may have run
            await sbx.exec("true")
        with pytest.raises(Lost):
            await sbx.describe()
        with pytest.raises((Lost, Unavailable)):
            await sbx.run("true")
        with pytest.raises((Lost, Unavailable)):
            await sbx.files.read("/x")
    await sbx.close()


NONSENSE = [
    b"", b"{}", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"name": 1}',
    b'{"error": "text"}', b'{"error": [1]}', b'{"error": {"code": 5, "message": {}}}',
]  # fmt: skip


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
async def test_daemon_that_prints_nonsense(fake: tuple[Fake, aio.Gateway], text: bytes) -> None:
    daemon, gateway = fake

    async def prints(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(text)
        process.exit(1)

    daemon.answer = prints
    with pytest.raises(Error):
        await gateway.sandbox("x").describe()
    with pytest.raises(Error):
        await gateway.create("x")
    with pytest.raises(Error):
        await gateway.sandboxes()


def frame(kind: int, payload: bytes) -> bytes:
    return (len(payload) + 1).to_bytes(4, "big") + bytes([kind]) + payload


HELLO = frame(1, b'{"versions": [1]}')
ATTACHED = frame(3, b'{"state": {"phase": "prompt"}, "resume": "x"}')


class Drop:
    """A writer that drops what is written."""

    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


BAD_STREAMS = [
    *(frame(1, text) for text in NONSENSE),
    frame(1, b'{"versions": 1}'),
    *(HELLO + frame(3, text) for text in NONSENSE if text not in (b"{}", b'{"name": 1}')),
    *(HELLO + ATTACHED + frame(8, b"\0\0\0\1" + text) for text in (b"", b"[]", b"1", b"[" * 9**6)),
    HELLO + ATTACHED + frame(8, b"\0"),
    HELLO + ATTACHED + frame(9, b"[]"),
    HELLO + ATTACHED + b"\0\0\0\0\0",
    HELLO + ATTACHED + b"\xff" * 9,
]


@pytest.mark.parametrize("data", BAD_STREAMS, ids=range(len(BAD_STREAMS)))
async def test_stream_of_nonsense(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    with pytest.raises((Broken, Error)):
        stream = await Stream.attach(reader, Drop(), {})
        await stream.request(verb="screen")
