# Marks for zsh. The shell reads this file once, as .zshenv, from a pipe that only this shell has.
# The nonce is only in functions. Hooks print the marks, so that prompts stay unchanged. A hook's
# body is in braces, which hides set -x. It resets all options while it runs.
exec 9<&-
@STARTUP@
# n: number of the prompt. rc: the last status. h: 1 if the prompt's start is printed. w: 1 for a
# run. xt: 1 to restore set -x. in: 1 inside __sbx_l. own: 1 if the user has frozen the terminal's
# modes with ttyctl, -1 if not known.
typeset -gi +x __sbx_n=0 __sbx_rc=0 __sbx_h=0 __sbx_w=0 __sbx_xt=0 __sbx_in=0 __sbx_own=-1
typeset -g +x __sbx_c= __sbx_i= __sbx_eol=
precmd_functions=(__sbx_a $precmd_functions __sbx_z)
preexec_functions=($preexec_functions __sbx_e)

__sbx_p() { builtin print -rn -- $'\e]7337;'"$1;@NONCE@;$__sbx_n$2"$'\a' >/dev/tty }

# First in precmd: the command has ended.
__sbx_a() { {
	local rc=$?
	emulate -LR zsh
	__sbx_rc=rc
	((__sbx_n)) && __sbx_p D ";$((__sbx_rc & 255))"
	# Reset the terminal after a crash. The check starts a process, so it happens only after a
	# failure.
	((__sbx_rc)) && [[ $(stty -a </dev/tty) == *-(icanon|opost|echo|isig)[\;[:space:]]* ]] && stty sane </dev/tty
	:
} >/dev/null 2>&1 }

