package e2b

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The code interpreter. E2B serves it on port 49999. Here all ports have one address, and the path
// selects it.

// defaultContext is the context of callers that name none. Names of other E2B contexts begin with
// it. Other contexts of the sandbox do not belong to this API.
const defaultContext = "e2b"

const (
	maxNotebooks = 32 // contexts of a sandbox
	// Of code; the SDKs disconnect at their timeout, which interrupts it sooner.
	maxRun      = 24 * time.Hour
	prepareTime = 30 * time.Second
	sureFor     = 10 * time.Second // how long after a call its kernel is assumed to be alive
)

// interpreter is the code interpreter of sandboxes.
type interpreter struct {
	hub      *gateway.Hub
	kernels  *kernels.Pool
	problems *problems
	places   *places
}

// routes adds run_code and the calls for contexts.
func (ip *interpreter) routes(mux *http.ServeMux) {
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request, *visit,
		*kernels.Lease) error{
		"POST /execute":               ip.execute,
		"GET /contexts":               ip.listContexts,
		"POST /contexts":              ip.createContext,
		"DELETE /contexts/{id}":       ip.removeContext,
		"POST /contexts/{id}/restart": ip.restartContext,
	} {
		mux.Handle(pattern, ip.places.inside(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				v := visitOf(r.Context())
				lease, err := ip.kernels.Lease(r.Context(), v.who,
					lifecycle.Info{ID: v.id, Name: v.name})
				if err == nil {
					defer lease.Release()
					err = f(w, r, v, lease)
				}
				if err != nil {
					ip.problems.fail(w, r, ip.pythonError(r, err))
				}
			})))
	}
}

// pythonError converts err for the SDKs. The JavaScript SDK shows only texts of status 404, and
// interprets 502 as an ended sandbox.
func (ip *interpreter) pythonError(r *http.Request, err error) error {
	if r.Context().Err() != nil || errors.As(err, new(*apiError)) {
		return err
	}
	e := kernels.Reason(ip.hub, err)
	text := e.Message
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	if e.Code == wire.CodeUnavailable || e.Code == wire.CodeUsage &&
		rest.Status(err) == http.StatusBadRequest {
		return &apiError{http.StatusNotFound, text}
	}
	return err
}

// notebook is the daemon's data of a context. It can be dropped: the kernel's state is in the
// sandbox.
type notebook struct {
	turn chan struct{} // semaphore; its holder runs code

	cwd   string    // guarded by place.mu; initial directory of its code, empty if unknown
	ready time.Time // of the holder of turn; when the kernel was last seen in cwd
}

// notebook returns the context called name, and adds it if it is new.
func (pl *place) notebook(name string) *notebook {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	nb := pl.notebooks[name]
	if nb == nil {
		if len(pl.notebooks) >= 2*maxNotebooks { // a sandbox may return other names at each call
			maps.DeleteFunc(pl.notebooks,
				func(_ string, nb *notebook) bool { return len(nb.turn) == 0 })
		}
		nb = &notebook{turn: make(chan struct{}, 1)}
		pl.notebooks[name] = nb
	}
	return nb
}

