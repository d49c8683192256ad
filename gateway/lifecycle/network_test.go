package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// carried is a backend whose sandboxes have a network to carry, and no device to carry it on.
type carried struct{ sandbox.Backend }

func (c carried) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	network := spec.Network
	spec.Network = sandbox.NetworkNone
	inst, err := c.Backend.Boot(ctx, spec)
	inst.Network, inst.Via = network, spec.Via
	return inst, err
}

var errNoDevice = errors.New("the device is away")

func (c carried) Tunnel(context.Context, sandbox.Instance) (sandbox.Tunnel, error) {
	return sandbox.Tunnel{}, errNoDevice
}

func carrying(t *testing.T) (*world, *daemon) {
	w := newWorld(t, sandboxtest.Options{})
	w.Backend = carried{w.Memory}
	w.Options.Network = sandbox.NetworkFiltered
	d := w.Start()
	w.Create(d, "demo")
	return w, d
}

// A network that cannot be carried is said, and nothing takes its place.
func TestNetworkTrouble(t *testing.T) {
	w, d := carrying(t)
	for {
		info, err := d.Get(w.Ctx(), alice, "demo")
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(info.Notes, func(s string) bool {
			return strings.Contains(s, errNoDevice.Error())
		}) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-w.Ctx().Done():
			t.Fatalf("notes %q do not say why nothing works", info.Notes)
		}
	}
}

// What is refused while a call lasts is in its result; what was refused before is not.
func TestDenied(t *testing.T) {
	w, d := carrying(t)
	b := w.registry.Find("demo")
	before := wire.Denial{Host: "10.0.0.1", Port: 80, Why: "closed"}
	b.Sessions().Blocked(before)
	if res := w.Run(d, "true"); len(res.Denied) > 0 {
		t.Errorf("before the call: %v", res.Denied)
	}
	a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	denied := filepath.Join(t.TempDir(), "denied")
	replies := make(chan wire.Reply, 1)
	go func() {
		reply, _ := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
			Text: "until [ -e " + denied + " ]; do sleep 0.01; done; read x"})
		replies <- reply
	}()
	main := b.Sessions().Get("main")
	for main.Info().State.Phase == wire.PhasePrompt { // until it runs
		<-time.After(time.Millisecond)
	}
	during := wire.Denial{Host: "example.com", Port: 443, Why: "not listed"}
	for range 3 {
		b.Sessions().Blocked(during)
	}
	b.Sessions().Blocked(before)
	if n := main.Need(); n.Needs != attention.Allow && n.Needs != attention.Answer {
		t.Errorf("it needs %q, want denied, or asks", n.Needs)
	}
	if err := os.WriteFile(denied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reply := <-replies
	if reply.Result == nil || reply.Result.Ended != wire.Waiting {
		t.Fatalf("got %+v", reply)
	}
	if diff := cmp.Diff([]wire.Denial{during, before}, reply.Result.Denied); diff != "" {
		t.Errorf("denied (-want +got):\n%s", diff)
	}
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbType, Text: "y"}); err != nil {
		t.Fatal(err)
	}
	if n := main.Need(); n.Needs != attention.Allow || n.LastLine != live.DenialText(during) &&
		n.LastLine != live.DenialText(before) {
		t.Errorf("after the answer it needs %q for %q", n.Needs, n.LastLine)
	}
	if _, err := d.Allow(w.Ctx(), alice, "demo", []string{"10.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	if n := main.Need(); n.Needs != attention.None {
		t.Errorf("once that is allowed it needs %q", n.Needs)
	}
}

// An idle session is not shown connections of other programs that were blocked, and nobody sees
// what a guest merely claims.
func TestDeniedIsOfTheCall(t *testing.T) {
	w, d := carrying(t)
	a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo", Session: "idle"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); err != nil {
		t.Fatal(err)
	}
	b := w.registry.Find("demo")
	idle := b.Sessions().Get("idle")
	wait, run := idle.Begin(wire.Request{Verb: wire.VerbWait}),
		idle.Begin(wire.Request{Verb: wire.VerbRun})
	defer wait.End()
	defer run.End()
	refused := wire.Denial{Host: "example.com", Port: 443, Why: "not listed"}
	b.Sessions().Blocked(refused)
	var got wire.Result
	if wait.Complete(t.Context(), &got); len(got.Denied) != 0 {
		t.Errorf("a wait at the prompt reports %v", got.Denied)
	}
	run.Complete(t.Context(), &got)
	if diff := cmp.Diff([]wire.Denial{refused}, got.Denied); diff != "" {
		t.Errorf("a run (-want +got):\n%s", diff)
	}
}

