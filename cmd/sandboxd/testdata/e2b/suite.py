"""The calls of E2B's SDK for Python, each with what it has to answer. The environment says where the daemon is."""

import hashlib
import os
import sys
import tempfile
import time

import httpx
from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    Secret,
    Template,
    TimeoutException,
    Volume,
)

checks = []


def check(f):
    checks.append(f)
    return f


def refused(what, exception, f):
    """f raises exception, which is returned."""
    try:
        f()
    except exception as e:
        return e
    raise AssertionError(f"{what} was not refused")


def until(what, f):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if got := f():
            return got
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within 20 s")


@check
def info(s):
    i = s.get_info()
    assert i.sandbox_id == s.sandbox_id and i.template_id == "base" and i.state == SandboxState.RUNNING, i
    assert i.metadata == {"job": "7 a&b=c", "ü": "ö"}, i.metadata
    assert 0 < (i.end_at - i.started_at).total_seconds() <= 301, i
    s.set_timeout(600)
    assert (s.get_info().end_at - i.end_at).total_seconds() > 290
    assert s.is_running()
    m = s.get_metrics()
    assert len(m) == 1 and m[0].mem_total > 0 and m[0].mem_used > 0, m


@check
def lists(s):
    def ids(**query):
        return [x.sandbox_id for x in Sandbox.list(query=SandboxQuery(**query)).next_items()]

    assert ids(metadata={"job": "7 a&b=c", "ü": "ö"}) == [s.sandbox_id]
    assert ids(metadata={"job": "other"}) == []
    assert s.sandbox_id in ids(state=[SandboxState.RUNNING]) and s.sandbox_id not in ids(state=[SandboxState.PAUSED])
    other = Sandbox.create(timeout=60, metadata={"pages": "1"})
    try:
        pages, page = [], Sandbox.list(limit=1)
        while page.has_next:
            pages.append([x.sandbox_id for x in page.next_items()])
        assert all(len(p) == 1 for p in pages) and {s.sandbox_id, other.sandbox_id} <= {p[0] for p in pages}, pages
        assert pages[0] == [other.sandbox_id], "the newest comes first"
    finally:
        assert other.kill() is True
    assert other.kill() is False and other.is_running() is False
    refused("info of one that is gone", SandboxNotFoundException, other.get_info)
    refused("a command in it", TimeoutException, lambda: other.commands.run("true"))
    refused("a file of it", TimeoutException, lambda: other.files.read("/etc/hosts"))
    refused("connect to it", NotFoundException, lambda: Sandbox.connect(other.sandbox_id))


@check
def create(s):
    e = refused("an unknown template", SandboxException, lambda: Sandbox.create("nothing-like-it"))
    assert "e2b.templates" in str(e), e
    refused("a wrong key", AuthenticationException, lambda: Sandbox.create(api_key="sbx_" + "0" * 32))
    refused("mcp", SandboxException, lambda: Sandbox.create(mcp={"github": {}}, template="base"))
    stopped = Sandbox.create("small", timeout=60)
    stopped.pause(keep_memory=False)
    assert stopped.get_info().state == SandboxState.PAUSED and stopped.connect().is_running()
    stopped.kill()
    with Sandbox.create("small", timeout=30, envs={"GREETING": "a b'c\"$d"}, allow_internet_access=False) as small:
        assert small.commands.run('printf %s "$GREETING"').stdout == "a b'c\"$d"
        assert small.get_info().template_id == "small"
    assert not small.is_running()
    key = "once-" + os.urandom(8).hex()
    one, again = (Sandbox.create(timeout=60, idempotency_key=key) for _ in range(2))
    assert one.sandbox_id == again.sandbox_id
    one.kill()


@check
def end(s):
    """At its end a sandbox is removed, whatever runs in it; or paused, and it goes on when somebody connects."""
    short = Sandbox.create(timeout=60)
    short.commands.run("sleep 100", background=True)
    short.set_timeout(2)
    until("it is removed", lambda: not short.is_running())
    refused("info", SandboxNotFoundException, short.get_info)
    kept = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause"})
    try:
        kept.files.write("/tmp/kept", "1")
        kept.set_timeout(2)
        until("it is paused", lambda: kept.get_info().state == SandboxState.PAUSED)
        assert not kept.is_running()
        kept = Sandbox.connect(kept.sandbox_id, timeout=100)
        assert kept.is_running() and kept.files.read("/tmp/kept") == "1"
    finally:
        kept.kill()


