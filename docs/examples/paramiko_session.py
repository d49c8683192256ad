#!/usr/bin/env python3
"""Works in a session by SSH alone, with paramiko: paramiko_session.py HOST PORT IDENTITY KNOWN_HOSTS

Each command of the table is a command on the gateway; --json makes its answer one object."""

import json
import shlex
import sys

import paramiko

if len(sys.argv) != 5:
    sys.exit(__doc__)
host, port, identity, known_hosts = sys.argv[1:]
client = paramiko.SSHClient()
client.load_host_keys(known_hosts)  # any other key is refused: that is paramiko's default
client.connect(host, int(port), username="sandboxd", key_filename=identity, look_for_keys=False, allow_agent=False)


def command(*words):
    """Runs a command of the table. Its exit code says how it ended; 123 is a question."""
    _, out, err = client.exec_command(shlex.join(words))
    text, said = out.read().decode(), err.read().decode()
    return out.channel.recv_exit_status(), text, said


with client:
    code, _, said = command("new", "paramiko", "--if-missing")
    if code != 0:
        sys.exit(said)
    code, text, _ = command("run", "--json", "-n", "paramiko", "--", "read -p 'your name? ' name; echo hello $name")
    result = json.loads(text)
    print(code, result["ended"], result["prompt"])  # it asks, and somebody who joins by ssh sees it, too
    code, text, _ = command("type", "--json", "-n", "paramiko", "ada")
    result = json.loads(text)
    print(code, result["ended"], result["exit_code"], result["output"].strip().splitlines()[-1])
    command("rm", "-f", "paramiko")
