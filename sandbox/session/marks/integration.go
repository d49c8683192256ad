package marks

import (
	"bytes"
	_ "embed"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// The descriptors that a shell with marks inherits.
const (
	// ScriptFD is the read end of a pipe that contains Integration.Script and has no writer left.
	// The shell reads it to its end and closes it before it reads the user's own start-up files. It
	// is a single digit, because dash can close no other.
	ScriptFD = 9
	// CommandFD is an open file that the shell reads commands from, see [Integration.Command]. It
	// is above the digits that scripts use. The shell's children inherit it, so the caller should
	// open it for reading only.
	CommandFD = 61
)

// clearKey is sent by no keyboard. In emacs and both vi modes, bash binds it to clearing the line.
// Zsh binds it to running the command on CommandFD.
const clearKey = "\x1b[7337~"

// runKey is the same for fish, which drops sequences that no terminal sends: ^^ ^_.
const runKey = "\x1e\x1f"

//go:generate go run generate.go

// The scripts for the shells, without comments.
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

// Options are details of the shell to start. The zero value is ready to use.
type Options struct {
	// Hostname replaces \h and \H in the user's PS1. If empty, they stay. An invalid host name is
	// ignored.
	Hostname string
	// Login makes the shell load the login start-up files (/etc/profile and so on). Zsh and fish
	// start as login shells. Other shells do not, because a login shell would not read our file:
	// `shopt login_shell` reports off.
	Login bool
	// Env is the environment of the shell. Only ENV and ZDOTDIR matter: POSIX shells and zsh find
	// and use the values given here.
	Env []string
	// File is not empty for a shell that runs already. It is the name of the file from which that
	// shell reads Script, by what [Integration.Enter] types, and then its commands, in place of the
	// one on CommandFD. Nothing else of the Integration but Command is of use. Fish cannot.
	File string
	// PID is the process ID of that shell, as it sees it itself. Another process does not read
	// Script.
	PID int
	// Relay is set for a shell that runs already, of which only the terminal is known. It reads
	// Script, and then its commands, from what is typed; see [Ask]. Only bash and POSIX shells can.
	Relay bool
	// FDDir is the directory in which a process finds its own descriptors. Empty means /dev/fd. The
	// caller chooses /dev/fd or /proc/self/fd. If neither exists, the caller must start the shell
	// without marks.
	FDDir string
}

// Integration says how to start a shell so that it prints marks.
type Integration struct {
	Args      []string // argv to execute; Args[0] is the shell's path
	Script    []byte   // contents of ScriptFD; fits into a pipe
	Env       []string // NAME=value to add to the shell's environment; contains no secret
	CommandFD bool     // the shell takes commands from CommandFD
	// DotDir is the name of a variable. If it is not empty, the caller sets that variable to a
	// directory that contains only a symbolic link called Link to Target. The shell has followed
	// the link when it prints its first mark. DotDir is empty for most shells.
	DotDir, Link, Target string
	// Key says that [Integration.Command] types a key that only the shell's line editor
	// understands, after the PromptEnd mark. The key is not echoed. The shell answers with a
	// CommandStart without Run. What it prints from there to the CommandStart with Run is not the
	// command's output.
	Key bool
	// Typed says that the shell also prints a CommandStart before a typed command.
	Typed bool
	// Asks says that the line editor may send a query to the terminal at a prompt, and wait for the
	// answer.
	Asks bool
	// Shown is what the line editor draws between those two CommandStarts. It is empty if that is
	// not known: fish draws the command in colors, and redraws it.
	Shown string

	kind  kind
	fdDir string
	file  string // Options.File
	// name of the function with which a relayed shell reads a command; empty for other shells
	reader string
}

type kind int

const (
	bash kind = iota + 1
	posix
	zsh
	fish
)

// For returns how to start the shell at path so that it prints marks with n, or false for an
// unknown shell. If path is a link whose name is sh, For uses the shell that it links to. A plain
// sh counts as a POSIX shell.
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
		// Bash called as sh is a POSIX shell and reads $ENV.
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
	if opt.File != "" && in.kind == fish || opt.Relay && in.kind != bash && in.kind != posix {
		return Integration{}, false // Enter is no line of its language; zsh reads keys
	}
	if in.Key && opt.Login {
		in.Args = append(in.Args, "-l")
	}
	if !hostname(opt.Hostname) {
		opt.Hostname = ""
	}
	in.Typed = in.kind != posix
	commands := in.fdDir + "/" + strconv.Itoa(CommandFD)
	if opt.File != "" {
		commands = opt.File
	}
	read, eval := in.reads(commands)
	if opt.Relay {
		read, eval = in.readsTyped()
	}
	if opt.File != "" || opt.Relay {
		// It has read its start-up files, and its traps and descriptors are the user's.
		startup = ":"
		if in.kind == bash {
			script = forget + script
		}
		if opt.Relay {
			in.reader = reader(n)
			script = strings.Replace(script, "__sbx_r()", in.reader+"()", 1)
		}
		if opt.File != "" {
			script = fmt.Sprintf("[ $$ = %d ] || return\n", opt.PID) + script
		}
		script = strings.NewReplacer("exec 9<&-\n", "", "trap : INT\n", ":\n",
			"trap - INT\n", ":\n").Replace(script)
	}
	entered := " test -r '" + opt.File + "' "
	if opt.Relay {
		entered = n.String()
	}
	script = strings.NewReplacer("@READ@", read, "@EVAL@", eval, "@ENTERED@", entered).
		Replace(script)
	in.Script = []byte(strings.NewReplacer(
		"@NONCE@", n.String(),
		"@HOSTNAME@", opt.Hostname,
		"@COMMANDS@", commands,
		"@KEY@", strings.ReplaceAll(clearKey, "\x1b", `\e`),
		"@RUNKEY@", strings.NewReplacer("\x1e", `\x1e`, "\x1f", `\x1f`).Replace(runKey),
		"@ESC@", "\x1b",
		"@BEL@", "\a",
		"@STARTUP@", startup,
	).Replace(script))
	in.file = opt.File
	return in, true
}