@check
def pause(s):
    h = s.commands.run("for i in $(seq 1000); do echo $i; sleep 0.05; done", background=True, timeout=0)
    s.pause()
    assert s.get_info().state == SandboxState.PAUSED and not s.is_running()
    refused("a command in one that is paused", TimeoutException, lambda: s.commands.run("true"))
    again = s.connect()
    assert again.commands.run("echo back").stdout == "back\n"
    assert h.pid in [p.pid for p in s.commands.list()], "it goes on with its memory"
    assert s.commands.kill(h.pid)


@check
def run(s):
    out, err = [], []
    r = s.commands.run("echo out; echo err >&2", on_stdout=out.append, on_stderr=err.append)
    assert (r.stdout, r.stderr, r.exit_code) == ("out\n", "err\n", 0) and out == ["out\n"] and err == ["err\n"], (r, out, err)
    e = refused("an exit code", CommandExitException, lambda: s.commands.run("echo x; exit 3"))
    assert (e.exit_code, e.stdout) == (3, "x\n"), e
    r = s.commands.run("pwd; echo \"$A\"; id -un", cwd="/tmp", envs={"A": "it's \"$x\"\n*"})
    assert r.stdout == "/tmp\nit's \"$x\"\n*\nroot\n", r
    assert s.commands.run("cat").stdout == "", "there is no input unless it was asked for"
    assert s.commands.run("pwd; id -un; echo $HOME", user="nobody", cwd="/").stdout == "/\nnobody\n/nonexistent\n"
    refused("a directory that is not there", InvalidArgumentException, lambda: s.commands.run("true", cwd="/not/there"))
    refused("a user that is not there", AuthenticationException, lambda: s.commands.run("true", user="nobody-like-it"))
    e = refused("a command that is not there", CommandExitException, lambda: s.commands.run("no-such-program"))
    assert e.exit_code == 127, e
    e = refused("a signal", CommandExitException, lambda: s.commands.run("kill -TERM $$"))
    assert e.exit_code == -1, e
    assert s.commands.run("echo ünï → ✓; head -c 3 /dev/zero | tr '\\0' '\\377' | wc -c").stdout == "ünï → ✓\n3\n"


@check
def large(s):
    n = 30_000_000
    r = s.commands.run(f"head -c {n} /dev/zero | tr '\\0' x")
    assert len(r.stdout) == n and set(r.stdout) == {"x"}
    total = [0]

    def count(text):
        total[0] += len(text)

    s.commands.run(f"head -c {n} /dev/zero | tr '\\0' y", on_stdout=count, retain_output=False)
    assert total[0] == n, total


@check
def timeouts(s):
    began = time.monotonic()
    refused("a command that lasts", TimeoutException, lambda: s.commands.run("echo $$ >/tmp/lasts; exec sleep 1000", timeout=0.7))
    assert time.monotonic() - began < 10
    until("it is killed", lambda: s.commands.run("kill -0 $(cat /tmp/lasts) 2>/dev/null && echo alive || echo dead").stdout == "dead\n")


@check
def background(s):
    h = s.commands.run("cat; echo end; exit 4", background=True, stdin=True)
    listed = [p for p in s.commands.list() if p.pid == h.pid]
    assert len(listed) == 1 and listed[0].cmd == "/bin/bash" and listed[0].args[-1].startswith("cat;"), listed
    assert s.commands.run(f"readlink /proc/{h.pid}/exe").stdout.endswith("bash\n"), "the pid is that inside"
    s.commands.send_stdin(h.pid, "one\n")
    other = s.commands.connect(h.pid)
    s.commands.stream_input(h.pid, [b"two\n", "three\n"])
    s.commands.close_stdin(h.pid)
    e = refused("its exit code", CommandExitException, h.wait)
    assert e.exit_code == 4 and e.stdout == "one\ntwo\nthree\nend\n", e
    e = refused("its exit code elsewhere", CommandExitException, other.wait)
    assert e.exit_code == 4 and e.stdout.endswith("two\nthree\nend\n"), e
    refused("input for one that has ended", NotFoundException, lambda: s.commands.send_stdin(h.pid, "x"))
    refused("connect to one that has ended", NotFoundException, lambda: s.commands.connect(h.pid))
    h = s.commands.run("sleep 1000 & wait", background=True)
    h.disconnect()
    assert h.pid in [p.pid for p in s.commands.list()], "leaving it leaves it running"
    assert s.commands.kill(h.pid) is True
    until("it is gone", lambda: h.pid not in [p.pid for p in s.commands.list()])
    assert s.commands.kill(h.pid) is False and s.commands.kill(999_999) is False


