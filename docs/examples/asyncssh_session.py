#!/usr/bin/env python3
"""Works in several sessions of a sandbox at once by SSH alone, with asyncssh: asyncssh_session.py HOST PORT IDENTITY KNOWN_HOSTS"""

import asyncio
import json
import shlex
import sys

import asyncssh


async def main(host, port, identity, known_hosts):
    async with asyncssh.connect(host, int(port), username="sandboxd", client_keys=[identity], known_hosts=known_hosts, config=None) as gateway:

        async def command(*words, check=True):
            return await gateway.run(shlex.join(words), check=check)

        await command("new", "asyncssh", "--if-missing")

        async def work(session, text):
            done = await command("run", "--json", "-n", f"asyncssh~{session}", "--", text, check=False)
            return session, done.exit_status, json.loads(done.stdout)["output"].strip()

        jobs = [work("one", "sleep 0.2; echo 1"), work("two", "echo 2"), work("three", "echo 3; false")]
        for session, code, output in await asyncio.gather(*jobs):
            print(session, code, output)
        await command("rm", "-f", "asyncssh")


if len(sys.argv) != 5:
    sys.exit(__doc__)
asyncio.run(main(*sys.argv[1:]))
