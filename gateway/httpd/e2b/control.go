package e2b

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The default and the longest lifetime of a sandbox.
const (
	defaultTimeout = 5 * time.Minute
	maxTimeout     = 31 * 24 * time.Hour
)

// templateLabel marks sandboxes that this API created, with their template. Callers' labels must
// not begin with ownLabels.
const (
	ownLabels     = "sandboxd."
	templateLabel = ownLabels + "e2b.template"
)

// defaultTemplate is used if a caller names none.
const defaultTemplate = "base"

// controlPlane creates, lists, changes and removes sandboxes.
type controlPlane struct {
	hub       *gateway.Hub
	access    *access
	problems  *problems
	templates map[string]string // template name to image
}

// routes adds the routes that manage sandboxes.
func (cp *controlPlane) routes(mux *http.ServeMux) {
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /sandboxes":                 cp.create,
		"POST /v2/sandboxes":              cp.create,
		"GET /sandboxes":                  cp.list,
		"GET /v2/sandboxes":               cp.list,
		"GET /sandboxes/{id}":             cp.get,
		"DELETE /sandboxes/{id}":          cp.kill,
		"POST /sandboxes/{id}/timeout":    cp.setTimeout,
		"POST /sandboxes/{id}/connect":    cp.connect,
		"POST /v2/sandboxes/{id}/connect": cp.connect,
		"POST /sandboxes/{id}/resume":     cp.connect,
		"POST /sandboxes/{id}/pause":      cp.pause,
		"GET /sandboxes/{id}/metrics":     cp.metrics,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r); err != nil {
				cp.problems.fail(w, r, err)
			}
		})
	}
}

// newSandbox is the request of create. A field that cannot be honored is an error.
type newSandbox struct {
	Template  string            `json:"templateID"`
	Timeout   *int64            `json:"timeout"` // seconds
	Metadata  map[string]string `json:"metadata"`
	Env       map[string]string `json:"envVars"`
	AutoPause bool              `json:"autoPause"` // pause at the timeout instead of removing
	Internet  *bool             `json:"allow_internet_access"`
	Network   struct {
		AllowOut []string `json:"allowOut"`
		DenyOut  []string `json:"denyOut"`
	} `json:"network"`

	Secure          bool           `json:"secure"` // ignored: always on
	AutoPauseMemory *bool          `json:"autoPauseMemory"`
	AutoResume      jsontext.Value `json:"autoResume"`
	MCP             jsontext.Value `json:"mcp"`
	IAM             jsontext.Value `json:"iam"`
	Volumes         jsontext.Value `json:"volumeMounts"`
}

// made describes a sandbox to the caller who created it or connects to it.
type made struct {
	ID          string `json:"sandboxID"`
	Template    string `json:"templateID"`
	Alias       string `json:"alias"`
	Client      string `json:"clientID"`
	EnvdVersion string `json:"envdVersion"`
	Access      string `json:"envdAccessToken,omitempty"` // empty for read-only callers
	// The same token; some requests to the code interpreter send only this one.
	Traffic *string `json:"trafficAccessToken"`
	Domain  string  `json:"domain"`
}

// listed is a sandbox in a list.
type listed struct {
	made
	Started   time.Time         `json:"startedAt"`
	End       time.Time         `json:"endAt"`
	CPUs      int               `json:"cpuCount"`
	MemoryMB  int64             `json:"memoryMB"`
	DiskMB    int64             `json:"diskSizeMB"`
	State     string            `json:"state"`
	Metadata  map[string]string `json:"metadata"`
	Lifecycle *lifetime         `json:"lifecycle,omitzero"`
}

type lifetime struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

// clientID is what E2B calls the node of a sandbox. There is only one.
const clientID = "sandboxd"