@check
def pty(s):
    h = s.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"MARK": "m"})
    other = s.pty.connect(h.pid)
    assert h.pid in [p.pid for p in s.commands.list()]
    s.pty.resize(h.pid, PtySize(rows=31, cols=101))
    s.pty.send_stdin(h.pid, b"stty size; echo $MARK-$PWD-$TERM; exit 5\n")

    def read(handle):
        text = b""
        for _, _, data in handle:
            text += data or b""
        return refused("its exit code", CommandExitException, handle.wait).exit_code, text

    for handle in (h, other):
        code, text = read(handle)
        assert code == 5 and b"31 101" in text and b"m-/tmp-xterm-256color" in text, text
    refused("a terminal that has ended", NotFoundException, lambda: s.pty.send_stdin(h.pid, b"x"))
    h = s.pty.create(PtySize(rows=24, cols=80))
    s.pty.stream_input(h.pid, [b"touch /tmp/by-", b"stream\n"])
    until("it is typed", lambda: s.files.exists("/tmp/by-stream"))
    assert s.pty.kill(h.pid) is True
    until("it is gone", lambda: h.pid not in [p.pid for p in s.commands.list()])
    assert s.pty.kill(h.pid) is False


@check
def files(s):
    f = s.files
    w = f.write("sub/a.txt", "hällo")
    assert w.path == "/root/sub/a.txt" and w.name == "a.txt" and w.type == FileType.FILE, w
    assert f.read("sub/a.txt") == "hällo" and f.read("~/sub/a.txt", format="bytes") == "hällo".encode()
    assert f.exists("sub/a.txt") and not f.exists("sub/b.txt")
    i = f.get_info("sub/a.txt")
    assert (i.size, i.permissions, i.mode, i.owner, i.group, i.type) == (6, "-rw-r--r--", 0o644, "root", "root", FileType.FILE), i
    assert abs(time.time() - i.modified_time.timestamp()) < 60
    names = ["new\nline", "esc\x1b[31m", '"quoted"', "-leading", "ünï", "sp ace", "a+b%41", "ü" * 120]
    for name in names:
        # A form's header has no place for ESC.
        f.write("/tmp/odd/" + name, name, use_octet_stream="\x1b" in name)
        assert f.read("/tmp/odd/" + name) == name
    assert sorted(e.name for e in f.list("/tmp/odd")) == sorted(names)
    batch = f.write_files([{"path": f"/tmp/batch/{n}", "data": n} for n in ("x", 'y"', "z\n")])
    assert [b.path for b in batch] == ["/tmp/batch/x", '/tmp/batch/y"', "/tmp/batch/z\n"], batch
    assert f.make_dir("/tmp/deep/er/still") is True and f.make_dir("/tmp/deep") is False
    f.write("/tmp/deep/er/file", "")
    assert [e.path for e in f.list("/tmp/deep")] == ["/tmp/deep/er"]
    assert [e.path for e in f.list("/tmp/deep", depth=2)] == ["/tmp/deep/er", "/tmp/deep/er/file", "/tmp/deep/er/still"]
    assert f.rename("/tmp/deep/er/file", "/tmp/else/where").path == "/tmp/else/where" and not f.exists("/tmp/deep/er/file")
    s.commands.run("ln -s where /tmp/else/link; mkfifo /tmp/fifo")
    link = f.get_info("/tmp/else/link")
    assert link.type == FileType.SYMLINK and link.symlink_target == "/tmp/else/where", link
    f.remove("/tmp/deep")
    f.remove("/tmp/else/link")
    assert not f.exists("/tmp/deep") and f.exists("/tmp/else/where"), "a link is removed, not what it points to"
    f.write("/tmp/theirs/f", "x", user="nobody")
    assert s.commands.run("stat -c %U /tmp/theirs /tmp/theirs/f").stdout == "nobody\nnobody\n"
    refused("a file that is not there", FileNotFoundException, lambda: f.read("/tmp/nothing"))
    refused("a directory as a file", InvalidArgumentException, lambda: f.read("/tmp"))
    refused("a FIFO as a file", InvalidArgumentException, lambda: f.read("/tmp/fifo"))
    refused("a file as a directory", SandboxException, lambda: f.list("/tmp/else/where"))
    refused("a directory that is not there", NotFoundException, lambda: f.list("/tmp/nothing"))
    refused("a rename of nothing", NotFoundException, lambda: f.rename("/tmp/nothing", "/tmp/x"))
    refused("metadata", InvalidArgumentException, lambda: f.write("/tmp/m", "x", metadata={"a": "b"}))
    refused("a compressed upload", SandboxException, lambda: f.write("/tmp/z", "x" * 1000, gzip=True))
    assert "processor" in f.read("/proc/cpuinfo"), "a file without a size"