// reads returns the code of the scripts that reads a command from file, and the code that runs it.
func (in Integration) reads(file string) (read, run string) {
	if in.kind == bash {
		return "builtin mapfile a <" + file + "\nbuiltin printf -v t %s \"${a[@]-}\"", ""
	}
	return "IFS= read -r __sbx_p <" + file + " || __sbx_p=", ". " + file
}

// readsTyped does the same for commands that are typed.
func (in Integration) readsTyped() (read, run string) {
	if in.kind == bash {
		return typed("t"), ""
	}
	return typed("__sbx_in") + "\n__sbx_p=${__sbx_in%%\n*}", `eval "{ unset __sbx_in;}>/dev/null 2>&1;$__sbx_in"`
}

// forget takes the line of [Integration.Enter] or [Ask] out of the history of bash.
const forget = `__sbx_t=$(HISTTIMEFORMAT= builtin history 1)
[[ $__sbx_t != *"@ENTERED@"* ]] ||
builtin history -d $((${__sbx_t%%[!0-9 ]*}))
`

// bashStartup loads the files that bash would load without --rcfile. Bash itself loads the
// system-wide bashrc, if one is compiled in.
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

// posixStartup restores ENV and loads the files that a POSIX shell would load.
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

// quote returns s quoted as one word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// hostname reports whether s is safe in a prompt.
func hostname(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == ""
}

// Command returns the input and the file that make the shell, at its prompt, run text as if a user
// had typed it. The shell runs it at top level, with $? of the previous command. text may have any
// length and contain any byte but NUL.
//
// The caller chooses number: positive, and different for each command of one shell. The shell runs
// no number twice. The CommandStart mark repeats it, so that the caller knows which command has
// started.
//
// The caller writes payload to the file on CommandFD, as its only content, sets its offset to 0,
// and then types typed. typed is short and always the same. It first clears a half typed line. What
// the terminal prints from then until the CommandStart mark with Run is the echo. The caller may
// drop the echo except for what [Keep] returns. An Unread mark instead means that the shell found
// no such payload and ran nothing. A PromptStart without either means only that the shell has not
// run it yet. The input may still be queued, or another program has read it.
//
// With Options.Relay, typed also has the command, and payload is nil.
//
// The text should be a complete command. If it is not, the shell's parser reports a syntax error.
func (in Integration) Command(text string, number uint64) (typed, payload []byte) {
	typed, payload = in.command(text, number)
	if in.reader != "" {
		typed = bytes.Replace(typed, []byte("__sbx_r"), []byte(in.reader), 1)
		return append(typed, Feed(payload)...), nil
	}
	return typed, payload
}

// command returns them for a shell that reads a file. Another program on the terminal may read the
// beginning of typed, and the shell runs the rest. So each end of it must be harmless: it has no
// path, which could name a program in the shell's directory. Readline may ask whether to list
// completions, or page through them: the DEL at the beginning answers no, and leaves the pager.
func (in Integration) command(text string, number uint64) (typed, payload []byte) {
	head := fmt.Sprintf("#sbx %d", number)
	switch in.kind {
	case bash:
		// ^U clears the line in a shell without line editing, where the key is plain text. The
		// space keeps the line out of the history if the user has set ignorespace; otherwise
		// __sbx_r removes it. The line does not begin with a reserved word, because bash's parser
		// misses one after text that ends inside quotes. $_ is the last argument of the last
		// command. So each of our commands passes on the value that it found.
		return []byte("\x7f" + clearKey + "\x15" +
				` __sbx_r "$_">"$__sbx_void" 2>&1&&: "$_";eval "$__sbx_c";` +
				`{ __sbx_f "$__sbx_u"&&: "$_";}>"$__sbx_void" 2>&1` + "\n"),
			fmt.Appendf(nil, "%s %d\n%s", head, len(text)-len(strings.TrimRight(text, "\n")), text)
	case posix:
		// The empty line ends a text whose last byte is a backslash.
		return []byte("\x05\x15" +
				`{ __sbx_r&&:;}>"$__sbx_void" 2>&1;eval "$__sbx_d";{ __sbx_f&&:;}>"$__sbx_void" 2>&1` +
				"\n"),
			[]byte(head + "\n{ __sbx_g&&:;}>/dev/null 2>&1\n" + text +
				"\n\n{ __sbx_x=$?;}>/dev/null 2>&1\n")
	// Zsh runs nothing if the file is empty.
	case zsh:
		return []byte(clearKey), []byte(head + "\n" + text + "\n")
	case fish:
		return []byte(runKey), []byte(head + "\n" + text + "\n")
	}
	return nil, nil
}

// Enter returns what to type at the prompt of a shell that runs without marks, so that it reads
// Script. Before that, the caller makes Script the content of Options.File. If the shell cannot
// read the file, the line does nothing. If another program reads the beginning of the line, a shell
// that reads the rest does nothing either: the quotes leave no relative path. Its leading space
// keeps it out of the history, if the user has set that.
func (in Integration) Enter() []byte {
	return fmt.Appendf(nil, " test -r '%s' && . '%[1]s'\n", in.file)
}

// Keep returns the part of a command's echo that a terminal needs even if it does not show the
// rest. This is the switching of private modes (CSI ? … h and l), such as the end of bracketed
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
