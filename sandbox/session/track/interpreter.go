package track

import (
	"path/filepath"
	"slices"
	"strings"
)

// interpreters are programs that take statements at a prompt of their own, without digits and dots
// at the end of their name, and these prompts: one * stands for any text. What a program asks in
// between is no such prompt.
var interpreters = map[string][]string{
	"python":    {">>>", "...", "(Pdb)"},
	"pypy":      {">>>>", "....", "(Pdb)"},
	"ipython":   {"In [*", "*...:", "ipdb>"},
	"node":      {">", "...*", "|"},
	"bun":       {">"},
	"deno":      {">"},
	"psql":      {"*=#", "*=>", "*-#", "*->", "*(#", "*(>", "*'#", "*'>"},
	"mysql":     {"mysql>", "->"},
	"mariadb":   {"MariaDB [*", "->"},
	"sqlite":    {"sqlite>", "...>"},
	"redis-cli": {"*>"},
	"mongosh":   {"*>"},
	"irb":       {"irb(*", "*>"},
	"gdb":       {"(gdb)", ">"},
	"lldb":      {"(lldb)"},
	"lua":       {">", ">>"},
	"luajit":    {">", ">>"},
	"ghci":      {"*>", "*|"},
	"ghc":       {"*>", "*|"},
	"R":         {">", "+"},
	"julia":     {"julia>"},
	"php":       {"php >", "php {*", "php (*"},
	"perl":      {"DB<*"},
	"erl":       {"*>"},
	"beam.smp":  {"*>"},
	"iex":       {"iex(*", "...(*"},
	"sftp":      {"sftp>"},
	"ftp":       {"ftp>"},
}

// interpreter returns the name of the program with the arguments argv if it is an interpreter at
// its own prompt, which is before the cursor; otherwise it is empty. A script's name counts as its
// program's: ipython is one of python. With -c, it runs a program.
func interpreter(argv []string, before string) string {
	// Each of these prompts ends with a space. A program that prints dots does not.
	if !strings.HasSuffix(before, " ") || slices.Contains(argv, "-c") {
		return ""
	}
	before = strings.TrimSpace(before)
	if len(argv) > 0 && runtimes[nameOf(argv[0])] && runsScript(argv[1:]) {
		return ""
	}
	for _, arg := range argv[:min(len(argv), 2)] {
		name := filepath.Base(arg)
		for _, prompt := range interpreters[nameOf(arg)] {
			if matches(prompt, before) {
				return name
			}
		}
	}
	return ""
}

// runtimes are interpreters that mostly run programs. Such a program may draw the same prompt while
// it works, as Gemini CLI does.
var runtimes = map[string]bool{"node": true, "bun": true, "deno": true}

// runsScript reports whether a runtime with these arguments runs a program and takes no statements.
func runsScript(args []string) bool {
	script, value := false, false
	for _, arg := range args {
		switch {
		case value:
			value = false
		case arg == "-i", arg == "--interactive", arg == "repl":
			return false
		case valued[arg]:
			value = true
		case !strings.HasPrefix(arg, "-"):
			script = true
		}
	}
	return script
}

// valued are options of runtimes whose value is the next argument.
var valued = map[string]bool{"-r": true, "--require": true, "--import": true, "--loader": true,
	"--env-file": true, "-C": true, "--conditions": true, "--title": true}

// nameOf returns the name of a program without its version, such as python for
// /usr/bin/python3.11.
func nameOf(arg string) string { return strings.TrimRight(filepath.Base(arg), "0123456789.") }

// matches reports whether text is pattern, in which one * stands for any text.
func matches(pattern, text string) bool {
	first, last, star := strings.Cut(pattern, "*")
	if !star {
		return text == pattern
	}
	return len(text) >= len(first)+len(last) && strings.HasPrefix(text, first) &&
		strings.HasSuffix(text, last)
}