@check
def git(s):
    s.git.init("/tmp/repository")
    s.files.write("/tmp/repository/new", "1")
    assert [f.name for f in s.git.status("/tmp/repository").file_status] == ["new"]


@check
def absent(s):
    """What is not supported is refused by name, and nobody is sent to a service of E2B's instead."""
    for what, f in {
        "create_snapshot": s.create_snapshot,
        "list_snapshots": lambda: s.list_snapshots().next_items(),
        "delete_snapshot": lambda: Sandbox.delete_snapshot("x"),
        "fork": s.fork,
        "update_network": lambda: s.update_network({"deny_out": ["0.0.0.0/0"]}),
        "auto_resume": lambda: Sandbox.create(lifecycle={"on_timeout": "pause", "auto_resume": True}),
        "Volume.create": lambda: Volume.create("x"),
        "Secret.create": lambda: Secret.create("x", "y"),
        "Template.build": lambda: Template.build(Template().from_image("debian"), alias="x"),
    }.items():
        e = refused(what, Exception, f)
        assert "not supported" in str(e), (what, e)
    for host in (s.get_host(3000), httpx.URL(s.get_mcp_url()).host):
        assert host.endswith(".not-served-here.set-e2b-sandbox-url.invalid"), host
    refused("get_mcp_token", FileNotFoundException, s.get_mcp_token)
    for answer in (httpx.get(s.download_url("/etc/hosts")), httpx.post(s.upload_url("/tmp/x"), files={"file": b"x"})):
        assert answer.status_code == 501 and "signed URLs are not supported" in answer.json()["message"], answer.text


@check
def slips(s):
    """What a newcomer gets wrong, and what the SDK then tells them."""
    url = os.environ["E2B_API_URL"]
    root = url.removesuffix("/e2b")

    def elsewhere(api, sandbox):
        wrong = Sandbox.create(timeout=60, api_url=api, sandbox_url=sandbox)
        try:
            wrong.commands.run("true")
        finally:
            Sandbox.kill(wrong.sandbox_id)

    for what, api, sandbox in (("no /e2b", root, root), ("no /e2b for sandboxes", url, root), ("a slash more", url, url + "/")):
        e = refused(what, SandboxException, lambda api=api, sandbox=sandbox: elsewhere(api, sandbox))
        assert "end with it" in str(e), (what, e)
    e = refused("a key of E2B's", AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    assert "unknown token" in str(e) and "sandboxd token new" in str(e), e


@check
def streams(s):
    """A large file up and down, without either side having it in memory."""
    size = 64 << 20
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile() as tmp:
        digest = hashlib.sha256()
        for _ in range(size // len(block)):
            tmp.write(block)
            digest.update(block)
        tmp.seek(0)
        s.files.write("/tmp/large", tmp)
    assert s.commands.run("sha256sum </tmp/large").stdout.split()[0] == digest.hexdigest()
    back = hashlib.sha256()
    for part in s.files.read("/tmp/large", format="stream"):
        back.update(part)
    assert back.hexdigest() == digest.hexdigest()
    s.files.remove("/tmp/large")


@check
def watch(s):
    s.files.make_dir("/tmp/watched/sub")
    w = s.files.watch_dir("/tmp/watched", recursive=True, include_entry=True)
    seen = []

    def sees(name, kind):
        def look():
            seen.extend(w.get_new_events())
            return any(e.name == name and e.type == kind for e in seen)

        until(f"{kind} of {name}, of {seen}", look)

    s.files.write("/tmp/watched/a", "1")
    sees("a", FilesystemEventType.CREATE)
    s.files.write("/tmp/watched/a", "2")
    sees("a", FilesystemEventType.WRITE)
    s.commands.run("chmod 600 /tmp/watched/a")
    sees("a", FilesystemEventType.CHMOD)
    s.files.rename("/tmp/watched/a", "/tmp/watched/sub/b")
    sees("a", FilesystemEventType.RENAME)
    sees("sub/b", FilesystemEventType.CREATE)
    s.files.remove("/tmp/watched/sub/b")
    sees("sub/b", FilesystemEventType.REMOVE)
    assert any(e.entry and e.entry.path == "/tmp/watched/a" for e in seen), seen
    w.stop()
    refused("a directory that is not there", NotFoundException, lambda: s.files.watch_dir("/tmp/nothing"))


def main():
    s = Sandbox.create(timeout=300, metadata={"job": "7 a&b=c", "ü": "ö"})
    try:
        for f in checks:
            began = time.monotonic()
            f(s)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f} s", flush=True)
    finally:
        s.kill()


if __name__ == "__main__":
    sys.exit(main())
