package agent_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
)

// waits fails the test unless a call ended with EndedWaiting.
func waits(t testing.TB, res agent.Result, err error, prompt string) {
	t.Helper()
	if err != nil || res.Ended != agent.EndedWaiting || res.Phase != agent.PhaseWaiting ||
		res.Prompt != prompt ||
		res.ExitCode != nil {
		t.Fatalf("%s at prompt %q, %v; want waiting at %q", describe(res), res.Prompt, err, prompt)
	}
}

func TestQuestions(t *testing.T) {
	for _, test := range []struct {
		name, command, prompt string
		want                  string
		answer                string
		output                string // of the answer, after its echo
	}{
		{"read", `read -p 'Continue? [Y/n] ' x; echo "got $x"`, "Continue? [Y/n] ", "line", "y", "got y\n"},
		{"read without a prompt", `read x; echo "got $x"`, "", "line", "y", "got y\n"},
		{"read in a child", `sh -c 'printf "name: "; read x; echo "got $x"'`, "name: ", "line", "a b", "got a b\n"},
		{"password", `read -sp 'Password: ' x; echo; echo "got $x"`, "Password: ", "password", "secret", "\ngot secret\n"},
		{"python input", `python3 -c 'x = input("your name: "); print("hello", x)'`, "your name: ", "line", "ann", "hello ann\n"},
		{"getpass", `python3 -c 'import getpass; print("got", getpass.getpass("Secret: "))'`, "Secret: ", "password", "s", "\ngot s\n"},
		{"cat", "head -n 1", "", "line", "a", "a\n"},
		{"pipe", "(read x; echo $x) | cat", "", "line", "a", "a\n"},
		{"terminal by name", "sh -c 'read x </dev/tty; echo $x' </dev/null", "", "line", "a",
			"a\n"},
		{"select", "select x in a b; do echo \"got $x\"; break; done", "#? ", "line", "2",
			"got b\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			sh := shell(t)
			res, err := sh.Run(bounded(t), test.command)
			waits(t, res, err, test.prompt)
			if string(res.Want) != test.want {
				t.Errorf("wants %q, want %q", res.Want, test.want)
			}
			if res.Keyboard != "agent:alice" {
				t.Errorf("keyboard %q", res.Keyboard)
			}
			res, err = sh.Type(bounded(t), test.answer)
			out := done(t, res, err, 0)
			want := test.answer + "\n" + test.output
			if test.want == "password" {
				want = test.output
			}
			if out != want {
				t.Errorf("after the answer %q, want %q", out, want)
			}
		})
	}
}

func TestTypeAtPrompt(t *testing.T) {
	sh := shell(t)
	res, err := sh.Type(bounded(t), "echo typed")
	if out := done(t, res, err, 0); !strings.HasSuffix(out, "typed\n") {
		t.Errorf("output %q", out)
	}
	if res, err = sh.Type(bounded(t), "echo 'a"); err != nil ||
		res.Ended != agent.EndedContinuation ||
		res.Phase != agent.PhaseContinuation {
		t.Fatalf("an open quote: %s, %v", describe(res), err)
	}
	if res, err = sh.Run(bounded(t), "true"); err != nil || res.Ended != agent.EndedRefused ||
		res.Error.Code != "not_prompt" {
		t.Errorf("run at PS2: %s, %v", describe(res), err)
	}
	res, err = sh.Type(bounded(t), "b'")
	if out := done(t, res, err, 0); !strings.HasSuffix(out, "a\nb\n") {
		t.Errorf("output %q", out)
	}
	if res, err = sh.Type(bounded(t), "if true"); err != nil ||
		res.Ended != agent.EndedContinuation {
		t.Fatalf("an open if: %s, %v", describe(res), err)
	}
	if res, err = sh.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedInterrupted ||
		res.Phase != agent.PhasePrompt {
		t.Errorf("interrupt at PS2: %s, %v", describe(res), err)
	}
	if res, err = sh.Keys(bounded(t), "Enter"); err != nil || res.Ended != agent.EndedDone ||
		res.ExitCode != nil { // of what was interrupted
		t.Errorf("Enter at the prompt: %s, %v", describe(res), err)
	}
	if res, err = sh.Type(bounded(t), ""); err != nil || res.Ended != agent.EndedDone {
		t.Errorf("Enter alone: %s, %v", describe(res), err)
	}
}

func TestKeys(t *testing.T) {
	sh := shell(t)
	res, err := sh.Run(bounded(t), "cat")
	waits(t, res, err, "")
	res, err = sh.Keys(bounded(t), "a", "b", "Backspace", "c", "Enter")
	waits(t, res, err, "")
	if !strings.HasSuffix(res.Output, "ac\n") {
		t.Errorf("output %q", res.Output)
	}
	res, err = sh.Do(bounded(t), agent.Call{Text: "raw\n", Raw: true})
	waits(t, res, err, "")
	if res.Output != "raw\nraw\n" {
		t.Errorf("output %q", res.Output)
	}
	res, err = sh.Keys(bounded(t), "^C")
	if err != nil || res.Ended != agent.EndedDone || res.ExitCode == nil || *res.ExitCode != 130 {
		t.Errorf("after ^C: %s, %v", describe(res), err)
	}
}

