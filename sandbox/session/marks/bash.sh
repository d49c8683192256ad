# Marks for bash: read once, from a pipe that only this shell holds.
#
# Every mark needs __sbx_k, the nonce. It is a plain variable because prompts expand it without a fork; it is never
# exported. Prompts test it (${__sbx_k+…}), so that a nested shell that inherits PS1 shows the user's prompt alone.
exec 9<&-
trap : INT # ^C typed before the first prompt ends what a start-up file runs, and not the reading of this file

__sbx_k=@NONCE@ __sbx_host=@HOSTNAME@ # the secret; the name to show for \h
__sbx_n=0                             # number of the present prompt, the counter of the marks
__sbx_h=0                             # 1: __sbx_z has printed the prompt-start mark of this prompt
__sbx_s=0                             # 1: __sbx_a ran first, so __sbx_rc is the status of the last command
__sbx_rc=0
__sbx_c= __sbx_x=0                    # the command that came on the command descriptor, and its status
__sbx_ps1= __sbx_w0=- __sbx_w1=- __sbx_w2=- # the user's PS1; PS0, PS1, PS2 as we last left them
export -n __sbx_k __sbx_c

# What PS1 begins and ends with, what PS2 ends with, what PS0 begins with. PS1 prints the prompt-start mark itself
# (without the cwd, which may hold what readline cannot measure) for when somebody overwrote PROMPT_COMMAND.
__sbx_1='\[${__sbx_k+\e]7337;A;$__sbx_k;$((__sbx_n+=1-__sbx_h));$?;$((__sbx_h=0));;$__sbx_k\a}\]'
__sbx_2='\[${__sbx_k+\e]7337;B;$__sbx_k;$__sbx_n\a}\]'
__sbx_3='\[${__sbx_k+\e]7337;E;$__sbx_k;$__sbx_n\a}\]'
__sbx_0='${__sbx_k+\e]7337;C;$__sbx_k;$__sbx_n\a}'

# What PROMPT_COMMAND begins and ends with. The redirection hides set -x and DEBUG traps; && keeps set -e and ERR
# traps from seeing that the function returns the status it found. __sbx_y takes the place of an old one between
# other people's commands. By way of variables, as a nested shell that inherits PROMPT_COMMAND has no such functions.
__sbx_va=__sbx_a __sbx_vz=__sbx_z __sbx_vy=__sbx_y
__sbx_ea='{ "${__sbx_va-:}"&&:;}>/dev/null 2>&1'
__sbx_ez='{ "${__sbx_vz-:}"&&:;}>/dev/null 2>&1'
__sbx_ey='{ "${__sbx_vy-:}"&&:;}>/dev/null 2>&1'

__sbx_y() { return $?; }

# Make the terminal usable again, which a crash left raw or silent. Only after a failure, as it costs a process.
__sbx_tty() {
	case $(stty -a </dev/tty) in
	*-icanon*|*-isig*|*-opost*|*' -echo '*) stty sane </dev/tty ;;
	esac
}

# First of PROMPT_COMMAND: the command is over. Says nothing where something ran before it, for then $? is not the
# command's; PS1 knows it still.
__sbx_a() {
	__sbx_rc=$? __sbx_s=0
	((__sbx_rc)) && __sbx_tty
	if [[ ${PROMPT_COMMAND-} == "$__sbx_ea"* ]]; then
		__sbx_s=1
		[[ $__sbx_n == 0 ]] || builtin printf '\e]7337;D;%s;%s;%s\a' "$__sbx_k" "$__sbx_n" "$__sbx_rc" >/dev/tty
	fi
	return "$__sbx_rc"
}

# Last of PROMPT_COMMAND, when whatever sets PS1 there has done so.
__sbx_z() {
	local rc=$?
	__sbx_fix
	if [[ $__sbx_s == 1 ]]; then
		__sbx_s=0 __sbx_h=1
		: $((__sbx_n += 1))
		builtin printf '\e]7337;A;%s;%s;%s;0;%s;%s\a' "$__sbx_k" "$__sbx_n" "$__sbx_rc" "$PWD" "$__sbx_k" >/dev/tty
	fi
	return "$rc"
}

