package marks

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// A shell behind a relay, such as one that ssh(1) has started on another machine, can only be typed
// to. It cannot open a file that was made here. So the script and the commands are typed, too:
// first a line that makes the shell read lines without echo, then what it reads.

// hide, lines and decode are shell code: it reads lines up to an empty one, without echo, and
// prints what they encode: nothing, after ^C or if a line is of something else. No other shell has
// variables of these names, so that an end of the code, which a shell around the relay may read,
// runs none.
const (
	// bash runs a trap only when its read has ended, but sets the modes again itself.
	hide = `__sbx_js=$(stty -g);${BASH_VERSION:+:} trap 'stty "$__sbx_js";exit 1' INT;` +
		`stty -echo;`
	lines = `__sbx_jt=;while IFS= read -r __sbx_jl&&[ "$__sbx_jl" ];do case $__sbx_jl in ` +
		`*[89a-zA-Z[:punct:][:space:][:cntrl:]]*)__sbx_jt=;break;;esac;` +
		`__sbx_jt=$__sbx_jt$__sbx_jl;done;stty "$__sbx_js";`
	decode = `"$(printf %s "$__sbx_jt"|sed 's,...,\\0&,g')"`
)

// Ask returns the line to type at what looks like the prompt of a shell behind a relay. A shell
// answers with a Ready mark with n, reads what [Feed] returns, and runs it. The line has no effect
// that lasts, also in a shell that cannot run it.
func Ask(n Nonce) []byte {
	mark := `printf '\033]7337;R;` + n.String() +
		`;0;%s\007' "${BASH_VERSION+bash}${ZSH_VERSION+zsh}${KSH_VERSION+ksh}">&2;`
	return []byte(` eval "$(` + hide + mark + lines + `printf %b ` + decode + `)"` + "\n")
}

// Feed encodes text, which has no NUL, as lines to type to a shell that reads them. They have only
// digits: if the relay ends, the shell around it reads the rest, and there is no program whose name
// is a number.
func Feed(text []byte) []byte {
	const width = 480 // a terminal passes lines of up to 4095 bytes, see termios(3)
	var all strings.Builder
	for i, c := range text {
		if i > 0 && i%(width/3) == 0 {
			all.WriteByte('\n')
		}
		fmt.Fprintf(&all, "%03o", c)
	}
	if len(text) > 0 {
		all.WriteByte('\n')
	}
	return []byte(all.String() + "\n")
}

// reader returns the name of the function that reads a command in the shell of n. A shell around
// the relay, which may read the line instead, has another one.
func reader(n Nonce) string {
	id := sha256.Sum256(n[:]) // the name is typed, and the nonce is secret
	return "__sbx_r" + hex.EncodeToString(id[:4])
}

// typed returns how the scripts read a command that is typed, into a variable. The dot keeps
// newlines at the end, which a command substitution removes.
func typed(variable string) string {
	return variable + `=$({ ` + hide + lines + `printf %b. ` + decode + `;}</dev/tty)` + "\n" +
		variable + `=${` + variable + `%.}`
}
