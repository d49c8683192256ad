package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// edges are what clients of every kind must see exactly, however quickly it happens.
var edges = []client{
	{"half-close",
		"ssh, through a master, plink, dbclient: `echo x | ssh sandbox 'cat; echo done'`, all of " +
			"5 MiB before it too; " +
			"output that ends before the input does", halfClose},
	{"quick endings",
		"the same programs: 40 short commands each, all bytes, exact exit codes, empty standard " +
			"error", quickEndings},
	{"ssh -A: two clients", "at once, each with its own agent, which signs for that client only",
		twoAgents},
}

// programs are those that run a command without a terminal: what to put before the command, by
// name. end ends what they share.
func (l *lab) programs() (by map[string][]string, end func(), err error) {
	putty, err := l.putty()
	if err != nil {
		return nil, nil, err
	}
	key := l.file("dropbear_key")
	if err := l.must("dropbearconvert", "openssh", "dropbear", l.at.Identity, key); err != nil {
		return nil, nil, err
	}
	sock := l.file("edges")
	if err := l.must(l.ssh("-M", "-S", sock, "-f", "-N", "demo@sbx")...); err != nil {
		return nil, nil, err
	}
	return map[string][]string{
		"ssh":    l.ssh("demo@sbx"),
		"ssh -S": l.ssh("-S", sock, "-o", "ProxyCommand=false", "demo@sbx"),
		"plink":  append(append([]string{"plink"}, putty...), "demo@127.0.0.1"),
		"dbclient": {"env", "-u", "SSH_AUTH_SOCK", "dbclient", "-y", "-y", "-i", key, "-p", l.port,
			"demo@127.0.0.1"},
	}, func() { l.run("", l.ssh("-S", sock, "-O", "exit", "demo@sbx")...) }, nil
}

// eachProgram does the same with each program, at once.
func (l *lab) eachProgram(f func(run func(stdin, command string) outcome) error) error {
	by, end, err := l.programs()
	if err != nil {
		return err
	}
	defer end()
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for name, argv := range by {
		all.Go(func() {
			err := f(func(stdin, command string) outcome {
				o := l.run(stdin, append(argv[:len(argv):len(argv)], command)...)
				if name == "dbclient" { // it says first, and always, that it checks no host key
					_, o.stderr, _ = strings.Cut(
						o.stderr, "skipping hostkey check for 127.0.0.1\n\n")
				}
				return o
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func halfClose(l *lab) error {
	data := string(l.bytes)
	return l.eachProgram(func(run func(stdin, command string) outcome) error {
		return all(
			func() error { return run("x\n", "cat; echo done").want(outcome{stdout: "x\ndone\n"}) },
			func() error {
				return run(data, "cat; echo done; exit 3").want(
					outcome{stdout: data + "done\n", exit: 3})
			},
			func() error { return run("", "cat; echo done").want(outcome{stdout: "done\n"}) },
			func() error {
				return run(data, "exec >&- 2>&-; test $(wc -c) = "+fmt.Sprint(len(data))+
					"; exit 5").want(outcome{exit: 5})
			},
		)
	})
}

func quickEndings(l *lab) error {
	var every strings.Builder
	for b := range 256 {
		every.WriteByte(byte(b))
	}
	bytes := every.String()
	return l.eachProgram(func(run func(stdin, command string) outcome) error {
		for n := range 10 {
			if err := all(
				func() error {
					return run("", fmt.Sprintf("exit %d", 40+n)).want(outcome{exit: 40 + n})
				},
				func() error { return run("", "true").want(outcome{}) },
				func() error {
					return run(bytes, fmt.Sprintf("cat; exit %d", n)).want(
						outcome{stdout: bytes, exit: n})
				},
				func() error {
					return run("", "printf end; sleep 0.1; exit 9").want(
						outcome{stdout: "end", exit: 9})
				},
			); err != nil {
				return fmt.Errorf("round %d: %w", n, err)
			}
		}
		return nil
	})
}

// twoAgents has each of two clients, at once, list the keys of its agent and sign with it, some
// times; and a third without one fail.
func twoAgents(l *lab) error {
	const command = `for i in 1 2 3 4 5; do ssh-add -L || exit; sleep 0.1; done; echo message >m$$; ` +
		`ssh-add -L >k$$.pub; ssh-keygen -q -Y sign -n test -f k$$.pub m$$ 2>/dev/null && test -s m$$.sig && rm -f m$$* k$$*`
	var clients sync.WaitGroup
	errs := make([]error, 3)
	for n := range 2 {
		sock, key := l.file(fmt.Sprintf("agent%d", n)), l.file(fmt.Sprintf("agentkey%d", n))
		env := []string{"SSH_AUTH_SOCK=" + sock}
		if err := l.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C",
			fmt.Sprint("client ", n), "-f", key); err != nil {
			return err
		}
		stop, err := l.background("ssh-agent", "-D", "-a", sock)
		if err != nil {
			return err
		}
		defer stop()
		if err := eventually(l.ctx, func() error {
			return l.runWith(env, "", "ssh-add", "-q", key).want(outcome{})
		}); err != nil {
			return err
		}
		mine := l.runWith(env, "", "ssh-add", "-L")
		if err := mine.want(outcome{stdout: mine.stdout}); err != nil {
			return err
		}
		clients.Go(func() {
			errs[n] = l.runWith(env, "", l.ssh("-A", "demo@sbx", command)...).want(
				outcome{stdout: strings.Repeat(mine.stdout, 5)})
		})
	}
	clients.Go(func() {
		o := l.run("", l.ssh("-a", "demo@sbx", "ssh-add -L 2>/dev/null")...)
		errs[2] = o.want(outcome{exit: 2})
	})
	clients.Wait()
	return errors.Join(errs...)
}
