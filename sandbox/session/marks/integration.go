package marks

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// The descriptors that a shell with marks inherits.
const (
	// ScriptFD is the read end of a pipe that holds Integration.Script and has no writer left. The
	// shell reads it to its end and closes it before it reads the user's own start-up files. A
	// single digit, because dash can close no other.
	ScriptFD = 9
	// CommandFD is an open file that the shell reads commands from, see [Integration.Command].
	// High, out of the way of the digits that scripts use. The shell's children inherit it, so it
	// should be open for reading only.
	CommandFD = 61
)

// clearKey is no key of any keyboard; bash binds it to emptying the line, in emacs and in both vi
// modes, zsh to running what it finds on CommandFD.
const clearKey = "\x1b[7337~"

// runKey is the same for fish, which drops sequences that no terminal has: ^^ ^_.
const runKey = "\x1e\x1f"

//go:generate go run generate.go

// The scripts for the shells, shortened.
var (
	//go:embed bash.min
	bashScript string
	//go:embed posix.min
	posixScript string
	//go:embed zsh.min
	zshScript string
	//go:embed fish.min
	fishScript string
)

// Options says more about the shell to start. The zero value works.
type Options struct {
	// Hostname is shown where the user's PS1 says \h or \H. Empty leaves them alone. Anything that
	// is not a host name is ignored.
	Hostname string
	// Login makes the shell load the login start-up files (/etc/profile and so on). The shell
	// itself does not start as a login shell, which would not read our file: `shopt login_shell`
	// says off.
	Login bool
	// Env is the environment that the shell will be started with. Only ENV and ZDOTDIR matter,
	// which POSIX shells and zsh will find as they are here, and use.
	Env []string
	// FDDir is the directory in which a process finds its own descriptors. Empty means /dev/fd. The
	// caller looks: /dev/fd, else /proc/self/fd, and where there is neither, the shell has to be
	// started without marks.
	FDDir string
}

// Integration says how to start a shell so that it prints marks.
type Integration struct {
	Args      []string // argv to execute; Args[0] is the shell's path
	Script    []byte   // what the shell has to find on ScriptFD; fits into a pipe
	Env       []string // NAME=value to set over the shell's environment; holds no secret
	CommandFD bool     // the shell takes commands from CommandFD
	// DotDir is the name of a variable that has to be set to a directory which holds nothing but a
	// symbolic link called Link to Target. The shell has followed it when it prints its first mark.
	// Empty for most shells.
	DotDir, Link, Target string
	// Key says that what [Integration.Command] types is a key which only a shell with line editing
	// understands, after the PromptEnd mark. Nothing echoes it. The shell answers by a CommandStart
	// without Run, and what it prints from there to the one with Run is its own doing.
	Key bool
	// Typed says that the shell prints a CommandStart before a command that was typed, too.
	Typed bool
	// Asks says that the line editor may ask the terminal something at a prompt, and wait for the
	// answer.
	Asks bool
	// Shown is what the line editor draws of its own between those two CommandStarts. Empty where
	// that is not known: fish draws the command, in colours, and draws it again.
	Shown string

	kind  kind
	fdDir string
}

type kind int

const (
	bash kind = iota + 1
	posix
	zsh
	fish
)

// For returns how to start the shell at path so that it prints marks with n, or false for a shell
// that it does not know. A path whose last element is sh is followed to what it links to; one that
// stays sh is taken for a POSIX shell.
func For(path string, n Nonce, opt Options) (Integration, bool) {
	in := Integration{CommandFD: true, fdDir: opt.FDDir}
	if in.fdDir == "" {
		in.fdDir = "/dev/fd"
	}
	name := filepath.Base(path)
	target := name
	if real, err := filepath.EvalSymlinks(path); err == nil {
		target = filepath.Base(real)
	}
	scriptPath := in.fdDir + "/" + strconv.Itoa(ScriptFD)
	var script, startup string
	switch {
	case name == "bash" || target == "bash":
		in.kind, script = bash, bashScript
		if name == "bash" {
			in.Args = []string{path, "--rcfile", scriptPath, "-i"}
			startup = bashStartup(opt.Login)
			break
		}
		// As sh, bash is a POSIX shell and reads $ENV.
		in.Args, in.Env = []string{path, "-i"}, []string{"ENV=" + scriptPath}
		startup = posixStartup(opt)
	case name == "dash" || name == "ash" || name == "sh" &&
		(target == "sh" || target == "dash" || target == "busybox"):
		in.kind, script, in.Asks = posix, posixScript, name == "ash" || target == "busybox"
		in.Args, in.Env = []string{path, "-i"}, []string{"ENV=" + scriptPath}
		startup = posixStartup(opt)
	case name == "zsh":
		in.kind, script, in.Key, in.Asks, in.Shown = zsh, zshScript, true, true,
			` \eval "$__sbx_c";__sbx_x&&:`
		in.Args = []string{path, "-i"}
		in.DotDir, in.Link, in.Target = "ZDOTDIR", ".zshenv", scriptPath
		startup = "unset ZDOTDIR"
		if v, ok := variable(opt.Env, "ZDOTDIR"); ok {
			startup = "export ZDOTDIR=" + quote(v)
		}
	case name == "fish":
		in.kind, script, in.Key, in.Asks = fish, fishScript, true, true
		in.Args = []string{path, "-i", "-C", "source <" + scriptPath}
	default:
		return Integration{}, false
	}
	if in.Key && opt.Login {
		in.Args = append(in.Args, "-l")
	}
	if !hostname(opt.Hostname) {
		opt.Hostname = ""
	}
	in.Typed = in.kind != posix
	in.Script = []byte(strings.NewReplacer(
		"@NONCE@", n.String(),
		"@HOSTNAME@", opt.Hostname,
		"@COMMANDFD@", strconv.Itoa(CommandFD),
		"@KEY@", strings.ReplaceAll(clearKey, "\x1b", `\e`),
		"@RUNKEY@", strings.NewReplacer("\x1e", `\x1e`, "\x1f", `\x1f`).Replace(runKey),
		"@ESC@", "\x1b",
		"@BEL@", "\a",
		"@STARTUP@", startup,
		"@FDDIR@", in.fdDir,
	).Replace(script))
	return in, true
}

