# shellcheck shell=bash
# Shared by the scripts in this folder; to be sourced. It shows progress, becomes root where
# that is needed, and installs Debian packages.

say() { printf '%s\n' "$*"; }

die() {
	printf '%s: %s\n' "${0##*/}" "$1" >&2
	shift
	[[ $# -eq 0 ]] || printf '  %s\n' "$@" >&2
	exit 1
}

# as_root runs a command as root. Whoever is not root needs sudo.
as_root() {
	if [[ $(id -u) -eq 0 ]]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -- "$@"
	else
		die "needs root for: $*" "run it as root, or install sudo"
	fi
}

# steps N announces how many steps follow.
steps() { step_total=$1 step_number=0; }

# step TITLE COMMAND… runs the command (a function, too) with its output in a log. A terminal
# shows the seconds as they pass, anything else gets a line now and then. When the command
# fails the end of its log is printed and the script ends. An interrupt lets the step end, since
# half an installation is worse than none or a whole one, and then ends the script.
step() {
	local title=$1 log started elapsed pid last status=0 interrupted=''
	shift
	trap 'interrupted=1; say " interrupted: ends when this step is through"' INT TERM
	step_number=$((step_number + 1))
	log=$(mktemp "${TMPDIR:-/tmp}/sandboxd-setup.XXXXXX")
	started=$SECONDS
	# In a subshell with its own -e: "set -e" is off in whatever runs under "||".
	(set -e; "$@") >"$log" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		elapsed=$((SECONDS - started))
		if [[ -t 1 ]]; then
			printf '\r%d/%d %s %d s…\033[K' "$step_number" "$step_total" "$title" "$elapsed"
		elif ((elapsed > 0 && elapsed % 10 == 0)); then
			say "$step_number/$step_total $title $elapsed s…"
		fi
		sleep 1 &
		# Ends with the step or after a second, whichever is first.
		wait -n "$pid" $! 2>/dev/null || true
	done
	wait "$pid" || status=$?
	trap - INT TERM
	elapsed=$((SECONDS - started))
	[[ ! -t 1 ]] || printf '\r\033[K'
	if ((status != 0)); then
		say "$step_number/$step_total $title failed after $elapsed s"
		tail -n 30 "$log" | sed 's/^/  | /' >&2
		die "$title failed (exit $status)" "the whole log: $log"
	fi
	last=$(tail -n 1 "$log")
	rm -f "$log"
	say "$step_number/$step_total $title: ${last:-done} ($elapsed s)"
	[[ -z $interrupted ]] || exit 130
}

# retry N COMMAND… runs the command until it succeeds, at most N times, with growing pauses.
retry() {
	local left=$1 pause=2
	shift
	until "$@"; do
		left=$((left - 1))
		((left > 0)) || return 1
		say "again in $pause s: $*"
		sleep "$pause"
		pause=$((pause * 3))
	done
}

# apt_get is apt-get that asks nothing, waits for another one's lock, and keeps changed
# configuration files.
apt_get() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold "$@"
}

# missing_packages prints those of the given Debian packages that are not installed.
missing_packages() {
	local name
	for name; do
		[[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
	done
}

# install_packages NAME… installs what is not there yet. No service is started by it:
# a policy-rc.d of ours, or a machine's own, stands in the way until the packages are set up.
install_packages() {
	local -a missing
	mapfile -t missing < <(missing_packages "$@")
	if ((${#missing[@]} == 0)); then
		say "nothing to install"
		return
	fi
	command -v apt-get >/dev/null || die "this is not Debian: cannot install ${missing[*]}" \
		"install them with this system's package manager, then run me again"
	refresh_lists
	# In a subshell, so that our policy goes when it ends, however it ends.
	(
		policy=/usr/sbin/policy-rc.d
		if [[ ! -e $policy ]]; then
			trap 'as_root rm -f "$policy"' EXIT
			printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin "$policy"
		fi
		retry 3 apt_get install --no-install-recommends "${missing[@]}"
	)
	say "installed ${missing[*]}"
}

# refresh_lists fetches the package lists. A third-party source that is down must not stop us:
# the installation will say what is missing.
refresh_lists() { retry 3 apt_get update || say "some package lists could not be fetched"; }

# debian_mirror prints the mirror that this machine has Debian 12 from, if it has one.
debian_mirror() {
	# shellcheck disable=SC2016 # apt's own
	apt-get indextargets --format '$(REPO_URI) $(COMPONENT) $(ORIGIN) $(RELEASE)' 'Identifier: Packages' |
		awk '$2 == "main" && ($3 == "" || $3 == "Debian" || $3 ~ /^\$/) && $4 == "bookworm" && !n++ { print $1 }'
}

# write_share PROGRAM DIR writes what PROGRAM generates to be installed as share: manual pages and
# completions.
write_share() {
	local program=$1 share=$2
	install -d "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" \
		"$share/fish/vendor_completions.d"
	"$program" man "$share/man/man1"
	"$program" completion bash >"$share/bash-completion/completions/sandboxd"
	"$program" completion zsh >"$share/zsh/site-functions/_sandboxd"
	"$program" completion fish >"$share/fish/vendor_completions.d/sandboxd.fish"
}