// A file in a directory, which anybody may have written, opens nothing that the daemon's
// configuration keeps closed.
func TestFilesMayOnlyNarrow(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Backend = carried{w.Memory}
	w.Options.Allow = []string{"Listed.test:443"}
	for _, tt := range []struct {
		most, mode sandbox.Network
		allow      string
		ok         bool
	}{
		{"none", "", "", true}, {"none", "none", "", true}, {"none", "allowlist", "", false},
		{"none", "filtered", "", false}, {"none", "bridge", "", false},
		{"none", "", "other.test", false},
		{"allowlist", "", "", true}, {"allowlist", "none", "", true}, {"allowlist", "allowlist", "",
			true}, {"allowlist", "filtered", "", false},
		{"allowlist", "", "other.test", false}, {"allowlist", "allowlist", "other.test", false},
		{"allowlist", "", "listed.test:443", true}, {"allowlist", "", "listed.test", false},
		{"filtered", "", "other.test", true}, {"filtered", "allowlist", "other.test", true},
		{"filtered", "filtered", "", true}, {"filtered", "none", "", true}, {"filtered", "bridge",
			"", false},
		{"bridge", "bridge", "", true}, {"bridge", "filtered", "other.test", true},
		{"bridge", "none", "", true},
	} {
		w.Options.Network = tt.most
		d := w.Start()
		var allow []string
		if tt.allow != "" {
			allow = []string{tt.allow}
		}
		if err := d.MayNarrow(".sandboxd.yaml", lifecycle.NewSpec{Network: tt.mode,
			Allow: allow}); (err == nil) != tt.ok || err != nil &&
			!errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s, of which a file makes %q with %q: %v", tt.most, tt.mode, tt.allow, err)
		}
		d.End()
	}
}

// Who may open what.
func TestAllow(t *testing.T) {
	w, d := carrying(t)
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "bobs"}, nil); err != nil {
		t.Fatal(err)
	}
	watching := alice
	watching.Rights = wire.RightWatch
	for _, tt := range []struct {
		by      gateway.Principal
		sandbox string
		entry   string
		want    string
	}{
		{alice, "demo", "example.com", ""},
		{alice, "demo", "10.1.2.3:5432", ""},
		{alice, "demo", "example.com:0", "port"},
		{alice, "demo", "nonsense here", "want a name"},
		{watching, "demo", "example.com", "may only watch"},
		{bob, "demo", "example.com", "demo"},
		{bob, "bobs", "example.com", ""},
		{bob, "bobs", "8.8.8.8", ""},
		{bob, "bobs", "0.0.0.0/0", ""},
		{bob, "bobs", "169.254.169.254", "never open"},
		{alice, "demo", "169.254.169.254:80", "never open"},
		{alice, "demo", "169.254.0.0/16", "never open"},
		{alice, "demo", "metadata.google.internal", "never open"},
		{bob, "bobs", "127.0.0.1:22", "never open"},
		{bob, "bobs", "::ffff:127.0.0.1", "never open"},
		{alice, "demo", "[::1]:80", "never open"},
		{bob, "bobs", "10.0.0.0/24", "only the admin"},
	} {
		_, err := d.Allow(w.Ctx(), tt.by, tt.sandbox, []string{tt.entry})
		if tt.want == "" && err != nil || tt.want != "" &&
			(err == nil || !strings.Contains(fmt.Sprint(d.Public(err).Message), tt.want)) {
			t.Errorf("%s allows %s %q: got %v, want %q", tt.by.Name, tt.sandbox, tt.entry, err,
				tt.want)
		}
	}
	if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "more",
		Allow: []string{"192.168.0.1"}}, nil); !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
		t.Errorf("made with a closed address by another: %v", err)
	}
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "more",
		Network: sandbox.NetworkNone, Allow: []string{"example.com"}}, nil); !errors.Is(err,
		&wire.Error{Code: wire.CodeUsage}) {
		t.Errorf("made with an entry and without a network: %v", err)
	}
	for _, tt := range []struct {
		by    gateway.Principal
		entry string
		want  string
	}{
		{alice, "10.9.9.9", "no entry"},
		{alice, "nonsense here", "want a name"},
		{watching, "example.com", "may only watch"},
		{bob, "example.com", "demo"},
		{alice, "EXAMPLE.com.", ""},
	} {
		_, err := d.Disallow(w.Ctx(), tt.by, "demo", []string{tt.entry})
		if tt.want == "" && err != nil || tt.want != "" &&
			(err == nil || !strings.Contains(fmt.Sprint(d.Public(err).Message), tt.want)) {
			t.Errorf("%s takes back %q: got %v, want %q", tt.by.Name, tt.entry, err, tt.want)
		}
	}
	if _, err := d.Allow(w.Ctx(), alice, "demo", []string{"Example.com"}); err != nil {
		t.Fatal(err)
	}
	// It outlives the daemon.
	d.End()
	d = w.Start()
	info, err := d.Get(w.Ctx(), alice, "demo")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"10.1.2.3:5432", "example.com"}; !slices.Equal(info.Allow, want) {
		t.Errorf("allowed %q, want %q", info.Allow, want)
	}
}

