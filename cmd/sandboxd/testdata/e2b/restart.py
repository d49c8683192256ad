"""restart.py before|after FILE: what is begun before the daemon is killed, and what is there of it afterwards."""

import json
import sys
import time

from e2b import NotFoundException, PtySize, Sandbox

when, file = sys.argv[1:]


def until(what, f):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if f():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within 20 s")


if when == "before":
    s = Sandbox.create(timeout=300, metadata={"kept": "1"})
    s.files.write("/tmp/kept", "1")
    command = s.commands.run("sleep 1000", background=True, timeout=0)
    pty = s.pty.create(PtySize(rows=24, cols=80), timeout=0)
    s.pty.send_stdin(pty.pid, b"X=still-here\n")
    with open(file, "w") as f:
        json.dump([s.sandbox_id, s.get_info().end_at.isoformat(), s._envd_access_token, command.pid, pty.pid], f)
    sys.exit()

with open(file) as f:
    name, end, access, command, pty = json.load(f)
s = Sandbox.connect(name)
assert s._envd_access_token == access
info = s.get_info()
assert info.end_at.isoformat() >= end and info.metadata == {"kept": "1"}, info
assert s.files.read("/tmp/kept") == "1"
pids = [p.pid for p in s.commands.list()]
assert pty in pids and command not in pids, pids
until("the command has ended", lambda: s.commands.run(f"kill -0 {command} 2>/dev/null || echo gone").stdout == "gone\n")
try:
    s.commands.connect(command)
    raise AssertionError("the command is there")
except NotFoundException:
    pass
terminal = s.pty.connect(pty)
s.pty.send_stdin(pty, b"echo $X-$((40 + 2)); exit\n")
text = b""
for _, _, data in terminal:
    text += data or b""
assert b"still-here-42" in text, text
s.set_timeout(1)
until("its end has come", lambda: not s.is_running())
