# Marks for POSIX shells (dash, busybox ash). The shell reads this file once, from a pipe that only
# this shell has. There is no PROMPT_COMMAND. So the prompts print the marks, by parameter and
# arithmetic expansion, without a fork. A nested shell that inherits PS1 does not have __sbx_k and
# shows only the user's prompt.
exec 9<&-

__sbx_k=@NONCE@ __sbx_n=0 __sbx_rc=0 __sbx_host=@HOSTNAME@
__sbx_void=/dev/null # a typed line has no path
__sbx_d= __sbx_x=0 __sbx_i= # what runs the command, its status, and its first line
__sbx_m= __sbx_o= # page faults of ended children at the command's start; modes set on purpose
__sbx_1='${__sbx_k+@ESC@]7337;A;$__sbx_k;$((__sbx_n=__sbx_n+1));$?;0;$PWD;$__sbx_k@BEL@}'
__sbx_2='${__sbx_k+@ESC@]7337;B;$__sbx_k;$__sbx_n@BEL@}'
__sbx_3='${__sbx_k+@ESC@]7337;E;$__sbx_k;$__sbx_n@BEL@}'
__sbx_ash=
if (__sbx_p=a && eval '[ "${__sbx_p//a/b}" = b ]') 2>/dev/null; then
	# Busybox: unlike dash, it can replace in expansions. Its line editor measures the prompt and
	# interprets backslashes in it.
	__sbx_ash=1
	__sbx_1='\[${__sbx_k+@ESC@]7337;A;$__sbx_k;$((__sbx_n=__sbx_n+1));$?;0;${PWD//\\/\\\\};$__sbx_k@BEL@}\]'
	__sbx_2="\\[$__sbx_2\\]"
	__sbx_3="\\[$__sbx_3\\]"
else
	# ^C typed before the first prompt ends what a start-up file runs, not this file. In busybox,
	# the trap would keep ^C from ending the program as well.
	trap : INT
fi

# Add our parts to PS1 and PS2 again.
__sbx_fix() {
	case ${PS1-} in
	"$__sbx_1"*"$__sbx_2") ;;
	*)
		__sbx_p=${PS1-}
		__sbx_strip "$__sbx_1"
		__sbx_strip "$__sbx_2"
		[ -z "$__sbx_host" ] || [ -z "$__sbx_ash" ] || __sbx_name
		PS1=$__sbx_1$__sbx_p$__sbx_2
		;;
	esac
	case ${PS2-} in
	*"$__sbx_3") ;;
	*)
		__sbx_p=${PS2-}
		__sbx_strip "$__sbx_3"
		PS2=$__sbx_p$__sbx_3
		;;
	esac
}

# Remove $1 from __sbx_p everywhere.
__sbx_strip() {
	while :; do
		case $__sbx_p in
		*"$1"*) __sbx_p=${__sbx_p%%"$1"*}${__sbx_p#*"$1"} ;;
		*) return 0 ;;
		esac
	done
}

# Replace \h and \H in __sbx_p by the sandbox's name.
__sbx_name() {
	__sbx_q=
	while :; do
		case $__sbx_p in
		*\\[hH]*) ;;
		*) break ;;
		esac
		__sbx_q=$__sbx_q${__sbx_p%%\\*}
		__sbx_p=${__sbx_p#*\\}
		case $__sbx_p in
		[hH]*) __sbx_q=$__sbx_q$__sbx_host __sbx_p=${__sbx_p#?} ;;
		*) __sbx_q=$__sbx_q\\${__sbx_p%"${__sbx_p#?}"} __sbx_p=${__sbx_p#?} ;;
		esac
	done
	__sbx_p=$__sbx_q$__sbx_p
}

# Print a mark of kind $1, with more fields in $2. Opening the terminal may not be allowed, and
# /dev/tty may be a file.
__sbx_t() {
	[ -c /dev/tty ] && command printf '\033]7337;%s;%s;%s%s\007' "$1" "$__sbx_k" "$__sbx_n" "${2-}" >/dev/tty ||
		{ [ -t 0 ] && command printf '\033]7337;%s;%s;%s%s\007' "$1" "$__sbx_k" "$__sbx_n" "${2-}" >&0; }
}

# Check the command. Its first line, "#sbx NUMBER", has its number. Run no number twice, no other
# content, and nothing if the user has redefined command, which prints the start mark.
__sbx_r() {
	__sbx_rc=$? __sbx_x=0
	@READ@
	__sbx_d='@EVAL@'
	case $__sbx_p in
	"$__sbx_i") ;;
	"#sbx "*)
		__sbx_i=$__sbx_p __sbx_p=
		command eval __sbx_p=1
		[ -z "$__sbx_p" ] || return 0
		;;
	esac
	__sbx_d= __sbx_x=$__sbx_rc
	__sbx_t U
}

# The command starts.
__sbx_g() {
	__sbx_d=
	__sbx_kids
	__sbx_t C ";run;${__sbx_i#* }"
	return "$__sbx_rc"
}

# Reset the terminal if a program left it raw or without echo. The check starts a process, so it
# happens only after a failure, or if children have ended since the command began. Modes that the
# shell's own stty set stay, if the command did not fail: then the shell has hashed stty.
__sbx_tty() {
	__sbx_p=$__sbx_m
	__sbx_kids
	[ "$__sbx_rc" = 0 ] && [ "$__sbx_p" = "$__sbx_m" ] && return
	__sbx_q=
	case $(stty -a </dev/tty) in
	*-icanon*|*-isig*|*-opost*|*' -echo '*)
		__sbx_q=$(stty -g </dev/tty)
		case $__sbx_rc$(hash):$(command -v stty) in
		0*/stty*:* | 0*:stty) ;; # stty is built in, which hash does not list
		*)
			if [ "$__sbx_rc" != 0 ] || [ "$__sbx_q" != "$__sbx_o" ]; then
				__sbx_q=
				stty sane </dev/tty
			fi
			;;
		esac
		;;
	esac
	__sbx_o=$__sbx_q
	hash -r
}

# Store the page faults of ended children in __sbx_m.
__sbx_kids() {
	IFS=' ' read -r __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_q </proc/self/stat
}

# The command has ended. The last line of the file stores the command's status in __sbx_x. Otherwise
# set -e, which has already seen it, would see a second failure.
__sbx_f() {
	__sbx_rc=$?
	[ "$__sbx_rc" != 0 ] || __sbx_rc=$__sbx_x
	__sbx_tty
	__sbx_fix
	return "$__sbx_rc"
}

@STARTUP@
[ -n "$__sbx_ash" ] || trap - INT
{ __sbx_fix && :; } >/dev/null 2>&1
