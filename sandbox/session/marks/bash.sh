# Marks for bash. The shell reads this file once, from a pipe that only this shell has.
#
# Every mark needs the nonce, __sbx_k. It is a plain variable, so that prompts expand it without a
# fork, and never exported. Prompts test it (${__sbx_k+…}), so that a nested shell that inherits PS1
# shows only the user's prompt.
#
# No assignment here is a word of a command (local x=1): set -k would put it into the command's
# environment. None is to a variable that may be read-only: that would end the line.
exec 9<&-
trap : INT # ^C typed before the first prompt ends what a start-up file runs, not this file

__sbx_k=@NONCE@ __sbx_host=@HOSTNAME@ # the nonce; the name to show for \h
__sbx_n=0                             # number of the current prompt, the counter of the marks
__sbx_h=0                             # 1: __sbx_z has printed the prompt-start mark of this prompt
__sbx_s=0                             # 1: __sbx_a ran first, so __sbx_rc is the last status
__sbx_rc=0
__sbx_c= __sbx_x=0 __sbx_i=           # the command from the descriptor, its status, its first line
__sbx_u=                              # $_ after it
__sbx_void=/dev/null                   # a typed line has no path
__sbx_m=- __sbx_o=                    # page faults at the command's start; modes set on purpose
__sbx_ps1= __sbx_w0=- __sbx_w1=- __sbx_w2=- # the user's PS1; PS0, PS1, PS2 as we last set them
export -n __sbx_k __sbx_c

# What we add before and after PS1, after PS2, and before PS0. PS1 prints the prompt-start mark if
# another program has overwritten PROMPT_COMMAND. That mark has no cwd, which may contain text whose
# width readline cannot measure.
__sbx_1='\[${__sbx_k+\e]7337;A;$__sbx_k;$((__sbx_n+=1-__sbx_h));$?;$((__sbx_h=0));;$__sbx_k\a}\]'
__sbx_2='\[${__sbx_k+\e]7337;B;$__sbx_k;$__sbx_n\a}\]'
__sbx_3='\[${__sbx_k+\e]7337;E;$__sbx_k;$__sbx_n\a}\]'
__sbx_0='${__sbx_k+\e]7337;C;$__sbx_k;$__sbx_n\a}'

# What we add before and after PROMPT_COMMAND. The redirection hides set -x and DEBUG traps. The &&
# hides the returned status from set -e and ERR traps. __sbx_y replaces an old part of ours between
# other commands. The function names are in variables, because a nested shell that inherits
# PROMPT_COMMAND does not have the functions.
__sbx_va=__sbx_a __sbx_vz=__sbx_z __sbx_vy=__sbx_y
__sbx_ea='{ "${__sbx_va-:}"&&:;}>/dev/null 2>&1'
__sbx_ez='{ "${__sbx_vz-:}"&&:;}>/dev/null 2>&1'
__sbx_ey='{ "${__sbx_vy-:}"&&:;}>/dev/null 2>&1'

__sbx_y() { return $?; }

# Print a mark of kind $1, with more fields in $2. Opening the terminal may not be allowed, and
# /dev/tty may be a file.
__sbx_p() {
	[[ -c /dev/tty ]] && builtin printf '\e]7337;%s;%s;%s%s\a' "$1" "$__sbx_k" "$__sbx_n" "${2-}" >/dev/tty ||
		{ [[ -t 0 ]] && builtin printf '\e]7337;%s;%s;%s%s\a' "$1" "$__sbx_k" "$__sbx_n" "${2-}" >&0; }
}

# Reset the terminal if a program left it raw or without echo. The check starts a process, so it
# happens only after a failure, or if children have ended since the command began. Modes that the
# shell's own stty set stay, if the command did not fail: then bash has stty in its hash table.
__sbx_tty() {
	local m t
	m=$__sbx_m t=
	__sbx_kids
	if ((__sbx_rc)) || [[ $m != "$__sbx_m" ]]; then
		case $(stty -a </dev/tty) in
		*-icanon*|*-isig*|*-opost*|*' -echo '*)
			t=$(stty -g </dev/tty)
			if ((__sbx_rc)) || [[ -z ${BASH_CMDS[stty]-} && $t != "$__sbx_o" ]]; then
				t=
				stty sane </dev/tty
			fi
		esac
		__sbx_o=$t
		builtin hash -d stty
	fi
}

