package host

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/marks"
)

// dialect is a family of shells that support marks over a terminal.
type dialect string

const (
	bash  dialect = "bash"
	posix dialect = "sh" // dash and busybox's
	zsh   dialect = "zsh"
)

// shellTime is how long the start-up files of an account may take until the final shell answers.
const shellTime = 8 * time.Second

const shellAnswer = "\nsandboxd-shell="

// shellScript starts the account's shell as a login would, but without a terminal, and asks for its
// version. The shell that start-up files leave running answers; the question is kept out of its
// history. It has no single quotes, because it is quoted with them.
const shellScript = `printf "\nsandboxd-probe\n"; q="unset HISTFILE; echo sandboxd-shell=\$BASH_VERSION=\$ZSH_VERSION=\$FISH_VERSION="; ` +
	`printf "%s\n" "" "$q" "$q" "$q" | { exec 3<&0; HISTFILE= fish_history= "$SHELL" -l -i <&3 3<&- 2>/dev/null & p=$!; ` +
	`{ trap "kill \$!; exit" TERM; sleep 5 & wait $!; kill -9 $p; } >/dev/null 2>&1 & w=$!; wait $p; kill $w; } 2>/dev/null; printf "\nsandboxd-end\n"`

// startupShell asks which shell an account's start-up files leave running: an `exec zsh` in .bashrc
// makes it differ from the user database. Without an answer it returns the shell of the user
// database.
func startupShell(ctx context.Context, conn *connect.Conn, f facts) dialect {
	ctx, cancel := context.WithTimeoutCause(
		ctx, shellTime, errors.New("start-up files did not end in time"))
	defer cancel()
	c, err := started(ctx, conn, "exec /bin/sh -c "+quote(shellScript))
	if err != nil {
		return f.dialect()
	}
	defer c.Close()
	text := make(chan string, 1)
	err = c.within(ctx, func() error {
		if err := c.until(probeBegin, ""); err != nil {
			return err
		}
		got, err := c.read(probeEnd, maxNoise)
		text <- string(got)
		return err
	})
	if err != nil {
		return f.dialect()
	}
	return f.answered(<-text)
}

// answered parses a shell's answer.
func (f facts) answered(text string) dialect {
	_, answer, ok := strings.Cut("\n"+text, shellAnswer)
	if !ok {
		return f.dialect()
	}
	answer, _, _ = strings.Cut(answer, "\n")
	versions := strings.Split(strings.TrimSpace(answer), "=")
	switch {
	case len(versions) < 3:
		return f.dialect()
	case versions[0] != "":
		return bash
	case versions[1] != "":
		return zsh
	case versions[2] == "" && f.dialect() == posix:
		return posix
	}
	return "" // an unsupported shell
}

// dialect returns the dialect of the account's shell, by its name and its link's target; empty if
// it supports no marks.
func (f facts) dialect() dialect {
	for _, name := range []string{path.Base(f.shell), path.Base(f.real)} {
		switch name {
		case "bash":
			return bash
		case "dash", "ash", "busybox":
			return posix
		case "zsh":
			return zsh
		}
	}
	if path.Base(f.shell) == "sh" && path.Base(f.real) == "sh" {
		return posix
	}
	return ""
}

// shellOf describes a shell of this dialect for the sessions: by a name that the marks recognize,
// whatever it is a link to on the daemon's machine.
func (d dialect) shellOf(f facts) session.Shell {
	// Login start-up files that replace the shell with another bash would do so again.
	sh := session.Shell{Path: f.shell, FDDir: "/dev/fd", Login: d != bash || f.dialect() == bash}
	if path.Base(f.shell) != string(d) {
		sh.Path = "/bin/" + string(d)
	}
	if d == posix {
		sh.Path = "/bin/dash"
	}
	return sh
}

// command is shell text that replaces itself with the shell. args are those of a shell on this
// machine. If start-up files replace the account's shell, this text must do the same.
func (d dialect) command(f facts, args []string) string {
	words := []string{quote(f.shell)}
	switch own := f.dialect(); {
	case d == own:
	case d == zsh && own == bash: // as a login shell it would hide the script from the other
		return "exec " + words[0] + ` --rcfile "$ZDOTDIR/.login" -i`
	case d == zsh || d == posix: // these find their script by the environment
		return "exec " + words[0] + " -l -i"
	default:
		words[0] = string(d)
	}
	for _, w := range args[1:] {
		words = append(words, quote(w))
	}
	return "exec " + strings.Join(words, " ")
}

