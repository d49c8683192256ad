#!/usr/bin/env python3
"""Who needs a person, by HTTP: sandboxes.py URL TOKEN prints what each session asks, and the end of what its terminal shows."""

import sys

import requests

if len(sys.argv) != 3:
    sys.exit(__doc__)
url, token = sys.argv[1:]
door = requests.Session()
door.headers["Authorization"] = f"Bearer {token}"


def look(path):
    answer = door.get(f"{url}/v1/{path}", timeout=30)
    if not answer.ok:  # a problem document (RFC 9457): detail says what is wrong, hint what to do
        problem = answer.json()
        sys.exit(f"{problem['detail']}\n{problem.get('hint', '')}")
    return answer


for sandbox in look("sandboxes").json()["sandboxes"]:
    name = sandbox["name"]
    print(name, sandbox["state"])
    for need in sandbox["needs"]:
        if not need["needs"]:
            continue
        print(" ", need["session"], need["needs"], need["last_line"])
        screen = look(f"sandboxes/{name}/sessions/{need['session']}/screen").json()
        print("   ", screen["text"].rstrip().splitlines()[-1].rstrip())