__sbx_kids() {
	local a
	builtin read -r a </proc/self/stat
	a=${a##*) }
	a=${a#* * * * * * * * }
	__sbx_m=${a%% *}
}

# First in PROMPT_COMMAND: the command has ended. Print nothing if another command ran before this
# one, because $? is not the command's then. PS1 still knows the status.
__sbx_a() {
	__sbx_rc=$? __sbx_s=0 __sbx_c=
	__sbx_tty
	if [[ ${PROMPT_COMMAND-} == "$__sbx_ea"* ]]; then
		__sbx_s=1
		[[ $__sbx_n == 0 ]] || __sbx_p D ";$__sbx_rc"
	fi
	return "$__sbx_rc"
}

# Last in PROMPT_COMMAND, after commands there that set PS1.
__sbx_z() {
	__sbx_q=$?
	__sbx_fix
	if [[ $__sbx_s == 1 ]]; then
		__sbx_s=0 __sbx_h=1
		: $((__sbx_n += 1))
		__sbx_p A ";$__sbx_rc;0;$PWD;$__sbx_k"
	fi
	__sbx_kids
	return "$__sbx_q"
}

# Succeed if the variable $1 is read-only. Before bash 4.4, bash cannot tell.
__sbx_ro() { ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) && [[ -v $1 && ${!1@a} == *r* ]]; }

# Add our parts to the prompts and to PROMPT_COMMAND again, around their current values.
__sbx_fix() {
	if [[ ${PS1-} != "$__sbx_w1" ]]; then
		local p q
		p=${PS1-} q=
		p=${p//"$__sbx_1"/}
		p=${p//"$__sbx_2"/}
		if [[ -n $__sbx_host ]]; then
			while [[ $p == *\\* ]]; do
				q+=${p%%\\*} p=${p#*\\}
				case $p in
				[hH]*) q+=$__sbx_host p=${p#?} ;;
				*) q+=\\${p:0:1} p=${p:1} ;;
				esac
			done
			p=$q$p
		fi
		__sbx_ps1=$p
		builtin shopt -q promptvars && p=$__sbx_1$p$__sbx_2
		__sbx_ro PS1 || PS1=$p
		__sbx_w1=${PS1-}
	fi
	if [[ ${PS2-} != "$__sbx_w2" ]]; then
		local p
		p=${PS2-}
		p=${p//"$__sbx_3"/}
		builtin shopt -q promptvars && p=$p$__sbx_3
		__sbx_ro PS2 || PS2=$p
		__sbx_w2=${PS2-}
	fi
	if [[ ${PS0-} != "$__sbx_w0" ]]; then
		local p
		p=${PS0-}
		p=${p//"$__sbx_0"/}
		builtin shopt -q promptvars && p=$__sbx_0$p
		__sbx_ro PS0 || PS0=$p
		__sbx_w0=${PS0-}
	fi

	local u last
	u=${PROMPT_COMMAND-} last=0
	if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)) && [[ -n $u && ${PROMPT_COMMAND@a} == *a* ]]; then
		last=-1 # before 5.1, bash runs only the first element of an array
	fi
	[[ $u == "$__sbx_ea"* && ${PROMPT_COMMAND[last]-} == *"$__sbx_ez" ]] && return
	! __sbx_ro PROMPT_COMMAND || return
	if [[ $last == 0 ]]; then
		__sbx_clean u
		PROMPT_COMMAND=$__sbx_ea$'\n'${u:+$u$'\n'}$__sbx_ez
		return
	fi
	local all
	all=("$__sbx_ea")
	for u in "${PROMPT_COMMAND[@]}"; do
		__sbx_clean u
		[[ -n $u ]] && all+=("$u")
	done
	PROMPT_COMMAND=("${all[@]}" "$__sbx_ez")
}

# Remove our own lines from the variable named $1.
__sbx_clean() {
	local t
	t=${!1}
	t=${t//"$__sbx_ea"/"$__sbx_ey"}
	t=${t//"$__sbx_ez"/"$__sbx_ey"}
	while [[ $t == "$__sbx_ey"$'\n'* ]]; do t=${t#"$__sbx_ey"$'\n'}; done
	while [[ $t == *$'\n'"$__sbx_ey" ]]; do t=${t%$'\n'"$__sbx_ey"}; done
	[[ $t == "$__sbx_ey" ]] && t=
	builtin printf -v "$1" %s "$t"
}

# Run, first part: read the command, and put it into the history instead of the typed line. Its
# first line, "#sbx NUMBER NEWLINES", has its number and how many newlines end it. Run no number
# twice, no other content, and nothing if printf cannot print the start mark.
__sbx_r() {
	__sbx_q=$?
	local IFS a t
	__sbx_ro IFS || IFS=
	__sbx_c= __sbx_x=$__sbx_q
	@READ@
	a=${t%%$'\n'*}
	if [[ $a != '#sbx '* || $a == "$__sbx_i" ]] || ! builtin printf ''; then
		__sbx_p U
		return "$__sbx_q"
	fi
	__sbx_i=$a
	__sbx_c=${t#*$'\n'}
	[[ ! -o history ]] || builtin history -s -- "${__sbx_c:0:${#__sbx_c}-${a##* }}"
	__sbx_ro PS1 || PS1=$__sbx_ps1
	# The eval prints the mark, so that it comes after what set -x and DEBUG traps print about the
	# typed line. The last line makes the eval succeed. Otherwise set -e and ERR traps, which have
	# already seen the command's status, would see a second failure.
	__sbx_x=0
	__sbx_c='{ __sbx_g "$_"&&: "$_";}>/dev/null 2>&1'$'\n'$__sbx_c$'\n\n{ __sbx_x=$? __sbx_u=$_;}>/dev/null 2>&1'
	builtin export -n __sbx_c # set -a exports every assignment, but an environment is limited
	return "$__sbx_q"
}

# Run, second part: the command starts. If it is interrupted, the rest of this line must not run it
# again.
__sbx_g() {
	__sbx_q=$?
	local t
	t=${__sbx_i#* }
	__sbx_c=
	builtin export -n __sbx_c
	__sbx_kids
	__sbx_p C ";run;${t%% *}"
	return "$__sbx_q"
}

# Run, last part: $? is the command's again. Print the end mark if PROMPT_COMMAND, which may be
# read-only, does not.
__sbx_f() {
	__sbx_q=$?
	((__sbx_q)) || __sbx_q=$__sbx_x
	__sbx_c= __sbx_u=
	__sbx_fix
	[[ ${PROMPT_COMMAND-} == "$__sbx_ea"* ]] || __sbx_p D ";$__sbx_q"
	return "$__sbx_q"
}

@STARTUP@
[[ $(trap -p INT) != "trap -- ':' SIGINT" ]] || trap - INT
{ __sbx_fix && :; } >/dev/null 2>&1

# The key that clears a half typed line, in every keymap.
{
	builtin bind -m emacs-standard '"@KEY@": kill-whole-line' &&
		builtin bind -m vi-insert '"@KEY@": kill-whole-line' &&
		builtin bind -m vi-command '"@KEY@": "i@KEY@"' && :
} >/dev/null 2>&1
