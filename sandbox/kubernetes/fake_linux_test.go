package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/guest"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The test program also runs as the children of its guests.
func TestMain(m *testing.M) {
	if os.Args[0] == guest.Name {
		os.Exit(guest.Main(os.Args))
	}
	signals.DefaultForChildren()
	goleak.VerifyTestMain(m)
}

// fake is an API server whose pods are guests in the test program.
type fake struct {
	t    *testing.T
	home string
	http *httptest.Server

	mu     sync.Mutex
	now    int // guarded by mu; the last resource version
	pods   map[string]*fakePod
	events []fakeEvent // guarded by mu; in the order of their versions
	news   chan struct{}
	// change is an admission webhook; nil changes nothing.
	change   func(*cluster.Pod)
	sent     string                    // to each new pod, by another daemon
	enforces bool                      // closed pods cannot connect to others
	policies map[string]bool           // guarded by mu; by name
	claims   map[string]*cluster.Claim // guarded by mu
	minor    string                    // of the version, such as "36"
	denied   map[string]bool           // rights that the account has not, such as "create pods/attach"
	conns    sync.WaitGroup
}

type fakeEvent struct {
	version int
	Type    string      `json:"type"`
	Object  cluster.Pod `json:"object"`
}

type fakePod struct {
	cluster.Pod
	input  []byte // that no line end has followed
	guest  *guest.Guest
	public net.Listener // that others in the cluster connect to; nil for most
	asked  bool         // somebody has dialed it: the first one is too early
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, home: t.TempDir(), pods: make(map[string]*fakePod), minor: "36",
		claims: make(map[string]*cluster.Claim), policies: make(map[string]bool),
		news: make(chan struct{})}
	f.http = httptest.NewTLSServer(f)
	t.Cleanup(func() {
		f.mu.Lock()
		all := slices.Collect(maps.Values(f.pods))
		f.mu.Unlock()
		for _, p := range all {
			f.end(p)
		}
		f.conns.Wait()
		f.http.CloseClientConnections()
		f.http.Close()
	})
	return f
}

// backend returns a backend on f.
func (f *fake) backend(change ...func(*Options)) *Backend {
	f.t.Helper()
	client, err := cluster.New(cluster.Config{Server: f.http.URL, Namespace: "boxes",
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
			Bytes: f.http.Certificate().Raw})})
	if err != nil {
		f.t.Fatal(err)
	}
	o := Options{Dir: f.t.TempDir(), Cluster: client, DaemonID: "d1",
		GuestImage: "sandboxd/guest:1", ImageVolumes: true,
		Log: slog.New(slog.NewTextHandler(f.t.Output(), nil))}
	for _, c := range change {
		c(&o)
	}
	b, err := New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { b.Close() })
	b.walls.reach, b.walls.connects = shortReach, f.connects
	return b
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/networkpolicies") {
		f.mu.Lock()
		defer f.mu.Unlock()
		var p struct{ Metadata cluster.Meta }
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			f.t.Error(err)
		}
		if f.policies[p.Metadata.Name] {
			refuse(w, 409, "AlreadyExists", "networkpolicies already exists")
		}
		f.policies[p.Metadata.Name] = true
		return
	}
	switch r.URL.Path {
	case "/version":
		_, _ = fmt.Fprintf(w, `{"gitVersion": "v1.%s.0", "minor": %q}`, f.minor, f.minor)
		return
	case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		f.review(w, r)
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/boxes/"+claims); ok {
		f.claim(w, r, strings.TrimPrefix(name, "/"))
		return
	}
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/boxes/pods"), "/")
	switch {
	case len(path) == 1 && r.Method == http.MethodPost:
		f.create(w, r)
	case len(path) == 1 && r.URL.Query().Get("watch") != "":
		f.watch(w, r)
	case len(path) == 1:
		f.list(w, r)
	case len(path) == 2 && r.Method == http.MethodDelete:
		f.remove(w, r, path[1])
	case len(path) == 2:
		if p := f.pod(path[1]); p != nil {
			_ = json.NewEncoder(w).Encode(p)
			return
		}
		notFound(w)
	case path[2] == "attach":
		f.attach(w, r, path[1])
	case path[2] == "portforward":
		f.forward(w, r, path[1])
	case path[2] == "exec":
		if got := r.URL.Query()["command"]; !slices.Equal(got, []string{guestFile, "relay",
			"unix:" + guestAddress}) {
			f.t.Errorf("exec of %q", got)
		}
		f.relay(w, r, path[1])
	default:
		http.NotFound(w, r)
	}
}

