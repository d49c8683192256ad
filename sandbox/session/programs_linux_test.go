package session_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// timedCompany is a program like every idle Go or Java program: a reader, and a thread in a timed
// futex.
const timedCompany = `
import threading
e = threading.Lock(); e.acquire()
threading.Thread(target=lambda: e.acquire(timeout=1000), daemon=True).start()
input()`

// TestPrograms checks the results of calls to programs that read the keyboard in different ways.
func TestPrograms(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	for _, tt := range []struct {
		needs, command string
		ended          wire.Ended
		want           wire.Want
		listens        bool
	}{
		{"cat", "cat", wire.Waiting, wire.WantLine, false},
		{"cat", "(sleep 0.2; read x)", wire.Waiting, wire.WantLine, false},
		{"cat", "cat | grep x", wire.Waiting, wire.WantLine, false},
		{"cat", "read -t 20 x", wire.Attention, wire.WantLine, true},
		{"bash", "bash --norc", wire.Done, "", false},
		{"sh", "sh -c 'echo a; read x'", wire.Waiting, wire.WantLine, false},
		{"python3", "python3 -q", wire.Waiting, wire.WantRaw, false},
		{"python3", "python3 -c 'input(\"name? \")'", wire.Waiting, "", false},
		{"python3", "python3 -c 'import getpass; getpass.getpass()'", wire.Waiting,
			wire.WantPassword, false},
		{"less", "less /etc/services", wire.Waiting, wire.WantPager, false},
		{"vim", "vim -u NONE -N", wire.Attention, "", true},
		{"top", "top", wire.Attention, "", true},
		{"nano", "nano", wire.Waiting, wire.WantFullscreen, false},
		{"man", "MANPAGER=less man man", wire.Waiting, wire.WantPager, false},
		{"gdb", "gdb -q -nx", wire.Waiting, wire.WantRaw, false},
		{"sqlite3", "sqlite3", wire.Waiting, wire.WantRaw, false},
		{"strace", "strace -fo /dev/null cat", wire.Waiting, wire.WantLine, false},
		{"script", "script -qc cat /dev/null", wire.Waiting, wire.WantLine, false},
		{"sudo", "sudo -n cat", wire.Waiting, wire.WantLine, false},
		{"ssh-keygen", "ssh-keygen -t ed25519 -f key", wire.Waiting, wire.WantPassword, false},
		{"python3", "python3 -c '" + timedCompany + "'", wire.Attention, wire.WantLine, true},
		{"cat", "cat &", wire.Done, "", false}, // stopped by SIGTTIN
		// A remaining background process delays nothing.
		{"sleep", "(sleep 100 &) ; sleep 100 &", wire.Done, "", false},
		{"sleep", "sleep 30", wire.Deadline, "", false},
		{"tail", "tail -f /dev/null", wire.Deadline, "", false},
	} {
		if _, err := exec.LookPath(tt.needs); err != nil {
			if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
				t.Errorf("%s is not on this machine; scripts/setup test installs it", tt.needs)
			}
			t.Logf("%s is not on this machine", tt.needs)
			continue
		}
		if tt.needs == "sudo" && exec.Command("sudo", "-n", "true").Run() != nil {
			t.Log("sudo asks for a password here")
			continue
		}
		timeout := int64(1500)
		if tt.ended != wire.Deadline {
			timeout = 50_000
		}
		began := time.Now()
		res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: tt.command, TimeoutMS: timeout})
		t.Logf(
			"%s: %s %s after %v, prompt %q, basis %v",
			tt.command,
			res.Ended,
			res.Want,
			time.Since(began).Round(100*time.Microsecond),
			res.Prompt,
			res.Basis,
		)
		if res.Ended != tt.ended || tt.want != "" && res.Want != tt.want ||
			res.Listens != tt.listens {
			t.Errorf(
				"%s: ended %s, want %q, listens %v, %+v",
				tt.command,
				res.Ended,
				res.Want,
				res.Listens,
				res.Error,
			)
		}
		if res := do(t, c, wire.Request{Verb: wire.VerbInterrupt}); res.Phase != wire.PhasePrompt {
			t.Fatalf("%s: interrupted: %s, %s, %+v", tt.command, res.Ended, res.Phase, res.Receipt)
		}
	}
}

// TestOpaqueSecret asks for a secret in a program that is known to forward the keyboard, and that
// has a connection.
func TestOpaqueSecret(t *testing.T) {
	t.Parallel()
	c := fresh(t, newSet(t, "/bin/bash"))
	docker := t.TempDir() + "/docker"
	run(t, c, `ln -s "$(python3 -c 'import sys; print(sys.executable)')" `+docker)
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: docker + ` -c '
import select, socket, termios
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
print("Password: ", end="", flush=True)
select.select([0, socket.create_server(("127.0.0.1", 0))], [], [])'; stty echo`})
	if res.Ended != wire.Attention || res.Phase != wire.PhaseOpaque ||
		res.Want != wire.WantPassword {
		t.Errorf(
			"got %s, %s, %q, want that a password may be asked for; output %q",
			res.Ended,
			res.Phase,
			res.Want,
			res.Output,
		)
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbType,
		Text: "secret"}); res.Phase != wire.PhasePrompt {
		t.Errorf("got %s, %s", res.Ended, res.Phase)
	}
}
