//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// defaultPath is the search path if the image sets none; Docker's own default.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Limits of variables from env requests.
const (
	maxEnv      = 64
	maxEnvValue = 4 << 10
)

// envAllowed reports whether a client may set the variable: locale, terminal, and git's protocol
// version. No variable that changes which code runs is allowed (LD_*, BASH_ENV, PATH).
func envAllowed(name, value string) bool {
	switch {
	case len(name) > 64 || len(value) > maxEnvValue || strings.ContainsAny(name, "=\x00\n") ||
		strings.ContainsRune(value, 0):
		return false
	case strings.HasPrefix(name, "LC_"):
		return true
	}
	return slices.Contains([]string{"LANG", "TERM", "COLORTERM", "GIT_PROTOCOL"}, name)
}

// environment returns the variables of a process of the session user: defaults from the account,
// overridden by the configured ones, then by extra. Later entries win; each name appears once.
func (g *Guest) environment(a Account, shell string, extra ...string) []string {
	if shell == "" {
		shell = a.Shell
	}
	base := []string{"PATH=" + defaultPath, "HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name}
	if shell != "" {
		base = append(base, "SHELL="+shell)
	}
	env := slices.Concat(base, g.config.Env,
		// Tells programs that they run under SSH. The addresses are the sandbox's own: it must not
		// learn the client's.
		[]string{"SSH_CONNECTION=127.0.0.1 0 127.0.0.1 22"}, extra)
	return lastWins(env)
}

// imageEnv returns the variables of PID 1 of a pod that the image has set. The cluster has set the
// others.
func imageEnv(env []string) []string {
	return slices.DeleteFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(name, "KUBERNETES_") || slices.Contains([]string{"HOME",
			"HOSTNAME", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"}, name)
	})
}

// lastWins drops all but the last entry of each name, and all that are not NAME=value.
func lastWins(env []string) []string {
	seen := make(map[string]bool, len(env))
	out := make([]string, 0, len(env))
	for _, e := range slices.Backward(env) {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || seen[name] || strings.ContainsRune(e, 0) {
			continue
		}
		seen[name] = true
		out = append(out, e)
	}
	slices.Reverse(out)
	return out
}

// getenv returns the value of name in env.
func getenv(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// shellOf returns the shell for a's commands, empty if the image has none: the account's own if it
// exists, else bash, else sh. It skips nologin and false: users with access to the sandbox may run
// programs in it, as with `docker exec`.
func shellOf(a Account) string {
	own := a.Shell
	switch filepath.Base(own) {
	case "nologin", "false":
		own = ""
	}
	for _, path := range []string{own, "/bin/bash", "/bin/sh"} {
		if path != "" && executable(path) {
			return path
		}
	}
	return ""
}

// executable reports whether path is a file with an execute permission.
func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// lookPath finds an executable by the PATH of env; it does not search for a name with a slash.
func lookPath(name string, env []string, dir string) string {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name
	}
	for _, d := range filepath.SplitList(getenv(env, "PATH")) {
		if path := filepath.Join(d, name); filepath.IsAbs(d) && executable(path) {
			return path
		}
	}
	return ""
}

// startDir returns the working directory of a's processes: the first that exists of want, the
// configured one and the home, else /.
func (g *Guest) startDir(a Account, want string) string {
	for _, dir := range []string{want, g.config.Workdir, a.Home} {
		if dir == "" || !filepath.IsAbs(dir) {
			continue
		}
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return "/"
}

// splitCommand splits a command line for an image without a shell. Blanks separate words; single
// quotes, double quotes and backslashes quote. Nothing is expanded.
func splitCommand(line string) []string {
	var words []string
	var word strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c != '\'', quote == '"' && c != '"' && c != '\\':
			word.WriteByte(c)
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			in = true
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words
}
