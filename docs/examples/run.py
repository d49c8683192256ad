#!/usr/bin/env python3
"""Runs Python that a model wrote, by POST /v1/run/: run.py URL TOKEN <code.py"""

import sys

import requests

if len(sys.argv) != 3:
    sys.exit(__doc__)
url, token = sys.argv[1:]
answer = requests.post(f"{url}/v1/run/", json={"code": sys.stdin.read()}, headers={"Authorization": f"Bearer {token}"}, timeout=900)
if not answer.ok:  # a problem document (RFC 9457): detail says what is wrong, hint what to do
    problem = answer.json()
    sys.exit(f"{problem['detail']}\n{problem.get('hint', '')}")
result = answer.json()
print(result["output"], end="")
for made in result["artifacts"]:
    if "url" in made:
        file = requests.get(url + made["url"], headers={"Authorization": f"Bearer {token}"}, timeout=60)
        file.raise_for_status()
        print(f"{made['name']}: {len(file.content)} bytes")
if result["status"] != "ok":
    sys.exit(f"status: {result['status']}")