// review says whether the account has a right.
func (f *fake) review(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Spec struct {
			ResourceAttributes struct{ Namespace, Verb, Resource, Subresource string }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		f.t.Error(err)
	}
	a := review.Spec.ResourceAttributes
	right := strings.TrimSuffix(a.Verb+" "+a.Resource+"/"+a.Subresource, "/")
	_, _ = fmt.Fprintf(w, `{"status": {"allowed": %v}}`, a.Namespace == "boxes" && !f.denied[right])
}

// claim answers a request for volume claims, or for one.
func (f *fake) claim(w http.ResponseWriter, r *http.Request, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.claims[name]
	switch {
	case r.Method == http.MethodPost:
		c = new(cluster.Claim)
		if err := json.NewDecoder(r.Body).Decode(c); err != nil {
			f.t.Error(err)
		}
		if f.claims[c.Metadata.Name] != nil {
			refuse(w, 409, "AlreadyExists", "it exists")
			return
		}
		f.now++
		c.Metadata.UID = "claim-" + strconv.Itoa(f.now)
		f.claims[c.Metadata.Name] = c
	case name == "":
		_ = json.NewEncoder(w).Encode(map[string]any{"items": slices.Collect(maps.Values(f.claims))})
		return
	case c == nil:
		notFound(w)
		return
	case r.Method == http.MethodDelete:
		if f.pods[name] != nil {
			f.t.Errorf("the claim of pod %s is deleted before it", name)
		}
		c.Metadata.Deleted = time.Now()
	case !c.Metadata.Deleted.IsZero(): // a controller lets it go a little later
		defer delete(f.claims, name)
	}
	_ = json.NewEncoder(w).Encode(c)
}

// pod returns the current state of a pod; nil if there is none.
func (f *fake) pod(name string) *cluster.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pods[name]
	if p == nil {
		return nil
	}
	now := p.Pod
	return &now
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "code": code, "reason": reason,
		"message": message})
}

func notFound(w http.ResponseWriter) { refuse(w, 404, "NotFound", "pods not found") }

// record records an event. The caller holds mu.
func (f *fake) record(kind string, p *fakePod) {
	f.now++
	p.Metadata.ResourceVersion = strconv.Itoa(f.now)
	f.events = append(f.events, fakeEvent{f.now, kind, p.Pod})
	close(f.news)
	f.news = make(chan struct{})
}

func (f *fake) create(w http.ResponseWriter, r *http.Request) {
	p := &fakePod{input: []byte(f.sent)}
	if err := json.NewDecoder(r.Body).Decode(&p.Pod); err != nil {
		refuse(w, 400, "BadRequest", err.Error())
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods[p.Metadata.Name] != nil {
		refuse(w, 409, "AlreadyExists", "pods already exists")
		return
	}
	if f.change != nil {
		f.change(&p.Pod)
	}
	f.pods[p.Metadata.Name] = p
	p.Metadata.UID = "uid-" + strconv.Itoa(f.now)
	p.Metadata.Created = time.Now().UTC().Truncate(time.Second)
	p.Status.Phase = "Pending"
	f.record("ADDED", p)
	_ = json.NewEncoder(w).Encode(p.Pod)
	status := cluster.ContainerStatus{Name: container, ImageID: "sha256:of-" + p.Spec.Containers[0].Image}
	if strings.Contains(p.Spec.Containers[0].Image, "none") {
		status.State.Waiting = &cluster.Waiting{Reason: "ErrImagePull", Message: "not\x1b found"}
	} else {
		p.Status.Phase, p.Spec.Node = "Running", "node1"
		p.Status.IP = fmt.Sprintf("127.%d.%d.%d", os.Getpid()%200+1, f.now/200, f.now%200+1)
		status.State.Running = new(struct{})
	}
	p.Status.Containers = []cluster.ContainerStatus{status}
	f.record("MODIFIED", p)
}

// selects reports whether a query selects a pod.
func selects(r *http.Request, p cluster.Pod) bool {
	if name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); ok &&
		p.Metadata.Name != name {
		return false
	}
	key, value, ok := strings.Cut(r.URL.Query().Get("labelSelector"), "=")
	return !ok || p.Metadata.Labels[key] == value
}

