#!/usr/bin/env python3
"""Runs a test in a sandbox by E2B's SDK; a person may answer what it asks. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY as docs/how-to/e2b.md says."""

from e2b import CommandExitException, PtySize, Sandbox

with Sandbox.create(timeout=300, metadata={"job": "example"}) as sandbox:
    sandbox.files.write("job/test.sh", "echo checking\ntest -e done && echo ok\n")
    try:
        sandbox.commands.run("sh test.sh", cwd="/root/job")
    except CommandExitException as e:
        print("exit code", e.exit_code)
    sandbox.files.write("job/done", "")
    print(sandbox.commands.run("sh test.sh", cwd="/root/job").stdout, end="")
    # A terminal is a session: ssh NAME~pty-1@sbx shows it, and Ctrl-] t takes its keyboard.
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"echo $((6 * 7)) in a terminal; exit\n")
    shown = b"".join(data for _, _, data in terminal if data)
    print("42 in a terminal" if b"42 in a terminal" in shown else shown)