// A shell on another machine has no descriptor of ours to read commands from. It asks for each by a
// mark with a secret (asksMark), with echo off, and reads lines that printf %b turns into the
// command. It ignores the first line, which may contain the terminal's answer to a query of a line
// editor.
const (
	// In bash one read turns echo off, asks and reads up to a NUL, with no program in between. The
	// order of these in versions before 5 is untested.
	bashAsks = `local y=
((BASH_VERSINFO>4))||{ y=$(stty -g </dev/tty);stty -echo </dev/tty; }
builtin printf -v t '\e]7337;R;%s\a' "$__sbx_k"
IFS= builtin read -rsd '' -p "$t" a </dev/tty 2>/dev/tty
[[ -z $y ]]||stty "$y" </dev/tty
a=${a#*$'\n'}
builtin printf -v a %b "${a%.}"`

	// Replaces two lines of __sbx_r: __sbx_p becomes the command's first line, __sbx_d the text to
	// run.
	posixAsks = `__sbx_y=$(stty -g </dev/tty)
stty -echo </dev/tty
printf '\033]7337;R;%s\007' "$__sbx_k" >/dev/tty
__sbx_d=
read -r __sbx_l </dev/tty
while IFS= read -r __sbx_l && [ "$__sbx_l" != . ];do __sbx_d=$__sbx_d$__sbx_l;done </dev/tty
stty "$__sbx_y" </dev/tty
__sbx_d=$(printf %b "$__sbx_d")
__sbx_p=${__sbx_d%%"
"*}
`

	// Its line editor has changed the terminal: no line mode, and newlines for carriage returns.
	zshAsks = `local t= y=$(stty -g </dev/tty) l
stty -echo icanon icrnl -inlcr </dev/tty
print -n $'\e]7337;R;@NONCE@\a' >/dev/tty
read -r l </dev/tty
while IFS= read -r l && [[ $l != . ]];do t+=$l;done </dev/tty
stty $y </dev/tty
t=$(printf %b "$t")
[[ -n $t ]] || return 1
`
)

// change is a part of a script and its replacement.
type change struct{ from, to string }

// changes returns the replacements that adapt the script of the marks for a shell on another
// machine.
func (d dialect) changes(script []byte, key string) []change {
	fd := "/dev/fd/" + strconv.Itoa(marks.CommandFD)
	switch d {
	case bash:
		read := "builtin mapfile a <" + fd
		if !bytes.Contains(script, []byte(read)) {
			read = "builtin mapfile -u " + strconv.Itoa(marks.CommandFD) + " a"
		}
		return []change{{read, bashAsks}}
	case posix:
		return []change{{"IFS= read -r __sbx_p <" + fd + " || __sbx_p=\n__sbx_d='. " + fd + "'\n",
			posixAsks}}
	case zsh:
		return []change{{"[[ -s " + fd + " ]] || return 1\n", ""},
			{"local t=$(<" + fd + ")\n", strings.ReplaceAll(zshAsks, "@NONCE@", key)},
			{"unset ZDOTDIR\n", zshFound}}
	}
	return nil
}

// zsh finds the script as .zshenv in a directory with nothing else, and removes it.
const (
	zshDir = `[ -z "${ZDOTDIR+x}" ] || export SBXZ="$ZDOTDIR"
ZDOTDIR=$(mktemp -d) && ln -s /dev/fd/9 "$ZDOTDIR/.zshenv" && export ZDOTDIR
echo "[[ ! -r /etc/profile ]] || . /etc/profile; for f in ~/.bash_profile ~/.bash_login ~/.profile; do [[ -r \$f ]] || continue; . \$f; break; done" >"$ZDOTDIR/.login"
`
	zshFound = `command rm -f $ZDOTDIR/.zshenv $ZDOTDIR/.login && command rmdir $ZDOTDIR
unset ZDOTDIR
[[ -z ${SBXZ+x} ]] || export ZDOTDIR=$SBXZ
unset SBXZ
`
)

// adapt adapts a script of the marks for a shell on another machine, and returns the text that it
// prints when it asks.
func (d dialect) adapt(script []byte) (adapted, asks []byte, err error) {
	m := nonce.FindSubmatch(script)
	if m == nil {
		return nil, nil, errors.New("the marks script has no nonce")
	}
	for _, c := range d.changes(script, string(m[1])) {
		if !bytes.Contains(script, []byte(c.from)) {
			return nil, nil, fmt.Errorf("the marks script has changed: no %q", c.from)
		}
		script = bytes.ReplaceAll(script, []byte(c.from), []byte(c.to))
	}
	return script, []byte(asksMark + string(m[1]) + "\a"), nil
}

// environment is shell text that sets the shell's environment. start is for a shell on this
// machine, and names files of it.
func (d dialect) environment(start session.Start) string {
	var text strings.Builder
	for _, e := range start.Env {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case d == zsh && name == "ZDOTDIR":
			text.WriteString(zshDir)
			continue
		case d == posix && name == "ENV":
			value = "/dev/fd/" + strconv.Itoa(marks.ScriptFD)
		}
		fmt.Fprintf(&text, "export %s=%s\n", name, quote(value))
	}
	if start.Dir != "" {
		fmt.Fprintf(&text, "cd %s\n", quote(start.Dir))
	}
	return text.String()
}

// noMarks returns why a machine's shell supports no marks.
func (f facts) noMarks(d dialect) string {
	switch {
	case !f.fd:
		return "it has no /dev/fd"
	case d == "":
		return "the account's shell is " + cmp.Or(f.shell, "unknown") +
			"; supported are bash, zsh, dash and busybox"
	}
	return ""
}
