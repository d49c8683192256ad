# Marks for POSIX shells (dash, busybox ash): read once, from a pipe that only this shell holds. There is no
# PROMPT_COMMAND here: the prompts print the marks, by parameter and arithmetic expansion alone, without a fork.
# A nested shell that inherits PS1 does not know __sbx_k and shows the user's prompt alone.
exec 9<&-

__sbx_k=@NONCE@ __sbx_n=0 __sbx_rc=0 __sbx_host=@HOSTNAME@
__sbx_d= __sbx_x=0 __sbx_i= # what runs the command that came, its status, and its first line
__sbx_m= __sbx_o= # page faults of ended children when the command began; modes that are meant
__sbx_1='${__sbx_k+@ESC@]7337;A;$__sbx_k;$((__sbx_n=__sbx_n+1));$?;0;$PWD;$__sbx_k@BEL@}'
__sbx_2='${__sbx_k+@ESC@]7337;B;$__sbx_k;$__sbx_n@BEL@}'
__sbx_3='${__sbx_k+@ESC@]7337;E;$__sbx_k;$__sbx_n@BEL@}'
__sbx_ash=
if (__sbx_p=a && eval '[ "${__sbx_p//a/b}" = b ]') 2>/dev/null; then
	# Busybox, told by what dash cannot do. Its line editor measures the prompt, and reads backslashes in it.
	__sbx_ash=1
	__sbx_1='\[${__sbx_k+@ESC@]7337;A;$__sbx_k;$((__sbx_n=__sbx_n+1));$?;0;${PWD//\\/\\\\};$__sbx_k@BEL@}\]'
	__sbx_2="\\[$__sbx_2\\]"
	__sbx_3="\\[$__sbx_3\\]"
else
	# ^C typed before the first prompt ends what a start-up file runs, and not the reading of this file. Busybox would
	# not end the program either.
	trap : INT
fi

# Put our parts back around PS1 and PS2.
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

# Take $1 out of __sbx_p, wherever it stands.
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

# Print a mark: of kind $1, with more fields in $2. The terminal may let nobody open it, and /dev/tty be a file.
__sbx_t() {
	[ -c /dev/tty ] && command printf '\033]7337;%s;%s;%s%s\007' "$1" "$__sbx_k" "$__sbx_n" "${2-}" >/dev/tty ||
		{ [ -t 0 ] && command printf '\033]7337;%s;%s;%s%s\007' "$1" "$__sbx_k" "$__sbx_n" "${2-}" >&0; }
}

# Look at the command. Its first line, "#sbx NUMBER", says which it is: none is run twice, nor what somebody else put
# there, nor one whose start a command of the user's own would not print.
__sbx_r() {
	__sbx_rc=$? __sbx_x=0
	IFS= read -r __sbx_p <@FDDIR@/@COMMANDFD@ || __sbx_p=
	__sbx_d='. @FDDIR@/@COMMANDFD@'
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
	__sbx_kids
	__sbx_t C ";run;${__sbx_i#* }"
	return "$__sbx_rc"
}

# Make the terminal usable again, which a program left raw or silent. As a look costs a process, only after a failure or
# when children have ended since the command began. What the shell's own stty set without a failure is meant to stay: its
# place is then among those that the shell remembers.
__sbx_tty() {
	__sbx_p=$__sbx_m
	__sbx_kids
	[ "$__sbx_rc" = 0 ] && [ "$__sbx_p" = "$__sbx_m" ] && return
	__sbx_q=
	case $(stty -a </dev/tty) in
	*-icanon*|*-isig*|*-opost*|*' -echo '*)
		__sbx_q=$(stty -g </dev/tty)
		case $__sbx_rc$(hash):$(command -v stty) in
		0*/stty*:* | 0*:stty) ;; # which it does not of what is built in
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

# Page faults of ended children, into __sbx_m.
__sbx_kids() {
	IFS=' ' read -r __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_m __sbx_q </proc/self/stat
}

# It is over. The file ends by keeping the command's status in __sbx_x, lest set -e, which has seen it already, takes
# it for a second failure.
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
