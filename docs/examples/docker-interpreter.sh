#!/bin/sh
# Runs Python from standard input as the tool DockerInterpreter does by default: a container of its own, 1 GiB of memory, no network, gone
# afterwards. The exit code is the code's own.
#
#   docker-interpreter.sh <code.py
set -eu
name=interpreter-$$
sandboxd new --image "${IMAGE:-sandboxd/python}" --memory 1g --network none "$name" >&2
trap 'sandboxd rm -f "$name" >&2' EXIT
sandboxd python -n "$name" --timeout "${TIMEOUT:-120s}" -