// take waits for the call's turn.
func (nb *notebook) take(ctx context.Context) (leave func(), err error) {
	select {
	case nb.turn <- struct{}{}:
		return func() { <-nb.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (pl *place) knows(name string) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.notebooks[name] != nil
}

// isContext reports whether a context belongs to this API.
func isContext(name string) bool {
	return name == defaultContext || strings.HasPrefix(name, defaultContext+"-")
}

// named returns the context that a client names.
func (v *visit) named(ctx context.Context, in *kernels.Lease, id string) (*notebook, error) {
	gone := &apiError{http.StatusNotFound, "context " + cutText(id, 64) + " not found"}
	if _, err := wire.ParseLabel("context name", id); err != nil || !isContext(id) {
		return nil, gone
	}
	if id != defaultContext && !v.knows(id) {
		all, err := in.List(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(i python.Info) bool { return i.Name == id }) {
			return nil, gone
		}
	}
	return v.notebook(id), nil
}

// onlyPython rejects other languages.
func onlyPython(language *string) error {
	if language == nil || *language == "" || *language == "python" {
		return nil
	}
	return &apiError{http.StatusNotFound,
		fmt.Sprintf(
			"language %.32q is not supported: run_code runs python; use commands.run for others",
			*language)}
}

// kernelOf returns the kernel of a context, in its directory. The caller holds the turn.
func (v *visit) kernelOf(ctx context.Context, in *kernels.Lease, name string, nb *notebook,
	dir string) (*python.Context, error) {
	c, err := in.Context(ctx, name)
	if err != nil || time.Since(nb.ready) < sureFor {
		return c, err
	}
	v.mu.Lock()
	if nb.cwd != "" {
		dir = nb.cwd
	}
	v.mu.Unlock()
	var said strings.Builder
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	res, err := c.Execute(ctx, python.Call{Code: cell(prepare, map[string]any{"where": dir}),
		Silent: true, NoInput: true, Output: func(o python.Output) {
			if o.Type == python.Stdout && said.Len() < 4096 {
				said.WriteString(o.Chars)
			}
		}})
	switch {
	case err != nil:
		return nil, err
	case res.Error != nil:
		return nil, &apiError{http.StatusNotFound, "cwd: " + cutText(res.Error.Value, 300)}
	case !res.OK:
		return nil, wire.Errorf(wire.CodeUnavailable, "context %s: its kernel is %s", name,
			res.Ended)
	}
	v.mu.Lock()
	nb.cwd = said.String()
	v.mu.Unlock()
	nb.ready = time.Now()
	return c, nil
}

// Cells that define no names.
const (
	prepare = `
import os, sys
if not hasattr(sys, "_sandboxd_cwd"):
    os.chdir(os.path.expanduser(where))
    sys._sandboxd_cwd = os.getcwd()
sys.stdout.write(sys._sandboxd_cwd)
`
	setEnv = `
import os, sys
sys._sandboxd_env = {k: os.environ.get(k) for k in env}
os.environ.update(env)
`
	unsetEnv = `
import os, sys
for k, v in sys.__dict__.pop("_sandboxd_env", {}).items():
    os.environ.pop(k, None)
    if v is not None:
        os.environ[k] = v
`
)

// cell returns code that runs in a namespace of its own, with the given variables.
func cell(code string, with map[string]any) string {
	text, _ := json.Marshal(code)  // a string always encodes
	names, _ := json.Marshal(with) // strings always encode
	quoted, _ := json.Marshal(string(names))
	return "exec(" + string(text) + ", __import__('json').loads(" + string(quoted) + "))"
}

// newContext is the request of create_code_context.
type newContext struct {
	Language *string `json:"language"`
	Dir      *string `json:"cwd"`
}

// codeContext is a context in the SDKs' format.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

func (ip *interpreter) createContext(w http.ResponseWriter, r *http.Request, v *visit,
	in *kernels.Lease) error {
	var ask newContext
	if err := rest.DecodeOpen(w, r, &ask); err != nil {
		return err
	}
	if err := onlyPython(ask.Language); err != nil {
		return err
	}
	all, err := in.List(r.Context())
	if err != nil {
		return err
	}
	if len(all) >= maxNotebooks {
		return &apiError{http.StatusTooManyRequests,
			fmt.Sprintf("limit of %d contexts in this sandbox reached", len(all))}
	}
	dir := "~"
	if ask.Dir != nil && *ask.Dir != "" {
		dir = *ask.Dir
	}
	name := defaultContext + "-" + strings.ToLower(rand.Text()[:12])
	nb := v.notebook(name)
	leave, err := nb.take(r.Context())
	if err != nil {
		return err
	}
	defer leave()
	c, err := v.kernelOf(r.Context(), in, name, nb, dir)
	if err != nil {
		v.forget(name)
		end, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), prepareTime)
		defer cancel()
		if c, cerr := in.Context(end, name); cerr == nil {
			_ = c.Close(end) // otherwise it ends when it is idle for long
		}
		return err
	}
	rest.WriteJSON(w, http.StatusCreated, codeContext{c.Name(), "python", nb.cwd})
	return nil
}

func (pl *place) forget(name string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	delete(pl.notebooks, name)
}

func (ip *interpreter) listContexts(w http.ResponseWriter, r *http.Request, v *visit,
	in *kernels.Lease) error {
	all, err := in.List(r.Context())
	if err != nil {
		return err
	}
	list := []codeContext{}
	for _, i := range all {
		if isContext(i.Name) {
			list = append(list, codeContext{i.Name, "python", v.cwdOf(r.Context(), in, i)})
		}
	}
	rest.WriteJSON(w, http.StatusOK, list)
	return nil
}

// cwdOf returns the initial directory of a context. It is empty if the context is older than the
// daemon and busy.
func (v *visit) cwdOf(ctx context.Context, in *kernels.Lease, i python.Info) string {
	nb := v.notebook(i.Name)
	v.mu.Lock()
	cwd := nb.cwd
	v.mu.Unlock()
	if cwd != "" || i.State != "idle" {
		return cwd
	}
	select {
	case nb.turn <- struct{}{}:
		defer func() { <-nb.turn }()
	default:
		return ""
	}
	if _, err := v.kernelOf(ctx, in, i.Name, nb, "~"); err != nil {
		return ""
	}
	return nb.cwd
}

func (ip *interpreter) removeContext(w http.ResponseWriter, r *http.Request, v *visit,
	in *kernels.Lease) error {
	c, _, err := v.context(r, in)
	if err == nil {
		err = c.Close(r.Context())
	}
	if err != nil {
		return err
	}
	v.forget(c.Name())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// restartContext restarts a context's kernel, which ends running code.
func (ip *interpreter) restartContext(w http.ResponseWriter, r *http.Request, v *visit,
	in *kernels.Lease) error {
	c, nb, err := v.context(r, in)
	if err == nil {
		err = c.Restart(r.Context())
	}
	if err != nil {
		return err
	}
	leave, err := nb.take(r.Context())
	if err != nil {
		return err
	}
	nb.ready = time.Time{}
	leave()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// context returns the context that the request's path names.
func (v *visit) context(r *http.Request, in *kernels.Lease) (*python.Context, *notebook, error) {
	id := r.PathValue("id")
	nb, err := v.named(r.Context(), in, id)
	if err != nil {
		return nil, nil, err
	}
	c, err := in.Context(r.Context(), id)
	return c, nb, err
}
