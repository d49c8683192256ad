package marks

import (
	"strings"
	"testing"
)

// TestZsh starts zsh with typical .zshrc files, runs commands and types some.
func TestZsh(t *testing.T) {
	path := shells(t)["zsh"]
	for _, test := range []struct{ name, rc string }{
		{"nothing", ""},
		{"prompts", "PROMPT='%n@%m %~ %# ' RPROMPT='%T' PS2='more> '"},
		{"a prompt of two lines", "PROMPT=$'%~\\n%# '"},
		{"precmd and preexec", "precmd() { : }; preexec() { : }"},
		{"hooks that fail", "precmd() { false }; preexec() { false }"},
		{"hooks", "autoload -Uz add-zsh-hook; f() { PROMPT=\"$? > \" }; add-zsh-hook precmd f; add-zsh-hook preexec f"},
		{"a prompt theme", "autoload -Uz promptinit; promptinit; prompt adam1"},
		{"vcs_info", "autoload -Uz vcs_info; precmd() { vcs_info }; setopt promptsubst; PROMPT='${vcs_info_msg_0_}> '"},
		{"completion", "autoload -Uz compinit; compinit -D -u"},
		{"vi", "bindkey -v"},
		{"emacs", "bindkey -e"},
		{"keys reset", "zle -N zle-line-init f; f() { zle reset-prompt }; bindkey -d"},
		{"a widget at the start of lines", "zle-line-init() { echoti smkx 2>/dev/null; : }; zle -N zle-line-init; zle-line-finish() { echoti rmkx 2>/dev/null; : }; zle -N zle-line-finish"},
		{"widgets by hooks", "autoload -Uz add-zle-hook-widget; f() { : }; add-zle-hook-widget line-init f"},
		{"widgets by hooks, later", "autoload -Uz add-zsh-hook add-zle-hook-widget; f() { : }; g() { add-zle-hook-widget line-init f }; add-zsh-hook precmd g"},
		{"accept-line of the user's", "f() { zle .accept-line; : }; zle -N accept-line f"},
		{"errexit", "setopt errexit"},
		{"nounset", "setopt nounset"},
		{"xtrace", "setopt xtrace"},
		{"other options", "setopt ksharrays shwordsplit noglob extendedglob allexport noclobber cshnullglob globsubst warncreateglobal noprompt_sp"},
		{"history options", "setopt sharehistory histignorespace histignoredups; HISTFILE=~/.zsh_history HISTSIZE=50 SAVEHIST=50"},
		{"emulation of sh", "emulate sh"},
		{"emulation of ksh", "emulate ksh"},
		{"aliases", "alias eval='echo no' print='echo no' stty='echo no' zle='echo no' -g x=y"},
		{"no missing newlines", "PROMPT_EOL_MARK="},
		{"a DEBUG trap", "trap 'n=$((n+1))' DEBUG"},
		{"an ERR trap", "trap 'n=$((n+1))' ZERR"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: path, home: map[string]string{".zshrc": test.rc}})
			s.prompt()
			traced := test.name == "xtrace"
			for _, step := range []struct {
				command, out string
				exit         int
			}{{"echo hi", "hi\n", 0}, {"printf x", "x", 0}, {"! true", "", 1},
				{"false || echo $?", "1\n", 0}, {"sh -c 'exit 0'; echo \"a!b\"", "a!b\n", 0}} {
				got := s.run(step.command)
				if got.exit != step.exit || got.out != step.out &&
					!(traced && strings.HasSuffix(got.out, step.out)) {
					t.Errorf("%s: got %v, want {%q exit %d}", step.command, got, step.out,
						step.exit)
				}
			}
			for range 2 {
				s.typ("printf typed\r")
				start := s.next(CommandStart)
				end := s.next(CommandEnd)
				if got := s.between(start, end); !strings.HasSuffix(got, "typed") || end.Exit != 0 {
					t.Errorf("typed: got %q, exit %d", got, end.Exit)
				}
				s.prompt()
			}
			out := s.output()
			if strings.Contains(out, s.nonce.String()) || traced && strings.Contains(out, "sbx_p") {
				t.Errorf("the integration is in the output: %q", out)
			}
			if got := s.run("env | grep '__sbx\\|7337;' || echo none"); !strings.HasSuffix(
				got.out, "none\n") {
				t.Errorf("in the environment: %v", got)
			}
		})
	}
}

// TestZshHistory checks that commands are in the history once and unchanged, without our lines.
func TestZshHistory(t *testing.T) {
	for name, want := range map[string]string{
		"": "echo one\necho 'two\nthree'\n secret\n", "setopt histignorespace": "echo one\necho 'two\nthree'\n",
	} {
		s := open(t, start{path: shells(t)["zsh"], home: map[string]string{".zshrc": name}})
		s.prompt()
		s.run("echo one")
		s.run("echo 'two\nthree'")
		s.run(" secret")
		if got := s.run("fc -ln 1"); got.out != strings.ReplaceAll(want, "two\nthree",
			`two\nthree`) {
			t.Errorf("%s: got %q, want %q", name, got.out, want)
		}
	}
}

// TestZshRepair removes hooks. The remaining hooks, or the next command, must restore them.
func TestZshRepair(t *testing.T) {
	for _, lose := range []string{"precmd_functions=()", "preexec_functions=()",
		"precmd_functions=() preexec_functions=()", "zle -D zle-line-init",
		"zle -N zle-line-init f; f() { : }", "precmd_functions=(f); f() { : }",
		"unset precmd_functions", "bindkey -d"} {
		t.Run(lose, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: shells(t)["zsh"]})
			s.prompt()
			s.typ(lose + "\r")
			s.prompt()
			for range 2 {
				if got := s.run("(exit 77)"); got.exit != 77 {
					t.Errorf("got %v, want exit 77", got)
				}
			}
		})
	}
}

// TestZshDirectory checks that the user's ZDOTDIR stays unchanged.
func TestZshDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		s    start
		want string
	}{
		{start{home: map[string]string{".zshenv": "x=env", ".zshrc": "y=rc"}}, "env rc unset\n"},
		{start{env: []string{"ZDOTDIR=" + dir}, home: map[string]string{".zshenv": "x=no"}}, " " + " " + dir + "\n"},
		{start{home: map[string]string{".zshenv": "ZDOTDIR=" + dir, ".zshrc": "y=no"}}, " " + " " + dir + "\n"},
		{start{opt: Options{Login: true}, home: map[string]string{".zprofile": "x=profile", ".zlogin": "y=login"}}, "profile login unset\n"},
	} {
		test.s.path = shells(t)["zsh"]
		s := open(t, test.s)
		s.prompt()
		if got := s.run(`echo "$x $y ${ZDOTDIR-unset}"`); got.out != test.want {
			t.Errorf("got %q, want %q", got.out, test.want)
		}
	}
}
