// Interop proves the gateway as an SSH server: OpenSSH's own regression suite, the real programs
// that people use as clients, what editors send, and attacks on the login. It prints what passed
// and ends with 1 if anything failed that passed before, as the file ratchet says, or if anything
// fails at all.
//
//	make -C scripts interop                   everything, with a container and with a host behind
//	bin/interop -only clients/                some of it, once that has built it
//	bin/interop -behind host                  with an SSH server as the sandbox
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// groups are the parts, in the order in which they run and stand in the documentation.
var groups = []struct {
	name, title, about string
	once               bool // runs without a sandbox
	run                func(context.Context, *report) error
	names              func() []string // of its checks, as the table has them
}{
	{"openssh", "OpenSSH's regression suite",
		"The gateway and its relay, without a container: the scripts compare files and connect to " +
			"ports\nof the machine. *container*: the guest's SSH server; *host*: OpenSSH's.",
		false, regress, func() []string {
			return names(applies, func(s script) string { return s.name })
		}},
	{"dropbear", "Dropbear's remote tests",
		"Debian's dbclient with the tests of Debian's source package of Dropbear.",
		false, dropbear, func() []string {
			return names(dropbearTests, func(d dropbearTest) string { return d.name })
		}},
	{"clients", "Clients", "Programs of Debian 12 against a daemon.", false, clients,
		func() []string {
			return names(slices.Concat(openssh, others, edges),
				func(c client) string { return c.name })
		}},
	{"editors", "Editors", "What editors send, replayed against the same daemon.", false, editors,
		func() []string { return names(traces, func(c client) string { return c.name }) }},
	{"attacks", "Attacks on the login",
		"Go tests of `gateway/sshd` with large numbers, without a sandbox.", true, attacks,
		func() []string { return names(attackTests, func(a attack) string { return a.name }) }},
}

// names lists what the checks of a group are called.
func names[T any](list []T, of func(T) string) []string {
	all := make([]string, 0, len(list))
	for _, x := range list {
		all = append(all, of(x))
	}
	return all
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ok, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context) (bool, error) {
	docs := flag.Bool("docs", false, "put the results of what runs into "+page+
		" and what passed into "+ratchet)
	only := flag.String("only", "", "run only what matches, as group/name, or host/group/name")
	behind := flag.String("behind", "both", "what is behind the gateway: container, host or both")
	flag.Parse()
	r, err := newReport(*only, *behind)
	if err != nil {
		return false, err
	}
	began := time.Now()
	if err := r.play(ctx); err != nil {
		return false, err
	}
	broken, failed, err := r.judge()
	if err != nil {
		return false, err
	}
	fmt.Printf("\n%s, in %s\n", r.count(), time.Since(began).Round(time.Second))
	for _, key := range failed {
		fmt.Println("failed:", key)
	}
	for _, key := range broken {
		fmt.Println("passed before and does not now:", key)
	}
	if *docs && len(broken) == 0 {
		if err := r.tighten(); err != nil {
			return false, err
		}
		if err := r.document(versions(ctx)); err != nil {
			return false, err
		}
	}
	return len(broken) == 0 && len(failed) == 0, nil
}

// play runs all checks that were asked for.
func (r *report) play(ctx context.Context) error {
	defer endLabs()
	for _, r.behind = range r.backs {
		began := time.Now()
		for _, g := range groups {
			if g.once && r.behind == host {
				continue
			}
			if err := g.run(ctx, r); err != nil {
				return fmt.Errorf("%s, %s: %w", r.behind, g.name, err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		endLabs()
		r.took[r.behind] = time.Since(began)
	}
	return nil
}

// versions says what the run was made with.
func versions(ctx context.Context) string {
	first := func(name string, args ...string) string {
		// An unknown version is an empty one.
		out, _ := exec.CommandContext(ctx, name, args...).CombinedOutput()
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.TrimSpace(line)
	}
	all := []string{first("ssh", "-V"), "Linux " + first("uname", "-r"),
		"docker " + first("docker", "version", "--format", "{{.Server.Version}}")}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
}