// An idle program that polls the keyboard and draws a screen: attention.
func TestAttention(t *testing.T) {
	sh := shell(t)
	const program = `import os,select,sys,termios,tty
old=termios.tcgetattr(0); tty.setraw(0)
sys.stdout.write("\x1b[?1049h\x1b[2J\x1b[Hmenu: q quits"); sys.stdout.flush()
while True:
  if select.select([0],[],[],0.2)[0] and os.read(0,1)==b"q": break
sys.stdout.write("\x1b[?1049l"); sys.stdout.flush()
termios.tcsetattr(0,termios.TCSANOW,old)`
	res, err := sh.Run(bounded(t), "python3 -c '"+program+"'")
	if err != nil || res.Ended != agent.EndedAttention || res.Phase != agent.PhaseRunning ||
		!res.Listens ||
		res.Attention != "likely" ||
		res.QuietMS < 500 {
		t.Fatalf(
			"%s, listens %t, attention %s, quiet %d ms, %v",
			describe(res),
			res.Listens,
			res.Attention,
			res.QuietMS,
			err,
		)
	}
	screen, err := sh.Screen(bounded(t))
	if err != nil || !screen.AltScreen || !strings.Contains(screen.Text, "menu: q quits") {
		t.Errorf("screen %+v, %v", screen, err)
	}
	res, err = sh.Keys(bounded(t), "q")
	done(t, res, err, 0)
	if screen, err = sh.Screen(bounded(t)); err != nil || screen.AltScreen || screen.Cols != 120 ||
		screen.Rows != 40 {
		t.Errorf("screen %+v, %v", screen, err)
	}
}

// firstBytes signals that something was printed.
type firstBytes struct {
	once sync.Once
	came chan struct{}
}

func (f *firstBytes) Write(p []byte) (int, error) {
	f.once.Do(func() { close(f.came) })
	return len(p), nil
}

func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		name, command string
		steps         []string
		phase         string
	}{
		{"sleep", "sh -c 'echo begun; exec sleep 31'", []string{"^C"}, "prompt"},
		{"loop of the shell", "echo begun; while :; do :; done", []string{"^C"}, "prompt"},
		{"flood", "sh -c 'echo begun; exec yes'", []string{"^C"}, "prompt"},
		{"rest of a list", "sh -c 'echo begun; exec sleep 31'; echo not this", []string{"^C"},
			"prompt"},
		{"ignores INT", `sh -c 'trap "" INT; echo begun; while :; do sleep 0.1; done'`, []string{"^C", "TERM"}, "prompt"},
		{"ignores INT and TERM", `sh -c 'trap "" INT TERM; echo begun; while :; do sleep 0.1; done'`, []string{"^C", "TERM", "KILL"}, "prompt"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for programs that do not end
			sh := shell(t)
			ran := make(chan agent.Result, 1)
			began := &firstBytes{came: make(chan struct{})}
			go func() {
				res, _ := sh.Do(bounded(t), agent.Call{Command: test.command, Stdout: began})
				ran <- res
			}()
			select {
			case <-began.came: // in a flood it soon leaves the window of Expect
			case <-bounded(t).Done():
				t.Fatal("it never began")
			}
			// A program can print before it is ready for the signal.
			if res, err := sh.Do(bounded(t), agent.Call{Command: "true"}); err != nil ||
				res.Ended != agent.EndedRefused {
				t.Fatalf("%s, %v", describe(res), err)
			}
			res, err := sh.Interrupt(bounded(t))
			if err != nil || res.Ended != agent.EndedInterrupted ||
				string(res.Phase) != test.phase ||
				res.Receipt == nil {
				t.Fatalf("%s, %v", describe(res), err)
			}
			if got := res.Receipt; !slices.Equal(got.Steps, test.steps) || len(got.Left) > 0 ||
				len(got.Signaled) != len(got.Died) ||
				(len(test.steps) > 1) != (len(got.Died) > 0) {
				t.Errorf("receipt %+v, want steps %v and none left", *got, test.steps)
			}
			if first := <-ran; first.Ended != agent.EndedInterrupted || first.ExitCode == nil ||
				*first.ExitCode == 0 ||
				strings.Contains(first.Output, "not this") {
				t.Errorf("the run: %s", describe(first))
			}
			res, err = sh.Run(bounded(t), "echo on")
			if got := done(t, res, err, 0); got != "on\n" {
				t.Errorf("the next prints %q", got)
			}
		})
	}
}

