//go:build cluster

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// node is the one that make -C scripts kubernetes has started. The test runs in its network
// namespace.
type node struct {
	*machine
	dir string
}

// newNode returns a daemon whose sandboxes are pods of the node.
func newNode(t *testing.T) node {
	t.Helper()
	n := node{newMachine(t), os.Getenv("SANDBOXD_TEST_CLUSTER")}
	config := filepath.Join(n.machine.dir, "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `backend: kubernetes
image: sandboxd.test/base:1
network: bridge
http: none
kubernetes:
  kubeconfig: %s/run/pki/admin.kubeconfig
  guest_image: sandboxd.test/guest:1
  guest: volume
`, n.dir), 0o600))
	n.env = append(n.env, "SANDBOXD_CONFIG="+config)
	n.machine.start()
	return n
}

// part does something with a part of the node: stop or start, kubelet.
func (n node) part(verb, name string) {
	n.t.Helper()
	out, err := exec.Command("../../scripts/k8s/cluster", verb, n.dir, name).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s %s: %v: %s", verb, name, err, out)
	}
}

// kubectl runs kubectl.
func (n node) kubectl(args ...string) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.dir, "bin", "kubectl"), append([]string{"--kubeconfig",
		n.dir + "/run/pki/admin.kubeconfig", "--cache-dir", n.t.TempDir()}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("%q: %v: %s", cmd.Args, err, out)
	}
}

// pod returns the name of a sandbox's pod.
func (n node) pod(name string) string { return "sandboxd-" + n.describe(name).ID }

// said runs a command of the command line and returns its exit code and output.
func (n node) said(args ...string) (code int, out string) {
	var stdout, stderr bytes.Buffer
	cmd := n.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), stdout.String() + stderr.String()
	}
	must(n.t, err)
	return 0, stdout.String()
}

// A coding agent works in a pod: the repository goes in, its program is installed there, and its
// commit comes back.
func TestClusterAgent(t *testing.T) {
	n := newNode(t)
	dir := n.newProject()
	file := filepath.Join(t.TempDir(), "worker.yaml")
	must(t, os.WriteFile(file, []byte(`
setup:
  - printf '#!/bin/sh\necho "$@" >made && git add made && git commit -qm "add made" && echo finished.\n' >/usr/local/bin/worker
  - chmod 755 /usr/local/bin/worker
command: [worker]
print: ['{{.Prompt}}']
`), 0o600))
	out := n.inDir(dir, 0, "agent", file, "--print", "made in a pod", "-n", "work")
	if !strings.Contains(out, "finished.") || !strings.Contains(out, "installing worker in work") {
		t.Errorf("got %s", out)
	}
	if got := git(t, dir, "show", "sandboxes/work/work:made"); got != "made in a pod" {
		t.Errorf("made: %q", got)
	}
	must(t, os.WriteFile(file, []byte(`{setup: ["echo no room >&2; exit 3"], command: [worker]}`), 0o600))
	if out := n.inDir(dir, 125, "agent", file, "do", "-n", "other"); !strings.Contains(out,
		"exit code 3: no room") || n.list()["other"].ID != "" {
		t.Errorf("an installation that fails: %s", out)
	}
}

// A command that runs while something happens to the cluster runs once, and its caller learns of
// its end or that it was lost. As long as the pod lives, so do its shells.
func TestClusterFaults(t *testing.T) {
	n := newNode(t)
	t.Cleanup(func() { n.kubectl("uncordon", "node1") })
	for i, fault := range []struct {
		name  string
		do    func(name string)
		lives bool // the pod does
	}{
		{"daemon killed", func(string) { n.machine.kill(); n.machine.start() }, true},
		{"kubelet killed", func(string) { n.part("stop", "kubelet"); n.part("start", "kubelet") }, true},
		{"containerd killed", func(string) {
			n.part("stop", "containerd")
			n.part("start", "containerd")
		}, true},
		{"API server away for 10 s", func(string) {
			n.part("stop", "apiserver")
			<-time.After(10 * time.Second)
			n.part("start", "apiserver")
		}, true},
		{"pod deleted", func(name string) { n.kubectl("delete", "pod", n.pod(name), "--wait=false") }, false},
		{"pod evicted", func(name string) {
			n.kubectl("label", "pod", n.pod(name), "test=evicted")
			n.kubectl("drain", "node1", "--force", "--delete-emptydir-data",
				"--pod-selector=test=evicted")
			n.kubectl("uncordon", "node1")
		}, false},
		{"out of memory", func(name string) {
			code, out := n.said("exec", name, "--", "tail /dev/zero")
			t.Logf("the command that used the memory: exit code %d, %.200q", code, out)
		}, true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			name := "f" + strconv.Itoa(i)
			n := node{n.machine, n.dir}
			if code, out := n.said("new", name, "-q"); code != 0 {
				t.Fatalf("new: %d, %s", code, out)
			}
			if code, out := n.said("run", "-n", name, "--", "A=kept; cd /srv"); code != 0 {
				t.Fatalf("run: %d, %s", code, out)
			}
			type answer struct {
				code int
				out  string
			}
			answered := make(chan answer, 1)
			go func() {
				code, out := n.said("run", "--json", "-n", name, "--",
					"echo ran >>/srv/ran; sleep 15; echo done")
				answered <- answer{code, out}
			}()
			n.eventually("the command runs", func() bool {
				_, out := n.said("exec", name, "--", "cat /srv/ran 2>/dev/null")
				return out == "ran\n"
			})
			began := time.Now()
			fault.do(name)
			took := time.Since(began)
			var got answer
			select {
			case got = <-answered:
			case <-time.After(patience):
				t.Fatal("the caller still waits")
			}
			var result struct {
				Ended string
				Error *wire.Error
			}
			_ = json.Unmarshal([]byte(got.out), &result) // an error is no result
			ended := result.Ended
			if result.Error != nil {
				ended = "error " + string(result.Error.Code)
			}
			if !fault.lives {
				if ended != "lost" && ended != "error lost" {
					t.Errorf("the caller got %d, %s", got.code, got.out)
				}
				t.Logf("| %s | %s | – | – |", fault.name, ended)
				return
			}
			back := time.Now()
			n.eventually("the shell is the same", func() bool {
				code, out := n.said("run", "-n", name, "--", "echo $A $PWD")
				return code == 0 && out == "kept /srv\n"
			})
			if _, out := n.said("exec", name, "--", "cat /srv/ran"); out != "ran\n" {
				t.Errorf("the command ran: %q", out)
			}
			t.Logf("| %s (%.1f s) | %s | once | %.1f s |", fault.name, took.Seconds(), ended,
				time.Since(back).Seconds())
			if code, out := n.said("rm", "-f", name); code != 0 {
				t.Errorf("rm: %d, %s", code, out)
			}
		})
	}
}

// After the daemon was killed, every session of many pods is there, and no command runs twice.
func TestClusterMany(t *testing.T) {
	n, count := newNode(t), times(t, "SANDBOXD_TEST_PODS", 50)
	each := func(do func(name string)) {
		t.Helper()
		slots := make(chan struct{}, 8)
		var all sync.WaitGroup
		for i := range count {
			slots <- struct{}{}
			all.Go(func() { do("s" + strconv.Itoa(i)); <-slots })
		}
		all.Wait()
	}
	began := time.Now()
	each(func(name string) {
		if code, out := n.said("new", name, "-q"); code != 0 {
			t.Errorf("new: %d, %s", code, out)
		}
		code, out := n.said("run", "-n", name, "--", "A="+name+"; echo x >>/srv/ran")
		if code != 0 {
			t.Errorf("run: %d, %s", code, out)
		}
	})
	made := time.Since(began)
	n.machine.kill()
	began = time.Now()
	n.machine.start()
	each(func(name string) {
		code, out := n.said("run", "-n", name, "--", "echo $A $(cat /srv/ran)")
		if code != 0 || out != name+" x\n" {
			t.Errorf("%s: %d, %q", name, code, out)
		}
	})
	t.Logf("%d pods made in %.1f s; every session answered %.1f s after the daemon was killed",
		count, made.Seconds(), time.Since(began).Seconds())
}

// The keys of a sandbox are nowhere in the cluster: not in its store, not in its logs.
func TestClusterLeaks(t *testing.T) {
	n := newNode(t)
	if code, out := n.said("new", "demo", "-q"); code != 0 {
		t.Fatalf("new: %d, %s", code, out)
	}
	id := n.describe("demo").ID
	text, err := os.ReadFile(filepath.Join(n.state, "pods", id, "keys.json"))
	must(t, err)
	var secrets []string
	for _, key := range regexp.MustCompile(`-----BEGIN OPENSSH PRIVATE KEY-----[^-]*-----END`).
		FindAllString(string(text), -1) {
		for line := range strings.SplitSeq(key, `\n`) {
			// The first line is the same in all keys.
			if len(line) > 60 && !strings.HasPrefix(line, "b3BlbnNzaC1rZXktdjE") &&
				!strings.Contains(line, "-") {
				secrets = append(secrets, line)
			}
		}
	}
	if len(secrets) < 4 {
		t.Fatalf("%d lines of keys in %d bytes", len(secrets), len(text))
	}
	found := func(what string) (files int) {
		for _, dir := range []string{"/dev/shm/sandboxd-k8s", n.dir + "/run", "/run/sandboxd-k8s"} {
			out, err := exec.Command("grep", "-rlaF", "--devices=skip", "--", what, dir).Output()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 1 {
				t.Logf("grep in %s: %s", dir, exit.Stderr) // sockets, files that have gone
			}
			files += bytes.Count(out, []byte("\n"))
		}
		return files
	}
	if found("sandboxd-"+id) == 0 {
		t.Error("the pod's name is found nowhere: the search is broken")
	}
	for _, s := range secrets {
		if files := found(s); files != 0 {
			t.Errorf("%s… is in %d files", s[:8], files)
		}
	}
	t.Logf("%d lines of keys: in 0 files", len(secrets))
}
