# What programs do with paramiko. Arguments: port, key, known_hosts, a file, the port of the web server there.
import io
import logging
import sys

import paramiko

log = io.StringIO()
logging.getLogger("paramiko").addHandler(logging.StreamHandler(log))
port, key, known, up, web = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
data = open(up, "rb").read()
c = paramiko.SSHClient()
c.load_host_keys(known)
c.connect("127.0.0.1", port=port, username="demo", key_filename=key, allow_agent=False, look_for_keys=False)
c.get_transport().set_keepalive(1)

i, o, e = c.exec_command("cat; echo wrong >&2; exit 7")
i.write("x\n")
i.channel.shutdown_write()
assert o.read() == b"x\n"
assert e.read() == b"wrong\n"
assert o.channel.recv_exit_status() == 7

# One wait for each answer, step by step, as libraries do.
ch = c.get_transport().open_session()
ch.get_pty("xterm", 100, 40)
ch.exec_command("stty size; exit 130")
out = b""
while True:
    b = ch.recv(4096)
    if not b:
        break
    out += b
assert out == b"40 100\r\n", out
assert ch.recv_exit_status() == 130

s = c.open_sftp()
s.put(up, "paramiko")  # compares the size afterwards
f = io.BytesIO()
s.getfo("paramiko", f)
assert f.getvalue() == data
assert s.stat("paramiko").st_size == len(data)
s.remove("paramiko")

ch = c.get_transport().open_channel("direct-tcpip", ("127.0.0.1", web), ("127.0.0.1", 1))
ch.sendall(b"GET /up HTTP/1.0\r\n\r\n")
ch.shutdown_write()
out = b""
while True:
    b = ch.recv(65536)
    if not b:
        break
    out += b
assert out.partition(b"\r\n\r\n")[2] == data

try:
    c.get_transport().open_channel("direct-tcpip", ("127.0.0.1", 9), ("127.0.0.1", 1))
    raise AssertionError("connected to nobody")
except paramiko.ChannelException as refused:
    assert refused.code == 2, refused  # CONNECT_FAILED; the reason goes to the log alone
    assert "connection refused" in log.getvalue().lower(), log.getvalue()

# A forward back: whatever connects there speaks to us.
there = c.get_transport().request_port_forward("127.0.0.1", 0)
assert there > 0
i, o, e = c.exec_command("curl -sS http://127.0.0.1:%d/" % there)
ch = c.get_transport().accept(30)
got = b""
while b"\r\n\r\n" not in got:
    got += ch.recv(4096)
ch.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
ch.close()
assert o.read() == b"hello"
c.get_transport().cancel_port_forward("127.0.0.1", there)
c.close()
print("ok")
