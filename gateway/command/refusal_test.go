package command

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Every command treats a sandbox of another owner like one that does not exist, byte by byte.
func TestForeignIsUnknown(t *testing.T) {
	w := newWorld(t)
	if code, _, stderr := w.command("new", "hers"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := w.command("run", "-n", "hers", "--", "true"); code != 0 {
		t.Fatal(stderr)
	}
	bob := gateway.Principal{Name: "bob", Kind: wire.Person, Rights: wire.RightDrive}
	for _, line := range []string{
		"describe NAME", "rm NAME", "stop NAME", "start NAME", "rescue NAME", "sessions NAME",
		"take NAME", "give NAME", "kick NAME agent:alice",
		"type -n NAME x", "keys -n NAME Enter", "wait NAME", "screen NAME", "interrupt NAME",
		"exec NAME -- true",
		"log NAME", "log --raw NAME", "replay NAME", "describe NAME --json", "screen NAME --json",
		"wait --json NAME",
	} {
		said := make(map[string]string)
		for _, name := range []string{"none", "hers"} {
			var out, errs bytes.Buffer
			env := Env{Hub: w.hub, Principal: bob, Stdin: strings.NewReader(""), Stdout: &out,
				Stderr: &errs}
			code := Run(t.Context(), &env, strings.Fields(strings.ReplaceAll(line, "NAME", name)))
			if code == 0 || out.Len()+errs.Len() == 0 {
				t.Errorf("%s of %s: exit %d, %q, %q", line, name, code, out.String(), errs.String())
			}
			said[name] = strings.ReplaceAll(fmt.Sprintf("%d %q %q", code, out.String(),
				errs.String()), name, "NAME")
		}
		if said["none"] != said["hers"] {
			t.Errorf("%s: unknown %q, foreign %q", line, said["none"], said["hers"])
		}
	}
	if code, out, _ := w.command("ls"); code != 0 || !strings.Contains(out, "hers") {
		t.Errorf("afterwards: %q", out)
	}
}

// The hint for a missing sandbox is how to create it, or how to find the right name where a new
// sandbox is of no use.
func TestHintForMissingSandbox(t *testing.T) {
	w := newWorld(t)
	for line, want := range map[string]string{
		"describe none":   "create it: ",
		"screen none":     "create it: ",
		"snapshot none x": "to list your sandboxes: sandboxd ls",
		"log none":        "to list your sandboxes: sandboxd ls",
		"rm none":         "to list your sandboxes: sandboxd ls",
		"stop none":       "to list your sandboxes: sandboxd ls",
	} {
		_, _, stderr := w.command(strings.Fields(line)...)
		if !strings.HasPrefix(stderr, "sandboxd: no sandbox none for you; "+want) {
			t.Errorf("%s: %q, want the hint %q", line, stderr, want)
		}
	}
}

// A replay of an empty part of a recording is an error.
func TestReplayOfNothing(t *testing.T) {
	w := newWorld(t)
	if code, _, stderr := w.command("new", "demo"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := w.command("run", "-n", "demo", "--", "echo", "here"); code != 0 {
		t.Fatal(stderr)
	}
	for _, tt := range []struct{ from, to, says string }{
		{"99h", "", "after the end"},
		{"@99999999", "", "bytes long"},
		{"@4", "@2", "must be after the start"},
		{"", "@0", "must be after the start"},
	} {
		args := []string{"replay", "demo", "--speed", "0"}
		if tt.from != "" {
			args = append(args, "--from", tt.from)
		}
		if tt.to != "" {
			args = append(args, "--to", tt.to)
		}
		if code, out, stderr := w.command(args...); code != wire.ExitUsage || out != "" ||
			!strings.Contains(stderr, tt.says) {
			t.Errorf("%v: exit %d, %q, %q; want %d and %q", args, code, out, stderr, wire.ExitUsage,
				tt.says)
		}
	}
	if code, out, stderr := w.command("replay", "demo", "--speed", "0", "--from",
		"@0"); code != 0 || !strings.Contains(out, "here") {
		t.Errorf("from the beginning: exit %d, %q, %q", code, out, stderr)
	}
}

// Login flags without --host are an error instead of being ignored.
func TestLoginWithoutAHost(t *testing.T) {
	w := newWorld(t)
	for _, flag := range []string{"--accept", "--identity", "--password-file", "--prompt",
		"--tier"} {
		if code, _, stderr := w.command("new", "box", flag, "x"); code == 0 ||
			!strings.Contains(stderr, "need --host") {
			t.Errorf("%s: exit code %d, %q", flag, code, stderr)
		}
	}
}