func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []cluster.Pod{}
	for _, p := range f.pods {
		if selects(r, p.Pod) {
			all = append(all, p.Pod)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"items": all,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(f.now)}})
}

func (f *fake) watch(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for {
		f.mu.Lock()
		news, events := f.news, f.events
		f.mu.Unlock()
		for _, e := range events {
			if e.version > from && selects(r, e.Object) {
				_ = json.NewEncoder(w).Encode(e)
			}
			from = max(from, e.version)
		}
		w.(http.Flusher).Flush()
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fake) remove(w http.ResponseWriter, r *http.Request, name string) {
	var o struct{ Preconditions struct{ UID string } }
	_ = json.NewDecoder(r.Body).Decode(&o)
	f.mu.Lock()
	p := f.pods[name]
	switch {
	case p == nil:
		notFound(w)
	case p.Metadata.UID != o.Preconditions.UID:
		refuse(w, 409, "Conflict", "uid")
	default:
		delete(f.pods, name)
		p.Metadata.Deleted = time.Now()
		f.record("MODIFIED", p)
	}
	f.mu.Unlock()
	if p == nil || p.Metadata.Deleted.IsZero() {
		return
	}
	f.end(p)
	f.mu.Lock()
	f.record("DELETED", p)
	f.mu.Unlock()
}

// end ends the guest of a pod.
func (f *fake) end(p *fakePod) {
	f.mu.Lock()
	g := p.guest
	p.guest = nil
	if p.public != nil {
		p.public.Close()
	}
	f.mu.Unlock()
	if g != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			f.t.Error(err)
		}
	}
}

// fail ends the container of a pod, as the kernel does.
func (f *fake) fail(id string, why cluster.Terminated) {
	f.mu.Lock()
	p := f.pods[podName(id)]
	f.mu.Unlock()
	f.end(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Status.Phase = "Failed"
	p.Status.Containers = []cluster.ContainerStatus{{Name: container,
		State: cluster.ContainerState{Terminated: &why}}}
	f.record("MODIFIED", p)
}

// evict removes a pod, as a node does.
func (f *fake) evict(id string) {
	f.mu.Lock()
	p := f.pods[podName(id)]
	f.mu.Unlock()
	f.end(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, podName(id))
	f.record("DELETED", p)
}

// open accepts a stream to a running pod.
func (f *fake) open(w http.ResponseWriter, r *http.Request, name, protocol string) (*fakePod,
	*websocket.Conn) {
	f.mu.Lock()
	p := f.pods[name]
	if p == nil || p.Status.Phase != "Running" {
		f.mu.Unlock()
		notFound(w)
		return nil, nil
	}
	f.mu.Unlock()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}})
	if err != nil {
		f.t.Error(err)
		return nil, nil
	}
	return p, ws
}

func (f *fake) attach(w http.ResponseWriter, r *http.Request, name string) {
	p, ws := f.open(w, r, name, "v5.channel.k8s.io")
	if ws == nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for {
		_, m, err := ws.Read(r.Context())
		if err != nil {
			return
		}
		if m[0] == 255 {
			break
		}
		if err := f.read(p, m[1:]); err != nil {
			f.t.Error(err)
		}
	}
	_ = ws.Write(r.Context(), websocket.MessageBinary, []byte("\x03"+`{"status": "Success"}`))
	_ = ws.Close(websocket.StatusNormalClosure, "")
}

