# What programs do with asyncssh. Arguments: port, key, known_hosts, a file, the port of the web server there, how many
# commands at once.
import asyncio
import os
import sys

import asyncssh

port, key, known, up, web = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
atonce = int(sys.argv[6])
data = open(up, "rb").read()


async def main():
    async with asyncssh.connect("127.0.0.1", port, username="demo", client_keys=[key], known_hosts=known, config=None, agent_path=None) as c:
        r = await c.run("cat; echo wrong >&2; exit 7", input=data, encoding=None)
        assert r.stdout == data and r.stderr == b"wrong\n" and r.exit_status == 7, (len(r.stdout), r.stderr, r.exit_status)

        r = await c.run("kill -TERM $$")
        assert r.exit_signal and r.exit_signal[0] == "TERM", r.exit_signal

        r = await c.run("stty size; exit 130", term_type="xterm", term_size=(100, 40))
        assert r.stdout == "40 100\r\n" and r.exit_status == 130, (r.stdout, r.exit_status)

        r = await c.run("echo $LC_TEST:$PATH_NOT", env={"LC_TEST": "a b", "PATH_NOT": "x"})
        assert r.stdout == "a b:\n", r.stdout

        many = await asyncio.gather(*(c.run("sleep 0.2; echo %d; exit %d" % (n, n)) for n in range(atonce)))
        assert [(r.stdout, r.exit_status) for r in many] == [("%d\n" % n, n) for n in range(atonce)]

        async with c.start_sftp_client() as s:
            await s.put(up, "asyncssh")
            await s.get("asyncssh", up + ".asyncssh")
            assert open(up + ".asyncssh", "rb").read() == data
            os.remove(up + ".asyncssh")
            assert (await s.stat("asyncssh")).size == len(data)
            await s.remove("asyncssh")

        r, w = await c.open_connection("127.0.0.1", web, encoding=None)
        w.write(b"GET /up HTTP/1.0\r\n\r\n")
        w.write_eof()
        assert (await r.read()).partition(b"\r\n\r\n")[2] == data

        try:
            await c.open_connection("127.0.0.1", 9)
            raise AssertionError("connected to nobody")
        except asyncssh.ChannelOpenError as refused:
            assert "refused" in refused.reason.lower(), refused.reason

        # Forwards, both ways: what goes out here comes in there.
        back = await c.forward_remote_port("127.0.0.1", 0, "127.0.0.1", port)
        r = await c.run("bash -c 'exec 3<>/dev/tcp/127.0.0.1/%d; echo SSH-2.0-x >&3; head -c 12 <&3'" % back.get_port())
        assert r.stdout.startswith("SSH-2.0-sand"), r.stdout
        back.close()
        await back.wait_closed()
        here = await c.forward_local_port("127.0.0.1", 0, "127.0.0.1", web)
        r, w = await asyncio.open_connection("127.0.0.1", here.get_port())
        w.write(b"GET /up HTTP/1.0\r\n\r\n")
        assert (await r.read()).partition(b"\r\n\r\n")[2] == data
        here.close()

        # A process that is talked to, then interrupted. OpenSSH's server passes no signals on for root.
        if atonce < 20:
            return
        p = await c.create_process("trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.1; done")
        assert await p.stdout.readline() == "ready\n"
        p.send_signal("INT")
        r = await p.wait()
        assert r.stdout == "caught\n" and r.exit_status == 3, (r.stdout, r.exit_status)


asyncio.run(main())
print("ok")
