"""What E2B's asynchronous SDK for Python does in another way than the synchronous one."""

import asyncio
import os
import time

from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, PtySize, SandboxQuery


async def until(what, f):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if f():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what}: not within 20 s")


async def run(s):
    out = []
    r = await s.commands.run("echo out; echo err >&2", on_stdout=out.append)
    assert (r.stdout, r.stderr, out) == ("out\n", "err\n", ["out\n"])
    many = await asyncio.gather(*(s.commands.run(f"echo {i}") for i in range(20)))
    assert [m.stdout for m in many] == [f"{i}\n" for i in range(20)]
    h = await s.commands.run("cat; exit 4", background=True, stdin=True)
    await s.commands.send_stdin(h.pid, "in\n")
    await s.commands.close_stdin(h.pid)
    try:
        await h.wait()
        raise AssertionError("no exit code")
    except CommandExitException as e:
        assert (e.exit_code, e.stdout) == (4, "in\n"), e


async def pty(s):
    text = bytearray()
    h = await s.pty.create(PtySize(rows=24, cols=80), on_data=text.extend)
    await s.pty.send_stdin(h.pid, b"echo $((40 + 2))-here\n")
    await until("it is printed", lambda: b"42-here" in text)
    assert await s.pty.kill(h.pid)


async def files(s):
    await s.files.write("/tmp/a", "x")
    assert await s.files.read("/tmp/a") == "x"
    data = os.urandom(3 << 20)
    await s.files.write("/tmp/b", data)
    assert bytes(await s.files.read("/tmp/b", format="bytes")) == data
    got = bytearray()
    async for part in await s.files.read("/tmp/b", format="stream"):
        got += part
    assert bytes(got) == data


async def watch(s):
    seen = []
    await s.files.make_dir("/tmp/watched")
    w = await s.files.watch_dir("/tmp/watched", on_event=seen.append)
    await s.files.write("/tmp/watched/n", "1")
    await until("it is told of", lambda: any(e.name == "n" and e.type == FilesystemEventType.CREATE for e in seen))
    await w.stop()


async def main():
    s = await AsyncSandbox.create(timeout=120, metadata={"suite": "async"})
    try:
        assert await s.is_running()
        page = await AsyncSandbox.list(query=SandboxQuery(metadata={"suite": "async"})).next_items()
        assert [x.sandbox_id for x in page] == [s.sandbox_id]
        for f in (run, pty, files, watch):
            began = time.monotonic()
            await f(s)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f} s", flush=True)
    finally:
        assert await s.kill()
    assert not await s.is_running()


asyncio.run(main())
# Threads of the SDK's HTTP client abort a Python before 3.14 that ends normally (curioswitch/pyqwest#164): not what is tested here.
os._exit(0)
