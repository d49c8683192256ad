# What a JetBrains IDE does over its own SSH library, replayed with paramiko: all on one connection, many channels, some of
# them at once. Arguments: port, key, known_hosts, a file, the port of the web server there.
import sys

import paramiko

port, key, known, up, web = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
data = open(up, "rb").read()
c = paramiko.SSHClient()
c.load_host_keys(known)
c.connect("127.0.0.1", port=port, username="demo", key_filename=key, allow_agent=False, look_for_keys=False)
t = c.get_transport()


def run(command, terminal=False, stdin=b""):
    ch = t.open_session()
    if terminal:
        ch.get_pty("xterm-256color", 80, 24)
    ch.exec_command(command)
    ch.sendall(stdin)
    ch.shutdown_write()
    out = b"".join(iter(lambda: ch.recv(65536), b""))
    err = b"".join(iter(lambda: ch.recv_stderr(65536), b""))
    return out, err, ch.recv_exit_status()


# Questions, one command each.
assert run("echo $SHELL") == (b"/bin/bash\n", b"", 0)
assert run("uname -sm") == (b"Linux x86_64\n", b"", 0)
assert run("test -d .cache/RemoteDev") == (b"", b"", 1)
assert run("/bin/sh -c 'echo out; echo err >&2; exit 3'") == (b"out\n", b"err\n", 3)

# An upload, with its folder, mode and time.
s = t.open_sftp_client()
s.mkdir(".cache-jb")
s.mkdir(".cache-jb/dist")
s.putfo(open(up, "rb"), ".cache-jb/dist/backend", file_size=len(data))
s.chmod(".cache-jb/dist/backend", 0o755)
s.utime(".cache-jb/dist/backend", (1700000000, 1700000000))
st = s.stat(".cache-jb/dist/backend")
assert (st.st_size, st.st_mode & 0o777, st.st_mtime) == (len(data), 0o755, 1700000000), st
assert s.normalize(".") == "/root"
assert sorted(s.listdir(".cache-jb")) == ["dist"]

# A run configuration: a program in a terminal, whose exit code is exact; another without.
for code in (0, 1, 42, 130, 137, 143, 255):
    out, _, got = run("printf 'x\\n'; exit %d" % code, terminal=True)
    assert (out, got) == (b"x\r\n", code), (out, got)
    assert run("exit %d" % code)[2] == code

# A backend that stays, and connections to it while other channels work.
backend = t.open_session()
backend.exec_command("cat")
forwards = [t.open_channel("direct-tcpip", ("127.0.0.1", web), ("127.0.0.1", 0)) for _ in range(8)]
for ch in forwards:
    ch.sendall(b"GET /up HTTP/1.0\r\n\r\n")
backend.sendall(b"still here\n")
assert backend.recv(100) == b"still here\n"
for ch in forwards:
    out = b"".join(iter(lambda: ch.recv(65536), b""))
    assert out.partition(b"\r\n\r\n")[2] == data
    ch.close()
backend.shutdown_write()
assert backend.recv(100) == b"" and backend.recv_exit_status() == 0
assert run("rm -r .cache-jb") == (b"", b"", 0)
c.close()
print("ok")