func (cp *controlPlane) madeOf(r *http.Request, i lifecycle.Info) made {
	template := cmp.Or(i.Labels[templateLabel], i.ShortImage())
	m := made{ID: i.Name, Template: template, Alias: template, Client: clientID,
		EnvdVersion: envdVersion, Domain: portsDomain}
	if mayWork(rest.Principal(r.Context())) == nil {
		m.Access = cp.access.Access(i.ID, rest.Caller(r.Context()).ID)
		m.Traffic = &m.Access
	}
	return m
}

// never is the end of a sandbox without one, because the SDKs require a time.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func (cp *controlPlane) listedOf(r *http.Request, i lifecycle.Info) listed {
	l := listed{made: cp.madeOf(r, i), Started: i.Created.UTC(), End: never,
		CPUs: int(max(1, i.Limits.CPUs)), MemoryMB: i.Limits.Memory >> 20,
		DiskMB: i.Limits.Disk >> 20,
		State:  "running", Metadata: maps.Clone(i.Labels)}
	maps.DeleteFunc(l.Metadata, func(key, _ string) bool {
		return strings.HasPrefix(key, ownLabels)
	})
	if l.Metadata == nil {
		l.Metadata = map[string]string{}
	}
	if i.State == lifecycle.Paused || i.State == lifecycle.Stopped {
		l.State = "paused"
	}
	if i.End != nil {
		l.Lifecycle = &lifetime{OnTimeout: "kill"}
		if i.End.Pause {
			l.Lifecycle.OnTimeout = "pause"
		}
		if !i.End.At.IsZero() {
			l.End = i.End.At.UTC()
		}
	}
	return l
}

func (cp *controlPlane) create(w http.ResponseWriter, r *http.Request) error {
	var ask newSandbox
	if err := rest.DecodeOpen(w, r, &ask); err != nil {
		return err
	}
	spec, err := cp.specOf(ask)
	if err != nil {
		return err
	}
	spec.Name = "e2b-" + strings.ToLower(rand.Text()[:12])
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		// A repeated request returns the sandbox of the first one.
		spec.Name, spec.Reuse = cp.nameFor(rest.Principal(r.Context()), key), true
	}
	info, err := cp.hub.Create(r.Context(), rest.Principal(r.Context()), spec, nil)
	if err != nil {
		return err
	}
	rest.WriteJSON(w, http.StatusCreated, cp.madeOf(r, info))
	return nil
}

// nameFor returns the name of the sandbox that p creates with an Idempotency-Key.
func (cp *controlPlane) nameFor(p gateway.Principal, key string) string {
	mac := hmac.New(sha256.New, cp.access.secret)
	mac.Write([]byte("e2b idempotency\x00" + p.Name + "\x00" + key))
	return "e2b-" + strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil))[:12])
}