// The engine's own network is a way to the daemon's machine: not everybody who has a sandbox has
// that, too.
func TestBridgeIsForTheOwner(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Backend = carried{w.Memory}
	carol := gateway.Principal{Name: "carol", Kind: wire.Person}
	w.Options.Bridge = []string{"carol"}
	d := w.Start()
	for _, tt := range []struct {
		by gateway.Principal
		ok bool
	}{{alice, true}, {carol, true}, {bob, false}} {
		_, err := d.Create(w.Ctx(), tt.by, lifecycle.NewSpec{Name: "open-" + tt.by.Name,
			Network: sandbox.NetworkBridge}, nil)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s asks for bridge: %v", tt.by.Name, err)
		}
		if !tt.ok && !strings.Contains(fmt.Sprint(err), "only alice, carol may") {
			t.Errorf("%v does not say who may", err)
		}
	}
	// Who may no longer have one, has no second one.
	d.End()
	w.Options.Bridge = nil
	d = w.Start()
	if _, err := d.Fork(w.Ctx(), carol, "open-carol", "again", nil); !errors.Is(err,
		&wire.Error{Code: wire.CodeDenied}) {
		t.Errorf("fork: %v", err)
	}
	// Where every sandbox has it, asking for it is asking for nothing.
	d.End()
	w.Options.Network = sandbox.NetworkBridge
	d = w.Start()
	if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "open-bob",
		Network: sandbox.NetworkBridge}, nil); err != nil {
		t.Errorf("bob asks for the default: %v", err)
	}
}

// A sandbox can make connections faster than anybody wants to read of.
func TestRefusalsBounded(t *testing.T) {
	w, _ := carrying(t)
	b := w.registry.Find("demo")
	for i := range 10 * live.MaxBlocked {
		b.Connected(egress.Event{Kind: egress.KindRefused, Host: strings.Repeat("x", 1000) +
			fmt.Sprint(i)})
		b.Connected(egress.Event{Kind: egress.KindRefused, Host: fmt.Sprint("host", i)})
	}
	all, count := b.Sessions().Denials()
	if len(all) != live.MaxBlocked || count != 20*live.MaxBlocked {
		t.Errorf("%d of %d are remembered, want %d", len(all), count, live.MaxBlocked)
	}
	for _, r := range all {
		if len(r.Host) > lifecycle.MaxNameShown {
			t.Errorf("a name of %d bytes is kept", len(r.Host))
		}
	}
}

