package agent_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// BenchmarkHostRun measures one command in a host's shell. median-ms is its duration, rtt-ms that
// of a request that the SSH server itself answers.
func BenchmarkHostRun(b *testing.B) {
	for _, tt := range tiers {
		b.Run(tt.tier, func(b *testing.B) {
			server := openssh.Start(b, openssh.Settings{RC: "PS1='$ '\n"})
			o := hostOptions(b, server)
			o.Host = tt.o
			c := dialHost(b, server.URI(), o, tt.tier)
			sh := attach(b, c, agent.ShellOptions{})
			key, err := os.ReadFile(server.Identity)
			if err != nil {
				b.Fatal(err)
			}
			signer, err := ssh.ParsePrivateKey(key)
			if err != nil {
				b.Fatal(err)
			}
			plain, err := ssh.Dial(
				"tcp",
				server.Addr(),
				&ssh.ClientConfig{User: server.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
					HostKeyCallback: ssh.FixedHostKey(server.Key.PublicKey())},
			)
			if err != nil {
				b.Fatal(err)
			}
			defer plain.Close()
			var took, trip []time.Duration
			for b.Loop() {
				begin := time.Now()
				res, err := sh.Run(bounded(b), "true")
				if err != nil || res.Ended != agent.EndedDone {
					b.Fatalf("run %d: %s, state %+v, %v", len(took), describe(res), sh.State(), err)
				}
				took = append(took, time.Since(begin))
				begin = time.Now()
				if _, _, err := plain.SendRequest("keepalive@openssh.com", true, nil); err != nil {
					b.Fatal(err)
				}
				trip = append(trip, time.Since(begin))
			}
			for unit, all := range map[string][]time.Duration{"median-ms": took, "rtt-ms": trip} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, unit)
			}
		})
	}
}
