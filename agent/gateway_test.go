package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func dialGateway(t *testing.T) *agent.Gateway {
	t.Helper()
	o := world.options()
	g, err := agent.DialGateway(bounded(t), "ssh://"+world.addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func TestGateway(t *testing.T) {
	g, ctx := dialGateway(t), bounded(t)
	sb, err := g.Create(
		ctx,
		agent.Spec{Name: "whole", About: "notes", TTL: 3 * time.Hour, DeleteAfter: -1,
			Limits: sandbox.Limits{PIDs: 99}, Env: []string{"GREETING=hello, you"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	if sb.Name != "whole" || sb.State != agent.SandboxRunning || sb.About != "notes" ||
		sb.TTLMS != 3*3600_000 ||
		sb.DeleteAfterMS != 0 {
		t.Errorf("got %+v", sb)
	}
	all, err := g.List(ctx)
	if err != nil ||
		!slices.ContainsFunc(all, func(s agent.Sandbox) bool { return s.ID == sb.ID }) {
		t.Errorf("list: got %+v, %v", all, err)
	}
	sh, err := g.Shell(ctx, "whole~other")
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	if res, err := sh.Run(ctx, `echo "$GREETING"`); err != nil || res.Output != "hello, you\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	d, err := g.Describe(ctx, "whole")
	if err != nil || d.ID != sb.ID || d.Health != "ok" || d.NetworkText == "" ||
		len(d.Sessions) != 1 ||
		d.Sessions[0].Name != "other" {
		t.Errorf("describe: got %+v, %v", d, err)
	}
	if again, err := g.Create(ctx, agent.Spec{Name: "whole", Reuse: true}); err != nil ||
		again.ID != sb.ID {
		t.Errorf("reuse: got %+v, %v", again, err)
	}
	if err := g.Remove(ctx, "whole"); err != nil {
		t.Fatal(err)
	}
	if _, err := sh.Run(ctx, "true"); err == nil {
		t.Error("a shell of a removed sandbox ran a command")
	}
}

// Errors of the daemon have codes. Invalid arguments are rejected without a request.
func TestGatewayErrors(t *testing.T) {
	g, ctx := dialGateway(t), bounded(t)
	if _, err := g.Create(ctx, agent.Spec{Name: "twice"}); err != nil {
		t.Fatal(err)
	}
	create := func(spec agent.Spec) func() error {
		return func() error { _, err := g.Create(ctx, spec); return err }
	}
	for name, tt := range map[string]struct {
		call func() error
		want agent.Code
	}{
		"a name that exists": {create(agent.Spec{Name: "twice"}), agent.CodeExists},
		"no label":           {create(agent.Spec{Name: "Not A Label"}), agent.CodeUsage},
		"a flag as a name":   {create(agent.Spec{Name: "--json"}), agent.CodeUsage},
		"an unknown network": {create(agent.Spec{Network: "open"}), agent.CodeUsage},
		"swap": {create(agent.Spec{Limits: sandbox.Limits{Swap: 1 << 30}}),
			agent.CodeUsage},
		"a build of nothing": {create(agent.Spec{Build: &agent.Build{Target: "x"}}),
			agent.CodeUsage},
		"an environment": {create(agent.Spec{Env: []string{"no equals sign"}}),
			agent.CodeUsage},
		"describe of nothing": {func() error { _, err := g.Describe(ctx, "nothing"); return err },
			agent.CodeNotFound},
		"describe of a flag": {func() error { _, err := g.Describe(ctx, "-h"); return err },
			agent.CodeUsage},
		"remove of nothing": {func() error { return g.Remove(ctx, "nothing") },
			agent.CodeNotFound},
		"remove of a flag": {func() error { return g.Remove(ctx, "--all") }, agent.CodeUsage},
		"an unknown command": {func() error { _, err := g.Command(ctx, nil, "fly"); return err },
			agent.CodeUsage},
		"a shell in no target": {func() error { _, err := g.Shell(ctx, "a~b~c"); return err },
			agent.CodeUsage},
	} {
		if err := tt.call(); !errors.Is(err, &agent.Error{Code: tt.want}) {
			t.Errorf("%s: got %v, want code %s", name, err, tt.want)
		}
	}
	if err := g.Remove(ctx, "twice"); err != nil {
		t.Error(err)
	}
	g.Close()
	if _, err := g.Shell(ctx, "twice"); err == nil {
		t.Error("a shell of a closed gateway")
	}
}

// A Gateway works on a daemon in the same process.
func TestGatewayWithoutSSH(t *testing.T) {
	g := agent.NewGateway(agenttest.New(t))
	defer g.Close()
	var progress bytes.Buffer
	sb, err := g.Create(bounded(t), agent.Spec{Progress: &progress})
	if err != nil || sb.Name == "" {
		t.Fatalf("got %+v, %v", sb, err)
	}
	if err := g.Remove(bounded(t), agenttest.Box, sb.Name); err != nil {
		t.Error(err)
	}
	if all, err := g.List(bounded(t)); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
}

// Every field of the daemon's sandbox has a field here, with the same name and type.
func TestSandboxHasAllFields(t *testing.T) {
	for _, tt := range []struct{ theirs, ours any }{
		{lifecycle.Info{}, agent.Sandbox{}},
		{lifecycle.Description{}, agent.Description{}},
		{lifecycle.End{}, agent.End{}},
		{lifecycle.Share{}, agent.Share{}},
		{lifecycle.Packages{}, agent.Packages{}},
		{lifecycle.Package{}, agent.Package{}},
		{lifecycle.Used{}, agent.Used{}},
		{wire.SessionInfo{}, agent.Session{}},
		{wire.Party{}, agent.Party{}},
	} {
		theirs, ours := jsonFields(reflect.TypeOf(tt.theirs)), jsonFields(reflect.TypeOf(tt.ours))
		for _, name := range slices.Sorted(maps.Keys(theirs)) {
			if got, ok := ours[name]; !ok || got != theirs[name] {
				t.Errorf("%T, field %q: got kind %v, want %v", tt.ours, name, got, theirs[name])
			}
		}
	}
}

// jsonFields returns the kinds of a struct's fields by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Kind {
	fields := make(map[string]reflect.Kind)
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Type.Kind()
		}
	}
	return fields
}

func ExampleGateway() {
	uri, options := exampleDaemon()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	g, err := agent.DialGateway(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	sb, err := g.Create(ctx, agent.Spec{Name: "build", TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	sh, err := g.Shell(ctx, sb.Name)
	if err != nil {
		log.Fatal(err)
	}
	defer sh.Close()
	res, err := sh.Run(ctx, "echo $((6*7))")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(res.Ended, " ", res.Output)
	if err := g.Remove(ctx, sb.Name); err != nil {
		log.Fatal(err)
	}
	// Output: done 42
}

// exampleDaemon returns the URI and the options of a daemon. The zero Options work for a daemon
// that this user runs on this machine.
func exampleDaemon() (uri string, o agent.Options) { return "ssh://" + world.addr, world.options() }