func (cp *controlPlane) specOf(ask newSandbox) (lifecycle.NewSpec, error) {
	none := lifecycle.NewSpec{}
	if ask.Template == "" {
		ask.Template = defaultTemplate
	}
	image, ok := cp.templates[ask.Template]
	if !ok && ask.Template != defaultTemplate {
		known := slices.Sorted(maps.Keys(cp.templates))
		if !slices.Contains(known, defaultTemplate) {
			known = append([]string{defaultTemplate}, known...)
		}
		return none, &apiError{http.StatusNotFound,
			fmt.Sprintf(
				"template %.64q not found; available: %s (add images to the key e2b.templates as "+
					"NAME=IMAGE)", ask.Template, strings.Join(known, ", "))}
	}
	for name, value := range map[string]jsontext.Value{"autoResume": ask.AutoResume, "mcp": ask.MCP,
		"iam": ask.IAM, "volumeMounts": ask.Volumes} {
		switch string(value) {
		case "", "null", "[]", "{}", `{"enabled":false}`:
		default:
			return none, invalid("%s is not supported", name)
		}
	}
	if ask.AutoPauseMemory != nil && ask.AutoPause && !*ask.AutoPauseMemory {
		return none, invalid("autoPause without memory is not supported")
	}
	end, err := endAfter(ask.Timeout, ask.AutoPause)
	if err != nil {
		return none, err
	}
	spec := lifecycle.NewSpec{Image: image, End: end,
		Labels: map[string]string{templateLabel: ask.Template}}
	for key, value := range ask.Metadata {
		if strings.HasPrefix(key, ownLabels) {
			return none, invalid("metadata: keys that begin with %s are reserved", ownLabels)
		}
		spec.Labels[key] = value
	}
	for _, key := range slices.Sorted(maps.Keys(ask.Env)) {
		spec.Env = append(spec.Env, key+"="+ask.Env[key])
	}
	switch allow, deny := ask.Network.AllowOut, ask.Network.DenyOut; {
	case ask.Internet != nil && !*ask.Internet && len(allow) == 0:
		spec.Network = sandbox.NetworkNone
	case len(allow) > 0 && (slices.Contains(deny, "0.0.0.0/0") || ask.Internet != nil &&
		!*ask.Internet):
		spec.Network, spec.Allow = sandbox.NetworkAllowlist, allow
	case len(deny) == 1 && deny[0] == "0.0.0.0/0":
		spec.Network = sandbox.NetworkNone
	case len(allow) > 0 || len(deny) > 0:
		return none,
			invalid(
				"network: allowOut requires denyOut 0.0.0.0/0; other denyOut values are not " +
					"supported")
	case ask.Internet != nil:
		spec.Network = sandbox.NetworkFiltered
	}
	return spec, nil
}

// endAfter returns an end after the given number of seconds from now.
func endAfter(seconds *int64, pause bool) (lifecycle.End, error) {
	d := defaultTimeout
	if seconds != nil {
		if *seconds < 0 || *seconds > int64(maxTimeout/time.Second) {
			return lifecycle.End{}, invalid("timeout: %d is not between 0 and %d seconds", *seconds,
				int64(maxTimeout/time.Second))
		}
		// 0 means now, which the hub would reject.
		d = max(time.Duration(*seconds)*time.Second, 10*time.Millisecond)
	}
	return lifecycle.End{At: time.Now().Add(d).Truncate(time.Millisecond), Pause: pause}, nil
}

// own returns the caller's sandbox that the request's path names.
func (cp *controlPlane) own(r *http.Request) (gateway.Principal, lifecycle.Info, error) {
	p := rest.Principal(r.Context())
	name := r.PathValue("id")
	info, err := cp.access.mine(r.Context(), p, name)
	if err != nil || info.State == lifecycle.Creating {
		if _, err := wire.ParseSandbox(name); err != nil {
			name = "of that name"
		}
		return p, info, &apiError{http.StatusNotFound, "sandbox " + name + " not found"}
	}
	return p, info, nil
}

func (cp *controlPlane) get(w http.ResponseWriter, r *http.Request) error {
	_, info, err := cp.own(r)
	if err != nil {
		return err
	}
	rest.WriteJSON(w, http.StatusOK, cp.listedOf(r, info))
	return nil
}

