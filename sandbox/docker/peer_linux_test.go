package docker

import (
	"slices"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/attack"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A sandbox at its limits hardly affects the others. The bound is generous, twice the expected
// time, because the machine may have other work; the log has the numbers.
func TestAttackPeers(t *testing.T) {
	b := attacks.Open(t).(*Backend)
	inst := boot(t, b, sandbox.Spec{Image: sandbox.DefaultImage,
		Limits: sandbox.Limits{PIDs: 200, Memory: 128 << 20, Shm: 120 << 20, CPUs: 1}})
	c := login(t, b, inst)
	peer := login(t, b, boot(t, b, sandbox.Spec{}))
	latency := func() time.Duration { // the median of two seconds
		t.Helper()
		var took []time.Duration
		for first := time.Now(); time.Since(first) < 2*time.Second; {
			began := time.Now()
			mustSh(t, peer, "true")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	for _, tt := range []struct{ name, attack string }{
		{"fork bomb", `bash -c 'bomb() { bomb | bomb & }; bomb; sleep 1000'`},
		{"memory bomb", `while :; do tail /dev/zero; done`},
		{"shm bomb", `while :; do dd if=/dev/zero of=/dev/shm/x bs=1M; done`},
		{"disk fill", `while :; do dd if=/dev/zero of=/fill bs=1M count=200; done`},
		{"inodes", `mkdir -p /many; cd /many; i=0; while [ $i -lt 20 ]; do i=$((i+1)); seq ${i}00000 ${i}01000 | xargs touch; done; while :; do :; done`},
		{"sockets", `while :; do python3 -c 'import socket
held = []
while True: held.append(socket.socket(socket.AF_UNIX))'; done`},
		{"flood", `yes`},
		{"log", `while :; do echo flood >/proc/1/fd/1; done`},
		{"zombies", attack.Python("import time\nwhile True:\n    try:\n        if os.fork() == 0: os._exit(0)\n    except OSError: time.sleep(0.001)")},
	} {
		before := latency()
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		if err := s.Start(tt.attack + " >/dev/null 2>&1"); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- s.Wait() }()
		latency() // until the load is under way
		worked := usageOf(t, b, inst).CPU
		during := latency()
		worked = usageOf(t, b, inst).CPU - worked
		t.Logf("%s: %v before, %v during (%.1f times), in which it took %v of a processor", tt.name,
			before, during, during.Seconds()/before.Seconds(), worked)
		if worked == 0 {
			t.Errorf("%s: it did nothing", tt.name)
		}
		if during > 2*before+200*time.Millisecond {
			t.Errorf("%s: a call of another sandbox took %v, and %v before", tt.name, during,
				before)
		}
		if _, err := control(t, b, inst).Do(t.Context(), wire.Control{Do: "rescue"}); err != nil {
			t.Fatalf("%s: rescue: %v", tt.name, err)
		}
		<-ended
		mustSh(t, c, "rm -rf /fill /many /dev/shm/x")
	}
	if u := usageOf(t, b, inst); u.OOMKills == 0 || u.PIDsRefused == 0 {
		t.Errorf("got %+v, want the bombs counted", u)
	}
	if got := mustSh(t, c, "echo here"); got != "here" {
		t.Errorf("afterwards: got %q", got)
	}
}

func usageOf(t *testing.T, b *Backend, inst sandbox.Instance) sandbox.Usage {
	t.Helper()
	u, err := b.Usage(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
