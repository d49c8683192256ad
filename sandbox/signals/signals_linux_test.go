package signals

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// asChild is a variable that says what this program does when a test starts it with ignored
// signals.
const asChild = "SANDBOXD_TEST_SIGNALS"

func TestMain(m *testing.M) {
	switch os.Getenv(asChild) {
	case "":
		os.Exit(m.Run())
	case "inherit":
	case "default":
		DefaultForChildren()
	case "undone":
		DefaultForChildren()()
	case "survive":
		DefaultForChildren()
		for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP} {
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				panic(err)
			}
		}
	}
	grep := exec.Command("grep", "SigIgn", "/proc/self/status")
	grep.Stdout, grep.Stderr = os.Stdout, os.Stderr
	if err := grep.Run(); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// TestDefaultForChildren starts this program with many ignored signals, and checks which signals
// its own child ignores.
func TestDefaultForChildren(t *testing.T) {
	const none = 0
	for _, tt := range []struct {
		name, ignore, do string
		want             uint64
	}{
		{"none is ignored", "", "default", none},
		{"inherited without it", "HUP INT QUIT PIPE TERM", "inherit", 3},
		{"by nohup", "HUP", "default", none},
		{"by a shell's &", "INT QUIT", "default", none},
		{"all that can be", "HUP INT QUIT PIPE ALRM TERM USR1 USR2 CHLD TSTP TTIN TTOU URG WINCH IO", "default", none},
		{"undone", "HUP INT", "undone", 3},
		{"the process still ignores them", "HUP INT TSTP", "survive", none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", `[ -z "$1" ] || trap '' $1; exec "$0"`, os.Args[0],
				tt.ignore)
			cmd.Env = append(os.Environ(), asChild+"="+tt.do)
			// nohup(1) may have started this test.
			defer DefaultForChildren()()
			out, err := cmd.CombinedOutput()
			mask, perr := strconv.ParseUint(
				strings.TrimPrefix(strings.TrimSpace(string(out)), "SigIgn:\t"), 16, 64)
			mask &^= 1<<31 | 1<<32 // 32 and 33 belong to a C library
			if err != nil || perr != nil || mask != tt.want {
				t.Errorf("a child ignores %x, %v, %v; want %x", mask, err, perr, tt.want)
			}
		})
	}
}

// TestNotifyStillDelivers checks that the caller's own handler gets a signal that was ignored at
// the start.
func TestNotifyStillDelivers(t *testing.T) {
	defer DefaultForChildren()()
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGHUP)
	defer signal.Stop(got)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-got
}