// The end of the shell is reported immediately. The next command runs in a new shell, with a note.
func TestDead(t *testing.T) {
	for _, test := range []struct {
		name, command, output string
		code                  int // or
		signal                string
	}{
		{"exit", "exit", "exit\n", 0, ""},
		{"exit 3", "echo bye; exit 3", "bye\nexit\n", 3, ""},
		{"killed", "echo bye; kill -9 $$", "bye\n", -1, "KILL"},
		{"exec", "exec sh -c 'echo instead; exit 4'", "instead\n", 4, ""},
		{"set -e", "set -e; echo a; false; echo b", "a\n", 1, ""},
		{"trap", "trap 'echo last' EXIT; exit 5", "exit\nlast\n", 5, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			sh := shell(t)
			res, err := sh.Run(bounded(t), "x=1; cd /tmp")
			done(t, res, err, 0)
			res, err = sh.Run(bounded(t), test.command)
			if err != nil || res.Ended != agent.EndedDead || res.Phase != agent.PhaseDead ||
				res.Output != test.output {
				t.Fatalf("%s, %v; want dead with output %q", describe(res), err, test.output)
			}
			switch {
			case test.signal != "":
				if res.Signal == nil || *res.Signal != test.signal || res.ExitCode != nil {
					t.Errorf("%s, want signal %s", describe(res), test.signal)
				}
			case res.ExitCode == nil || *res.ExitCode != test.code || res.Signal != nil:
				t.Errorf("%s, want exit code %d", describe(res), test.code)
			}
			if st := sh.State(); st.Phase != agent.PhaseDead {
				t.Errorf("state %+v", st)
			}
			if res, err = sh.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedRefused {
				t.Errorf("interrupt: %s, %v", describe(res), err)
			}
			res, err = sh.Run(bounded(t), "echo x=$x")
			if got := done(t, res, err, 0); got != "x=\n" ||
				!slices.Contains(res.Notes, "shell_restarted") {
				t.Errorf("the next: %q, notes %v", got, res.Notes)
			}
			res, err = sh.Run(bounded(t), "true")
			done(t, res, err, 0)
			if len(res.Notes) > 0 {
				t.Errorf("the one after: notes %v", res.Notes)
			}
		})
	}
}

func TestWait(t *testing.T) {
	sh := shell(t)
	res, err := sh.Wait(bounded(t), agent.PhasePrompt)
	done(t, res, err, 0)
	if res, err = sh.Wait(bounded(t), agent.PhaseRunning); err != nil ||
		res.Ended != agent.EndedRefused ||
		res.Error.Code != "usage" {
		t.Errorf("wait for running: %s, %v", describe(res), err)
	}
	res, err = sh.Do(
		bounded(t),
		agent.Call{Command: "sh -c 'sleep 0.3; read x; exit 6'", Timeout: 1},
	)
	if err != nil || res.Ended != agent.EndedDeadline && res.Ended != agent.EndedRefused {
		t.Fatalf("%s, %v", describe(res), err)
	}
	if res.Ended == agent.EndedRefused { // a millisecond was not even enough to begin
		go sh.Run(bounded(t), "sh -c 'sleep 0.3; read x; exit 6'")
	}
	if res, err = sh.Wait(bounded(t), agent.PhaseWaiting, agent.PhaseDead); err != nil ||
		res.Ended != agent.EndedWaiting {
		t.Fatalf("%s, %v", describe(res), err)
	}
	res, err = sh.Type(bounded(t), "")
	done(t, res, err, 6)
}

func TestEnd(t *testing.T) {
	c := dial(t)
	sh := attach(t, c, agent.ShellOptions{Session: "build"})
	res, err := sh.Run(bounded(t), "read x")
	waits(t, res, err, "")
	if err := sh.End(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := sh.Run(bounded(t), "true"); err == nil {
		t.Error("a command runs in a session that was closed")
	}
	if _, err := c.Attach(bounded(t), agent.ShellOptions{Session: "build", NoNew: true}); !isCode(
		err,
		"not_found",
	) {
		t.Errorf("attach: %v, want not_found", err)
	}
	again := attach(t, c, agent.ShellOptions{Session: "build"})
	res, err = again.Run(bounded(t), "echo new")
	if got := done(t, res, err, 0); got != "new\n" {
		t.Errorf("output %q", got)
	}
}

// A program that asks for a shell may type into it at once, also where an earlier shell of the
// session ended with its sandbox.
func TestTypeIntoANewShell(t *testing.T) {
	sh := ready(t)
	if _, err := sh.Run(bounded(t), "true"); err != nil {
		t.Fatal(err)
	}
	name := sandboxName(t)
	if err := world.hub.Stop(bounded(t), alice, name); err != nil {
		t.Fatal(err)
	}
	if _, err := world.hub.Start(bounded(t), alice, name, nil); err != nil {
		t.Fatal(err)
	}
	res, err := attach(t, dial(t), agent.ShellOptions{}).Type(bounded(t), "echo $((40+2))")
	if out := done(t, res, err, 0); !strings.HasSuffix(out, "\n42\n") {
		t.Errorf("output %q", out)
	}
}
