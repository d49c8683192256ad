"""Connections that are refused, break, or are used where they cannot work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_connection, create_server, socket

import asyncssh
import pytest

import sandboxd
from sandboxd import (
    Busy,
    Denied,
    Error,
    Exists,
    Lost,
    NotFound,
    Sandbox,
    Unavailable,
    Usage,
    _portal,
    aio,
)
from sandboxd._portal import Portal


class Cable:
    """A TCP connection to the daemon that can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self.target, self.ends = (host, port), list[socket]()
        self.listener = create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = create_connection(self.target)
            self.ends += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket, b: socket) -> None:
        try:
            while data := a.recv(1 << 16):
                b.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        ends, self.ends = self.ends, []
        for end in ends:
            with contextlib.suppress(OSError):  # its other side has ended it
                end.shutdown(2)
            end.close()

    def close(self) -> None:
        self.listener.shutdown(2)
        self.listener.close()
        self.cut()


def when(sbx: Sandbox, process: str, act: Callable[[], object]) -> threading.Thread:
    """Acts as soon as a process with that command line runs in the sandbox, which another
    connection watches."""

    def watch() -> None:
        with Sandbox(sbx.name) as other:
            other.exec(f"until pgrep -xf '{process}' >/dev/null; do sleep 0.05; done", timeout=60)
            act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.fixture
def cable(up: dict[str, str], tmp_path: Path) -> Iterator[Cable]:
    host, _, port = up["ssh"].rpartition(":")
    made = Cable(host, int(port))
    key = Path(up["known_hosts"]).read_text().split(None, 1)[1]
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{made.port} {key}")
    yield made
    made.close()


def through(cable: Cable, up: dict[str, str], tmp_path: Path) -> Sandbox:
    return Sandbox(f"ssh://shared@127.0.0.1:{cable.port}", identity=up["identity"], state=tmp_path)


def test_lost_in_run(shared: Sandbox, cable: Cable, up: dict[str, str], tmp_path: Path) -> None:
    with through(cable, up, tmp_path) as sbx:
        sbx.run("echo before >>/tmp/count; N=1")
        cut = when(shared, "sleep 2", cable.cut)
        with pytest.raises(Lost) as e:
            sbx.run("echo run >>/tmp/count; sleep 2")
        cut.join()
        assert e.value.reason == "gateway_unreachable"
        assert e.value.result and e.value.result.ended == "lost"
        # The next call connects again; the command went on, and was not repeated.
        assert sbx.wait("prompt").phase == "prompt"
        assert sbx.run("echo $N; cat /tmp/count").output == "1\nbefore\nrun\n"


def test_lost_in_exec_and_files(
    shared: Sandbox, cable: Cable, up: dict[str, str], tmp_path: Path
) -> None:
    with through(cable, up, tmp_path) as sbx:
        assert sbx.exec("true").ok and sbx.files.exists("/")
        cut = when(shared, "sleep 31", cable.cut)
        with pytest.raises(Lost):
            sbx.exec("exec sleep 31")
        cut.join()
        assert sbx.exec("truncate -s 100G /tmp/endless; echo again").text == "again\n"
        assert sbx.files.exists("/")
        threading.Timer(0.3, cable.cut).start()
        with pytest.raises(Lost):
            sbx.files.read("/tmp/endless")
        assert sbx.files.exists("/")


def test_stopped_sandbox_loses_its_call(state: Path) -> None:
    with Sandbox.create("stopped") as sbx:
        stop = when(sbx, "sleep 50", lambda: subprocess.run(["sandboxd", "stop", "stopped"]))
        with pytest.raises(Lost) as e:
            sbx.run("sleep 50")
        assert e.value.reason in ("sandbox_stopped", "guest_died")
        stop.join()
        with pytest.raises((Unavailable, NotFound), match="stopped"):
            sbx.type("x")
        assert sbx.run("echo again").output == "again\n"


