package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// attack is a Go test of gateway/sshd that takes larger numbers when asked to.
type attack struct{ name, test, note string }

var attackTests = []attack{
	{"packets before the keys", "TestStrictKex",
		"IGNORE, DEBUG and UNIMPLEMENTED before NEWKEYS end the connection (Terrapin)"},
	{"half-open connections", "TestHalfOpenFlood",
		"10,000 from one source and from 1,000: sessions continue, another login takes less than " +
			"2 s, memory below 300 MB"},
	{"endless rekeying", "TestRekey(Flood|NeverEnds)",
		"a client that exchanges keys endlessly, and one that never finishes: bounded memory, " +
			"the connection ends"},
	{"FIDO keys", "TestSecurityKeys",
		"a signature without touch is rejected, unless the key's line has no-touch-required"},
}

// full makes the tests take the full numbers.
const full = "SANDBOXD_INTEROP_FULL=1"

func attacks(ctx context.Context, r *report) error {
	for _, a := range attackTests {
		r.check("attacks", a.name, a.note, func() error {
			c := exec.CommandContext(ctx, "scripts/go", "test", "-count=1", "-timeout=10m", "-run",
				"^"+a.test+"$", "./gateway/sshd")
			c.Env = append(os.Environ(), full, "SANDBOXD_TEST_REQUIRE=1")
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w\n%s", err, tail(string(out), 30))
			}
			return nil
		})
	}
	return nil
}
