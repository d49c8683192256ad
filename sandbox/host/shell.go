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

// dialect is a family of shells that take marks over a terminal.
type dialect string

const (
	bash  dialect = "bash"
	posix dialect = "sh" // dash and busybox's
	zsh   dialect = "zsh"
)

// shellTime is how long the start-up files of an account may take until it is known where they lead.
const shellTime = 8 * time.Second

const shellAnswer = "\nsandboxd-shell="

// shellScript starts the account's shell as a login would, but for the terminal, and asks it. What start-up files make of it
// answers; what it was asked is not for its history. It has no single quotes: it is between two.
const shellScript = `printf "\nsandboxd-probe\n"; q="unset HISTFILE; echo sandboxd-shell=\$BASH_VERSION=\$ZSH_VERSION=\$FISH_VERSION="; ` +
	`printf "%s\n" "" "$q" "$q" "$q" | { exec 3<&0; HISTFILE= fish_history= "$SHELL" -l -i <&3 3<&- 2>/dev/null & p=$!; ` +
	`{ trap "kill \$!; exit" TERM; sleep 5 & wait $!; kill -9 $p; } >/dev/null 2>&1 & w=$!; wait $p; kill $w; } 2>/dev/null; printf "\nsandboxd-end\n"`

// becomes asks which shell an account's start-up files leave: one with `exec zsh` in its .bashrc has another than the user
// database says. No answer leaves what that says.
func becomes(ctx context.Context, conn *connect.Conn, f facts) dialect {
	ctx, cancel := context.WithTimeoutCause(ctx, shellTime, errors.New("start-up files do not end"))
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

// answered reads what a shell said of itself.
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
	return "" // a shell that is none of these
}

// dialect is that of the account's shell, by its name and by what that is a link to; empty for one that takes no marks.
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

// shellOf is what the sessions are told of a shell of this dialect: a name by which the marks know it, whatever that name is
// a link to on the machine where the daemon runs.
func (d dialect) shellOf(f facts) session.Shell {
	// Login start-up files that become another bash would do so again.
	sh := session.Shell{Path: f.shell, FDDir: "/dev/fd", Login: d != bash || f.dialect() == bash}
	if path.Base(f.shell) != string(d) {
		sh.Path = "/bin/" + string(d)
	}
	if d == posix {
		sh.Path = "/bin/dash"
	}
	return sh
}

// command is shell text that becomes the shell. args is what starts one of this machine. Where start-up files make another one of
// the account's shell, so they must here.
func (d dialect) command(f facts, args []string) string {
	words := []string{quote(f.shell)}
	switch own := f.dialect(); {
	case d == own:
	case d == zsh && own == bash: // as a login shell it would close the script to the other
		return "exec " + words[0] + ` --rcfile "$ZDOTDIR/.login" -i`
	case d == zsh || d == posix: // these find their way by the environment
		return "exec " + words[0] + " -l -i"
	default:
		words[0] = string(d)
	}
	for _, w := range args[1:] {
		words = append(words, quote(w))
	}
	return "exec " + strings.Join(words, " ")
}

// A shell on another machine has no descriptor of ours to read commands from. It asks for each by a mark that only it and we
// know (asksMark), with the echo off, and reads lines that printf %b turns into the command. The first one is not read: before it
// may stand what the terminal answered to a line editor's question.
const (
	// In bash one read turns the echo off, asks and takes all up to a NUL, with no program in between. Before version 5 nobody has
	// looked which of these it does first.
	bashAsks = `local y=
((BASH_VERSINFO>4))||{ y=$(stty -g </dev/tty);stty -echo </dev/tty; }
builtin printf -v t '\e]7337;R;%s\a' "$__sbx_k"
IFS= builtin read -rsd '' -p "$t" a </dev/tty 2>/dev/tty
[[ -z $y ]]||stty "$y" </dev/tty
a=${a#*$'\n'}
builtin printf -v a %b "${a%.}"`

	// In place of two lines of __sbx_r: __sbx_p is to be the command's first line, __sbx_d what is to be run.
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

	// Its editor has the terminal: no lines, and newlines for carriage returns.
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

// change is a piece of a script and what takes its place.
type change struct{ from, to string }

// changes make the script of the marks one for a shell on another machine.
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
		return []change{{"IFS= read -r __sbx_p <" + fd + " || __sbx_p=\n__sbx_d='. " + fd + "'\n", posixAsks}}
	case zsh:
		return []change{{"[[ -s " + fd + " ]] || return 1\n", ""}, {"local t=$(<" + fd + ")\n", strings.ReplaceAll(zshAsks, "@NONCE@", key)},
			{"unset ZDOTDIR\n", zshFound}}
	}
	return nil
}

// zsh finds the script as .zshenv in a directory that holds nothing else, and removes it.
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

// adapt makes a script of the marks one for a shell on another machine, and returns what that prints when it asks.
func (d dialect) adapt(script []byte) (adapted, asks []byte, err error) {
	m := nonce.FindSubmatch(script)
	if m == nil {
		return nil, nil, errors.New("the script of the marks has no nonce")
	}
	for _, c := range d.changes(script, string(m[1])) {
		if !bytes.Contains(script, []byte(c.from)) {
			return nil, nil, fmt.Errorf("the script of the marks is not as it was: no %q", c.from)
		}
		script = bytes.ReplaceAll(script, []byte(c.from), []byte(c.to))
	}
	return script, []byte(asksMark + string(m[1]) + "\a"), nil
}

// environment is shell text that sets up what a shell is started with. start is for a shell of this machine, and names files
// of it.
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

// noMarks says why a machine's shell takes none.
func (f facts) noMarks(d dialect) string {
	switch {
	case !f.fd:
		return "it has no /dev/fd"
	case d == "":
		return "the account's shell is " + cmp.Or(f.shell, "not known") + ", and not bash, zsh, dash or busybox's"
	}
	return ""
}