// bashStartup loads what bash would have loaded without --rcfile. bash itself loads a system-wide
// bashrc that is compiled in.
func bashStartup(login bool) string {
	if !login {
		return `[[ -r ~/.bashrc ]] && . ~/.bashrc`
	}
	return `[[ -r /etc/profile ]] && . /etc/profile
for __sbx_t in ~/.bash_profile ~/.bash_login ~/.profile; do
	[[ -r $__sbx_t ]] || continue
	. "$__sbx_t"
	break
done`
}

// posixStartup gives ENV back its value and loads what a POSIX shell would have loaded.
func posixStartup(opt Options) string {
	text := "unset ENV\n"
	if v, ok := variable(opt.Env, "ENV"); ok {
		text = "ENV=" + quote(v) + "\nexport ENV\n"
	}
	if opt.Login {
		text += "[ ! -r /etc/profile ] || . /etc/profile\n[ ! -r ~/.profile ] || . ~/.profile\n"
	}
	return text + `if [ -n "${ENV-}" ]; then
	eval "__sbx_p=\"$ENV\""
	[ ! -r "$__sbx_p" ] || . "$__sbx_p"
fi`
}

// variable returns the last value of name in env.
func variable(env []string, name string) (value string, ok bool) {
	for _, e := range env {
		if v, is := strings.CutPrefix(e, name+"="); is {
			value, ok = v, true
		}
	}
	return value, ok
}

// quote returns s as one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// hostname reports whether s is safe to stand in a prompt.
func hostname(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == ""
}

// Command returns what makes the shell, at its prompt, run text as if it had been typed: at its top
// level, with $? of the previous command, whatever its length and whatever it holds but NUL.
//
// Number is the caller's, positive, and another for each command of one shell: the CommandStart
// mark repeats it, so that the start of one command is not taken for that of another. The shell
// runs no number twice.
//
// The caller makes the content of the file on CommandFD exactly payload, sets its offset to 0, and
// then types typed. Typed is short and the same each time; it empties a line half typed first. What
// the terminal prints from then until the CommandStart mark with Run set is its echo: nobody needs
// it but for what [Keep] leaves of it. An Unread mark in its place says that the shell found no
// such payload, and ran nothing. A PromptStart without either says only that it has not yet run:
// what was typed may still wait to be read, or another program has read it.
//
// The text is to be a complete command. One that is not is reported by the shell as a syntax error,
// as its own parser sees fit.
func (in Integration) Command(text string, number uint64) (typed, payload []byte) {
	head := fmt.Sprintf("#sbx %d", number)
	switch in.kind {
	case bash:
		// ^U for a shell without line editing, where the key is text like any other. The space
		// keeps the line out of the history where the user has ignorespace; __sbx_r takes it out
		// elsewhere. It begins with no reserved word: after text that ends inside quotes, bash's
		// parser misses one. $_ is the last argument of what ran last, so each part of ours has as
		// its own the one that it found.
		return []byte(clearKey + "\x15" +
				` __sbx_r "$_">/dev/null 2>&1&&: "$_";eval "$__sbx_c";{ __sbx_f "$__sbx_u"&&: "$_";}>/dev/null 2>&1` + "\n"),
			fmt.Appendf(nil, "%s %d\n%s", head, len(text)-len(strings.TrimRight(text, "\n")), text)
	case posix:
		// The empty line ends a text whose last byte is a backslash.
		return []byte("\x05\x15" +
				`{ __sbx_r&&:;}>/dev/null 2>&1;eval "$__sbx_d";{ __sbx_f&&:;}>/dev/null 2>&1` +
				"\n"),
			[]byte(head + "\n{ __sbx_g&&:;}>/dev/null 2>&1\n" + text +
				"\n\n{ __sbx_x=$?;}>/dev/null 2>&1\n")
	case zsh: // an empty file is no command
		return []byte(clearKey), []byte(head + "\n" + text + "\n")
	case fish:
		return []byte(runKey), []byte(head + "\n" + text + "\n")
	}
	return nil, nil
}

// Keep returns what of the echo of a typed command still matters to a terminal that does not see
// the rest of it: the switching of private modes (CSI ? … h and l), such as the end of bracketed
// paste, and of the keypad (ESC = and >).
func Keep(echo []byte) []byte {
	var kept []byte
	for i := 0; i+1 < len(echo); i++ {
		if echo[i] != 0x1b {
			continue
		}
		j := i + 1
		switch {
		case echo[j] == '=' || echo[j] == '>':
		case echo[j] == '[' && j+1 < len(echo) && echo[j+1] == '?':
			j += 2
			for j < len(echo) && ('0' <= echo[j] && echo[j] <= '9' || echo[j] == ';') {
				j++
			}
			if j == len(echo) || echo[j] != 'h' && echo[j] != 'l' {
				continue
			}
		default:
			continue
		}
		kept = append(kept, echo[i:j+1]...)
		i = j
	}
	return kept
}