// read gives input to a pod, whose guest takes the first line that is a configuration.
func (f *fake) read(p *fakePod, input []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.input = append(p.input, input...)
	for {
		line, rest, ok := bytes.Cut(p.input, []byte("\n"))
		if !ok {
			return nil
		}
		p.input = rest
		var config wire.GuestConfig
		if json.Unmarshal(line, &config) != nil || p.guest != nil {
			continue
		}
		a := guest.Account{Name: "root", UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
			Home: f.home, Shell: "/bin/bash"}
		config.Workdir = f.home
		var err error
		if p.guest, err = guest.New(config, guest.Options{Account: &a}); err != nil {
			return err
		}
		g := p.guest
		f.conns.Go(func() { f.stopped(p, g) })
		for _, address := range config.Listen {
			if port, ok := strings.CutPrefix(address, "tcp::"); ok {
				if p.public, err = net.Listen("tcp", p.Status.IP+":"+port); err != nil {
					return err
				}
				l := p.public
				f.conns.Go(func() { answer(l) })
			}
		}
	}
}

// stopped ends a pod whose guest has carried out an order to stop.
func (f *fake) stopped(p *fakePod, g *guest.Guest) {
	select {
	case <-g.Stopped():
		f.fail(p.Metadata.Labels[labelID], cluster.Terminated{})
	case <-f.t.Context().Done():
	}
}

// shortReach is the time of a closed pod to connect in tests.
const shortReach = 300 * time.Millisecond

// answer accepts connections until the pod ends.
func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Close()
	}
}

// connects is connects in a network that may enforce policies.
func (f *fake) connects(ctx context.Context, client *ssh.Client, to string,
	within time.Duration) bool {
	from := f.pod(client.RemoteAddr().String())
	return (!f.enforces || from.Metadata.Labels[labelNetwork] != closed) &&
		connects(ctx, client, to, within)
}

func (f *fake) forward(w http.ResponseWriter, r *http.Request, name string) {
	p, ws := f.open(w, r, name, "v4.channel.k8s.io")
	if ws == nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for channel := range byte(2) {
		_ = ws.Write(r.Context(), websocket.MessageBinary, []byte{channel, 0, 0})
	}
	g := f.ask(p)
	if g == nil {
		_ = ws.Write(r.Context(), websocket.MessageBinary, []byte("\x01connection refused"))
		return
	}
	f.carry(r, ws, g, 0, 0)
}

// relay is what the guest's relay does in a container.
func (f *fake) relay(w http.ResponseWriter, r *http.Request, name string) {
	p, ws := f.open(w, r, name, "v5.channel.k8s.io")
	if ws == nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	g := f.ask(p)
	if g == nil {
		_ = ws.Write(r.Context(), websocket.MessageBinary, []byte("\x02connection refused"))
		_ = ws.Write(r.Context(), websocket.MessageBinary,
			[]byte("\x03"+`{"status": "Failure", "message": "exit code 1"}`))
		_ = ws.Close(websocket.StatusNormalClosure, "")
		return
	}
	f.carry(r, ws, g, 0, 1)
}

// ask returns the guest of a pod; nil for the first one who asks, who is too early.
func (f *fake) ask(p *fakePod) *guest.Guest {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !p.asked {
		p.asked = true
		return nil
	}
	return p.guest
}

// carry connects a stream to a guest, with the numbers of its channels.
func (f *fake) carry(r *http.Request, ws *websocket.Conn, g *guest.Guest, in, out byte) {
	near, far, err := sandboxtest.Pipe()
	if err != nil {
		f.t.Error(err)
		return
	}
	f.conns.Go(func() { _ = g.ServeConn(context.Background(), far) })
	go func() { // ends with the guest's connection
		defer func() { _ = ws.CloseNow() }()
		buf := make([]byte, 16<<10)
		for {
			n, err := near.Read(buf[1:])
			if err != nil {
				return
			}
			buf[0] = out
			if ws.Write(context.Background(), websocket.MessageBinary, buf[:n+1]) != nil {
				return
			}
		}
	}()
	defer near.Close()
	for {
		_, m, err := ws.Read(r.Context())
		if err != nil || m[0] != in {
			return
		}
		if _, err := near.Write(m[1:]); err != nil {
			return
		}
	}
}
