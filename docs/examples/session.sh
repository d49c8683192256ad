#!/bin/sh
# Works in a session with ssh and jq: session.sh CONFIG, an ssh configuration in which sbx is the gateway, such as ~/.ssh/config.
[ $# -eq 1 ] || { echo "session.sh CONFIG" >&2; exit 2; }
set -eu
on() { ssh -F "$config" sbx "$@"; }
config=$1

on new shell --if-missing >/dev/null
answer=$(on run --json -n shell -- "'echo begun; read -p sure? x; echo \$x; false'") || true
while [ "$(printf %s "$answer" | jq -r .ended)" = waiting ]; do
	echo "asked: $(printf %s "$answer" | jq -r .prompt)"
	answer=$(on type --json -n shell yes) || true
done
printf %s "$answer" | jq -r '"\(.ended) with \(.exit_code): \(.output | rtrimstr("\n") | split("\n") | last | rtrimstr("\r"))"'
on rm -f shell >/dev/null