// A sandbox without a device has a proxy inside with the same policy: listed entries open at once,
// entries of others open nothing closed, and all of it is reported as elsewhere.
func TestProxy(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Backend = carried{w.Memory}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// The sandboxes of these tests share this machine's loopback.
	proxy := free.Addr().String()
	w.Options.SetProxyAddress(proxy)
	free.Close()
	w.Options.Network, w.Options.Via = sandbox.NetworkFiltered, sandbox.ViaProxy
	d := w.Start()
	w.Create(d, "demo")
	info, err := d.Get(w.Ctx(), alice, "demo")
	if err != nil || info.Via != sandbox.ViaProxy {
		t.Fatalf("got %+v, %v", info, err)
	}
	if desc, err := d.Describe(w.Ctx(), alice, "demo"); err != nil ||
		!strings.HasPrefix(desc.NetworkText, "filtered (proxy): ") {
		t.Errorf("it is described as %q, %v", desc.NetworkText, err)
	}
	own := egress.OwnAddresses()
	at := slices.IndexFunc(own, func(p netip.Prefix) bool {
		return p.Addr().Is4() && !p.Addr().IsLoopback()
	})
	if at < 0 {
		t.Fatal("this machine has no address but its loopback, which lifecycle.Nobody can open")
	}
	secret := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, "a secret")
	}))
	l, err := net.Listen("tcp", netip.AddrPortFrom(own[at].Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	secret.Listener = l
	secret.Start()
	t.Cleanup(secret.Close)
	get := func(target string) string {
		t.Helper()
		client := &http.Client{Timeout: gatewaytest.Patience,
			Transport: &http.Transport{DisableKeepAlives: true,
				Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})}}
		for {
			answer, err := client.Get("http://" + target)
			if err == nil {
				defer answer.Body.Close()
				text, _ := io.ReadAll(answer.Body)
				return fmt.Sprint(answer.StatusCode, " ", string(text))
			}
			select { // the proxy begins a moment after the sandbox does
			case <-time.After(10 * time.Millisecond):
			case <-w.Ctx().Done():
				t.Fatal(err)
			}
		}
	}
	closed := l.Addr().String()
	if got := get(closed); !strings.HasPrefix(got, "403 ") || !strings.Contains(got,
		"address of the machine") {
		t.Errorf("got %q", got)
	}
	if got := get("127.0.0.1:" + closed[strings.LastIndexByte(closed, ':')+1:]); !strings.HasPrefix(
		got, "403 ") {
		t.Errorf("loopback: got %q", got)
	}
	b := w.registry.Find("demo")
	if denied, _ := b.Sessions().Denials(); len(denied) != 2 ||
		denied[0].Host != own[at].Addr().String() || denied[0].Allow != closed ||
		denied[1].Allow != "" {
		t.Errorf("denied: %+v", denied)
	}
	if _, err := d.Allow(w.Ctx(), alice, "demo", []string{closed}); err != nil {
		t.Fatal(err)
	}
	if got := get(closed); got != "200 a secret" {
		t.Errorf("allowed: got %q", got)
	}
	if _, err := d.Disallow(w.Ctx(), alice, "demo", []string{closed}); err != nil {
		t.Fatal(err)
	}
	if got := get(closed); !strings.HasPrefix(got, "403 ") {
		t.Errorf("taken back: got %q", got)
	}
	if _, err := d.Allow(w.Ctx(), alice, "demo", []string{closed}); err != nil {
		t.Fatal(err)
	}
	// A new daemon continues; if another owner had the sandbox, that entry would open nothing.
	d.End()
	d = w.Start()
	if got := get(closed); got != "200 a secret" {
		t.Errorf("after a restart: got %q", got)
	}
	d.End()
	w.Options.Owner = "carol"
	w.Start()
	if got := get(closed); !strings.HasPrefix(got, "403 ") {
		t.Errorf("listed by who does not run the daemon: got %q", got)
	}
}

// A file in a directory asks for smaller limits than the daemon's configuration gives, and not for
// larger ones.
func TestFileNarrowsLimits(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Limits = sandbox.Limits{Memory: 8 << 30}
	d := w.Start()
	for _, tt := range []struct {
		limits sandbox.Limits
		want   string // in the refusal; empty: it may
	}{
		{sandbox.Limits{}, ""},
		{sandbox.Limits{Memory: 8 << 30, CPUs: 1.5, PIDs: 512, Disk: 10 << 30}, ""},
		{sandbox.Limits{Memory: 8<<30 + 1},
			"limits.memory 8589934593: a sandbox file may not exceed the daemon's default, 8g"},
		{sandbox.Limits{CPUs: 2.5}, "limits.cpus 2.5"},
		{sandbox.Limits{PIDs: 4 << 20}, "limits.pids 4194304"},
		{sandbox.Limits{Disk: 1 << 50}, "limits.disk 1024t"},
	} {
		err := d.MayNarrow(".sandboxd.yaml", lifecycle.NewSpec{Limits: tt.limits})
		if tt.want == "" && err == nil {
			continue
		}
		wantCode(t, err, wire.CodeDenied)
		if !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.limits, err, tt.want)
		}
	}
}