func (cp *controlPlane) kill(w http.ResponseWriter, r *http.Request) error {
	p, info, err := cp.own(r)
	if err != nil {
		return err
	}
	if _, err := cp.hub.Remove(r.Context(), p, info.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// lasting is a request that sets the remaining lifetime of a sandbox.
type lasting struct {
	Timeout *int64 `json:"timeout"`
	// connect: resume a paused sandbox, or restart it. pause: keep its memory
	Memory *bool `json:"memory"`
}

func (cp *controlPlane) setTimeout(w http.ResponseWriter, r *http.Request) error {
	var ask lasting
	if err := rest.DecodeOpen(w, r, &ask); err != nil {
		return err
	}
	p, info, err := cp.own(r)
	if err != nil {
		return err
	}
	if ask.Timeout == nil {
		return invalid("timeout: required, in seconds")
	}
	end, err := endAfter(ask.Timeout, info.End != nil && info.End.Pause)
	if err != nil {
		return err
	}
	if _, err := cp.hub.SetEnd(r.Context(), p, info.Name, end); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// connect resumes or starts a sandbox and returns its access data. It never shortens a sandbox's
// lifetime, and sets none for a sandbox without one.
func (cp *controlPlane) connect(w http.ResponseWriter, r *http.Request) error {
	ask := lasting{}
	if err := rest.DecodeOpen(w, r, &ask); err != nil {
		return err
	}
	p, info, err := cp.own(r)
	if err == nil {
		err = mayWork(p)
	}
	if err != nil {
		return err
	}
	if ask.Memory != nil && !*ask.Memory && info.State == lifecycle.Paused {
		if err := cp.hub.Stop(r.Context(), p, info.Name); err != nil { // restart instead of resume
			return err
		}
	}
	status := http.StatusOK
	was := info.End
	if info.State != lifecycle.Running {
		status = http.StatusCreated
		if info, err = cp.hub.Start(r.Context(), p, info.Name, nil); err != nil {
			return err
		}
	}
	if was != nil {
		end, err := endAfter(ask.Timeout, was.Pause)
		if err != nil {
			return err
		}
		if end.At.After(was.At) {
			if info, err = cp.hub.SetEnd(r.Context(), p, info.Name, end); err != nil {
				return err
			}
		}
	}
	rest.WriteJSON(w, status, cp.madeOf(r, info))
	return nil
}

// pause pauses a sandbox with its memory, or stops it without. The sandbox then has no end until a
// client connects.
func (cp *controlPlane) pause(w http.ResponseWriter, r *http.Request) error {
	var ask lasting
	if r.ContentLength != 0 {
		if err := rest.DecodeOpen(w, r, &ask); err != nil {
			return err
		}
	}
	p, info, err := cp.own(r)
	if err != nil {
		return err
	}
	if info.State != lifecycle.Running {
		return &apiError{http.StatusConflict, "sandbox " + info.Name + " is already " +
			string(info.State)}
	}
	if ask.Memory != nil && !*ask.Memory {
		err = cp.hub.Stop(r.Context(), p, info.Name)
	} else {
		err = cp.hub.Pause(r.Context(), p, info.Name, false)
	}
	if err != nil {
		return err
	}
	if info.End != nil {
		if _, err := cp.hub.SetEnd(context.WithoutCancel(r.Context()), p, info.Name,
			lifecycle.End{Pause: info.End.Pause}); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// metric is the usage of a sandbox at one time.
type metric struct {
	Time     time.Time `json:"timestamp"`
	Unix     int64     `json:"timestampUnix"`
	CPUs     int       `json:"cpuCount"`
	CPUPct   float64   `json:"cpuUsedPct"` // of its CPU limit, averaged since its start
	Mem      int64     `json:"memUsed"`
	MemAll   int64     `json:"memTotal"`
	MemCache int64     `json:"memCache"`
	Disk     int64     `json:"diskUsed"`
	DiskAll  int64     `json:"diskTotal"`
}

// metrics returns the current usage of a sandbox. There is no history.
func (cp *controlPlane) metrics(w http.ResponseWriter, r *http.Request) error {
	p, info, err := cp.own(r)
	if err != nil {
		return err
	}
	d, err := cp.hub.Describe(r.Context(), p, info.Name)
	if err != nil {
		return err
	}
	all := []metric{}
	if d.Used != nil {
		now := time.Now().UTC()
		m := metric{Time: now, Unix: now.Unix(), CPUs: int(max(1, info.Limits.CPUs)),
			Mem: d.Used.Memory, MemAll: info.Limits.Memory, Disk: d.Used.Disk,
			DiskAll: info.Limits.Disk}
		if ran := now.Sub(info.Since).Milliseconds(); ran > 0 && info.Limits.CPUs > 0 {
			m.CPUPct = 100 * float64(d.Used.CPUms) / float64(ran) / info.Limits.CPUs
		}
		all = append(all, m)
	}
	rest.WriteJSON(w, http.StatusOK, all)
	return nil
}