# Last in precmd.
__sbx_z() { {
	emulate -LR zsh
	[[ -z $__sbx_eol || $PROMPT_EOL_MARK != "$__sbx_eol"* ]] || PROMPT_EOL_MARK=${PROMPT_EOL_MARK#"$__sbx_eol"}
	__sbx_fix
	if ((__sbx_own < 0)); then
		[[ $(ttyctl) == *not* ]]
		__sbx_own=$?
	fi
	((__sbx_n++, __sbx_h = 1, __sbx_w = 0))
	__sbx_p A ";$((__sbx_rc & 255));0;$PWD;@NONCE@"
} >/dev/null 2>&1 }

# Last in preexec. The end mark is in PROMPT_EOL_MARK, so that it comes before the sign for a
# missing newline.
__sbx_e() { {
	emulate -LR zsh
	__sbx_h=0
	((__sbx_w)) || __sbx_p C
	if ((__sbx_w)); then __sbx_o ${${__sbx_c#*$'\n'}%$'\n\n'*}; else __sbx_o $3; fi
	__sbx_eol=$'%{\e]7337;D;@NONCE@;'$__sbx_n$';%?\a%}'
	typeset -g +x PROMPT_EOL_MARK=$__sbx_eol${PROMPT_EOL_MARK-%B%S%#%s%b}
	__sbx_fix
} >/dev/null 2>&1 }

# Freeze the terminal's modes, so that zsh undoes changes by programs, unless the user has decided
# that himself. Do not freeze them for a command that may contain stty, whose changes are meant to
# stay.
__sbx_o() {
	((__sbx_own == 1)) && return
	local w
	for w in ${(Q)${(Z:Cn:)1}}; do
		[[ $w != ttyctl ]] || __sbx_own=1
		if [[ $w == (stty|*/stty|ttyctl|.|source|eval) ]] || ((${+functions[$w]})); then
			ttyctl -u
			return
		fi
	done
	ttyctl -f
}

# A function, because emulate turns allexport off only inside it.
__sbx_i() {
	emulate -LR zsh
	((!__sbx_in && ${+widgets[__sbx_u]})) && __sbx_in=1
}

# The line editor is ready for a line. First call the widget that was here before us, unless that
# widget called this one.
__sbx_l() {
	if { __sbx_i } 2>/dev/null; then
		zle __sbx_u -- "$@"
	fi
	{
		emulate -LR zsh
		__sbx_in=0
		case $CONTEXT in
		start)
			if ((!__sbx_h)); then # another program overwrote precmd_functions
				__sbx_a
				__sbx_z
			fi
			__sbx_p B
			;;
		cont) __sbx_p E ;;
		esac
	} >/dev/null 2>&1
}

# Keep the line that stands for a command out of the history.
__sbx_y() { {
	emulate -LR zsh
	[[ $1 != ' \eval "$__sbx_c"'* ]]
} >/dev/null 2>&1 }

# Add our parts again where they are missing.
__sbx_fix() {
	precmd_functions=(__sbx_a ${precmd_functions:#__sbx_[az]} __sbx_z)
	preexec_functions=(${preexec_functions:#__sbx_e} __sbx_e)
	zshaddhistory_functions=(${zshaddhistory_functions:#__sbx_y} __sbx_y)
	if [[ $widgets[zle-line-init] != user:__sbx_l ]]; then
		((!${+widgets[__sbx_u]})) || zle -D __sbx_u
		((!${+widgets[zle-line-init]})) || zle -A zle-line-init __sbx_u
		zle -N zle-line-init __sbx_l
		zle -N __sbx_r
	fi
	local m
	for m in emacs viins vicmd; bindkey -M $m '@KEY@' __sbx_r
}

# Run: the key was typed.
__sbx_r() {
	{
		__sbx_t || return 0
		unsetopt xtrace
	} >/dev/null 2>&1
	BUFFER=' \eval "$__sbx_c";__sbx_x&&:' # the backslash avoids an alias
	zle .accept-line
}

# Read the command. It is complete if zsh accepts it as the body of a function, but does not accept
# it with one more line, as an open here-document would.
__sbx_t() {
	[[ -o xtrace ]]
	local x=$?
	emulate -LR zsh
	[[ -s @COMMANDS@ ]] || return 1
	__sbx_xt=!x
	local t=$(<@COMMANDS@)
	[[ $t == '#sbx '* && ${t%%$'\n'*} != "$__sbx_i" ]] || return 1
	__sbx_i=${t%%$'\n'*}
	t=${t#*$'\n'}
	__sbx_p C
	functions[__sbx_b]=$t
	local -i ok=${+functions[__sbx_b]}
	functions[__sbx_d]=$t$'\n)'
	if ((!ok || ${+functions[__sbx_d]})) || [[ ${${(Z:Cn:)t}[-1]-} == (\&\&|\|\|) ]]; then
		__sbx_p X
		zle -I
		ok=0
	fi
	unset 'functions[__sbx_b]' 'functions[__sbx_d]'
	__sbx_w=ok
	__sbx_c='{ __sbx_g&&:;}>/dev/null 2>&1'$'\n'$t$'\n\n{ __sbx_f;}>/dev/null 2>&1'
	return $((!ok))
}

# Run: the command starts.
__sbx_g() {
	local rc=$?
	((!__sbx_xt)) || setopt xtrace
	[[ -o histignorespace ]]
	local ignore=$((!$?))
	emulate -LR zsh
	__sbx_xt=0
	__sbx_rc=0
	local t=${${__sbx_c#*$'\n'}%$'\n\n'*}
	__sbx_c=
	((ignore)) && [[ $t == ' '* ]] || print -rs -- "$t"
	__sbx_p C ";run;${__sbx_i#* }"
	return rc
}

# The command has ended. __sbx_x, the last part of the line, returns the status, where set -e
# ignores it.
__sbx_f() {
	local rc=$?
	emulate -LR zsh
	__sbx_rc=rc
	__sbx_c=
	__sbx_p D ";$((rc & 255))"
}
__sbx_x() { return $(($? ? $? : __sbx_rc)) }

[[ ! -r ${ZDOTDIR-~}/.zshenv ]] || . ${ZDOTDIR-~}/.zshenv