def test_names(shared: Sandbox) -> None:
    with pytest.raises(NotFound, match="no sandbox nosuch"):
        Sandbox("nosuch")
    with pytest.raises(Exists):
        Sandbox.create("shared")
    with pytest.raises(Usage):
        Sandbox.create("Not A Name")
    with pytest.raises(Usage, match="no option"):
        Sandbox.create("x", colour="blue")  # type: ignore[call-arg]
    with pytest.raises(Error):
        Sandbox.create("x", image="no-such-image:1", flags=["--bad-flag"])
    for bad in ("http://a@b", "ssh://a:b@c", "ssh://host:99999", "ssh://127.0.0.1:1"):
        with pytest.raises(Usage):
            Sandbox(bad)
    with sandboxd.Gateway() as gateway, gateway.sandbox("nosuch") as missing:
        with pytest.raises(NotFound, match="no sandbox nosuch"):
            missing.exec("true")
        with pytest.raises(NotFound, match="no sandbox nosuch"):
            missing.exec("true", user="nobody")
    again = Sandbox.create("shared", if_missing=True)
    with again:
        pass
    assert shared.run("true").ok  # the one that was there was not removed


def test_no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        sandboxd.Gateway(f"ssh://127.0.0.1:{port}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="PATH"):
        sandboxd.Gateway()


def test_keys(up: dict[str, str], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(wrong))
    with pytest.raises(Denied, match="does not accept"):
        sandboxd.Gateway(f"ssh://{up['ssh']}", identity=str(wrong))
    with pytest.raises(Usage, match="nothing"):
        sandboxd.Gateway(f"ssh://{up['ssh']}", identity=str(tmp_path / "nothing"))
    host = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    host_name, _, port = up["ssh"].rpartition(":")
    (tmp_path / "known_hosts").write_text(f"[{host_name}]:{port} {host}")
    with pytest.raises(Denied, match="host key"):
        sandboxd.Gateway(f"ssh://{up['ssh']}", identity=up["identity"], state=tmp_path)


def test_interrupt_from_the_keyboard(shared: Sandbox) -> None:
    program = """
import os, signal, threading
from sandboxd import Sandbox
sbx = Sandbox("shared~keyboard")
def interrupt(process):
    with Sandbox("shared") as other:
        other.exec(f"until pgrep -xf '{process}' >/dev/null; do sleep 0.05; done", timeout=60)
        os.kill(os.getpid(), signal.SIGINT)
def later(process):
    threading.Thread(target=interrupt, args=[process]).start()
later("sleep 77")
try:
    sbx.run("sleep 77")
except KeyboardInterrupt:
    print("interrupted", sbx.run("echo $?").output.strip())
later("sleep 78")
try:
    sbx.exec("exec sleep 78")
except KeyboardInterrupt:
    gone = sbx.exec("while pgrep -xf 'sleep 78' >/dev/null; do sleep 0.05; done; echo gone")
    print("again", gone.text.strip())
sbx.session().end()
sbx.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("interrupted 130\nagain gone\n", "")


def test_fork(shared: Sandbox) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with shared:  # would remove it, were it not that of the parent
                shared.run("true")
        except Usage as e:
            if "fork" in str(e):
                with Sandbox("shared") as own:
                    code = 0 if own.exec("true").ok else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.run("true").ok


def test_closed(shared: Sandbox) -> None:
    sbx = Sandbox("shared")
    sbx.run("true")
    sbx.close()
    sbx.close()
    for call in (lambda: sbx.run("true"), lambda: sbx.exec("true"), sbx.describe):
        with pytest.raises(Usage, match="closed"):
            call()


def test_no_thread_is_left(state: Path) -> None:
    program = """
import threading
from sandboxd import Gateway, Sandbox
with Gateway() as gw, gw.sandbox("shared") as sbx:
    sbx.exec("true")
    assert threading.active_count() > 1
print([t.name for t in threading.enumerate()])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['MainThread']\n", "")


async def test_sync_calls_where_a_loop_runs(shared: Sandbox) -> None:
    assert shared.run("echo notebook").output == "notebook\n"


def test_other_and_closed_loops(state: Path, shared: Sandbox) -> None:
    async def make() -> aio.Sandbox:
        sbx = await aio.Sandbox.connect("shared")
        await sbx.exec("true")
        return sbx

    sbx = asyncio.run(make())

    async def use() -> None:
        with pytest.raises(Usage, match="is closed"):
            await sbx.exec("true")
        with pytest.raises(Usage, match="is closed"):
            await sbx.run("true")
        await sbx.close()

    asyncio.run(use())


async def test_async_cancel_leaves_the_command(shared: Sandbox) -> None:
    async with await aio.Sandbox.connect("shared~cancel") as sbx:
        run = asyncio.create_task(sbx.run("until [ -e /tmp/go ]; do sleep 0.1; done; echo over"))
        await sbx.exec("until pgrep -xf 'sleep 0.1'; do :; done", timeout=60)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        with pytest.raises(Busy):
            await sbx.run("true")
        await sbx.files.write("/tmp/go", "")
        assert "over" in (await sbx.wait("prompt")).output
        await sbx.session().end()


async def test_cancelled_create_leaves_nothing(state: Path) -> None:
    async with await aio.Gateway.connect() as gateway:
        for name in ("gone-1", "gone-2"):
            create = asyncio.create_task(gateway.create(name, keep=True))
            while name not in {s.name for s in await gateway.sandboxes()}:
                assert not create.done()
            create.cancel()
            with pytest.raises(asyncio.CancelledError):
                await create
        while {s.name for s in await gateway.sandboxes()} & {"gone-1", "gone-2"}:
            pass


async def test_many_calls_at_once(shared: Sandbox) -> None:
    async with await aio.Sandbox.connect("shared") as sbx:
        # More than one connection carries.
        done = await asyncio.gather(*(sbx.exec(f"sleep 1; echo {i}") for i in range(70)))
        assert [d.text for d in done] == [f"{i}\n" for i in range(70)]
        found = await asyncio.gather(*(sbx.describe() for _ in range(40)))
        assert {i.name for i in found} == {"shared"}
        ran = await asyncio.gather(*(sbx.session(f"s{i}").run(f"echo {i}") for i in range(8)))
        assert [r.output for r in ran] == [f"{i}\n" for i in range(8)]
        for i in range(8):
            await sbx.session(f"s{i}").end()


def test_port(shared: Sandbox) -> None:
    shared.session("web").run("cd /tmp; python3 -m http.server 8123 &>/dev/null & ")
    shared.exec(
        "for i in $(seq 100); do curl -s localhost:8123 >/dev/null && break; sleep .1; done"
    )
    from urllib.request import urlopen

    with shared.port(8123) as url, urlopen(url) as page:
        assert page.status == 200
    with pytest.raises(OSError):
        urlopen(url)
    with pytest.raises(Usage), shared.port(0):
        pass
    shared.session("web").end()


def test_portal_is_shared(shared: Sandbox) -> None:
    with Sandbox("shared") as a, Sandbox("shared") as b:
        assert a._portal is b._portal is Portal._shared


def test_close_while_a_lookup_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answer = threading.Event(), threading.Event()

    def lookup(*_: object, **__: object) -> list[object]:
        begun.set()
        answer.wait()
        return []

    monkeypatch.setattr("socket.getaddrinfo", lookup)
    monkeypatch.setattr(_portal, "_AFTER_SECONDS", 0.1)
    portal = Portal()
    portal._users = 1
    asyncio.run_coroutine_threadsafe(portal._loop.getaddrinfo("host", 1), portal._loop)
    assert begun.wait(30)
    leaving = threading.Thread(target=portal.leave, daemon=True)
    leaving.start()
    leaving.join(30)
    hangs = leaving.is_alive()
    answer.set()
    assert not hangs
    leaving.join(30)
    portal._lookups.shutdown()