# Put our parts back into the prompts and into PROMPT_COMMAND, around what is there now.
__sbx_fix() {
	if [[ ${PS1-} != "$__sbx_w1" ]]; then
		local p=${PS1-}
		p=${p//"$__sbx_1"/}
		p=${p//"$__sbx_2"/}
		if [[ -n $__sbx_host ]]; then
			local q=
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
		PS1=$p __sbx_w1=$p
	fi
	if [[ ${PS2-} != "$__sbx_w2" ]]; then
		PS2=${PS2-}
		PS2=${PS2//"$__sbx_3"/}
		builtin shopt -q promptvars && PS2=$PS2$__sbx_3
		__sbx_w2=$PS2
	fi
	if [[ ${PS0-} != "$__sbx_w0" ]]; then
		PS0=${PS0-}
		PS0=${PS0//"$__sbx_0"/}
		builtin shopt -q promptvars && PS0=$__sbx_0$PS0
		__sbx_w0=$PS0
	fi

	local u=${PROMPT_COMMAND-} last=0
	if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)) && [[ -n $u && ${PROMPT_COMMAND@a} == *a* ]]; then
		last=-1 # before 5.1 only the first element of an array is run
	fi
	[[ $u == "$__sbx_ea"* && ${PROMPT_COMMAND[last]-} == *"$__sbx_ez" ]] && return
	if [[ $last == 0 ]]; then
		__sbx_clean u
		PROMPT_COMMAND=$__sbx_ea$'\n'${u:+$u$'\n'}$__sbx_ez
		return
	fi
	local all=("$__sbx_ea")
	for u in "${PROMPT_COMMAND[@]}"; do
		__sbx_clean u
		[[ -n $u ]] && all+=("$u")
	done
	PROMPT_COMMAND=("${all[@]}" "$__sbx_ez")
}

# Take our own lines out of the variable named $1.
__sbx_clean() {
	local t=${!1}
	t=${t//"$__sbx_ea"/"$__sbx_ey"}
	t=${t//"$__sbx_ez"/"$__sbx_ey"}
	while [[ $t == "$__sbx_ey"$'\n'* ]]; do t=${t#"$__sbx_ey"$'\n'}; done
	while [[ $t == *$'\n'"$__sbx_ey" ]]; do t=${t%$'\n'"$__sbx_ey"}; done
	[[ $t == "$__sbx_ey" ]] && t=
	builtin printf -v "$1" %s "$t"
}

# Run, first part: read the command and put it into the history in place of the line that was typed.
__sbx_r() {
	local rc=$? IFS= a t
	builtin mapfile -u @COMMANDFD@ a
	__sbx_c=${a[*]-}
	if [[ -o history ]]; then
		t=$__sbx_c
		while [[ $t == *$'\n' ]]; do t=${t%$'\n'}; done
		builtin history -s -- "$t"
	fi
	PS1=$__sbx_ps1
	# The mark comes from inside the eval, behind whatever set -x and DEBUG traps say about the typed line.
	# Its last line makes the eval succeed, lest set -e and ERR traps take the command's status, which they have
	# seen already, for a second failure.
	__sbx_x=0
	__sbx_c='{ __sbx_g&&:;}>/dev/null 2>&1'$'\n'$__sbx_c$'\n\n{ __sbx_x=$?;}>/dev/null 2>&1'
	builtin export -n __sbx_c # set -a exports what is assigned, and an environment takes no long text
	return "$rc"
}

# Run, second part: the command starts.
__sbx_g() {
	local rc=$?
	builtin printf '\e]7337;C;%s;%s;run\a' "$__sbx_k" "$__sbx_n" >/dev/tty
	return "$rc"
}

# Run, last part: $? is the command's again.
__sbx_f() {
	local rc=$?
	((rc)) || rc=$__sbx_x
	__sbx_c=
	__sbx_fix
	return "$rc"
}

@STARTUP@
[[ $(trap -p INT) != "trap -- ':' SIGINT" ]] || trap - INT
{ __sbx_fix && :; } >/dev/null 2>&1

# The key that empties a line half typed, in every keymap.
{
	builtin bind -m emacs-standard '"@KEY@": kill-whole-line' &&
		builtin bind -m vi-insert '"@KEY@": kill-whole-line' &&
		builtin bind -m vi-command '"@KEY@": "i@KEY@"' && :
} >/dev/null 2>&1
