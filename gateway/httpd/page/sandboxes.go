package page

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// made is what the page asks for when it makes a sandbox. Empty fields mean the daemon's defaults.
type made struct {
	Name    string          `json:"name"`
	Image   string          `json:"image"`
	Network sandbox.Network `json:"network"`
}

// create makes a sandbox and answers with its name.
func (h *Handler) create(w http.ResponseWriter, r *http.Request) {
	var a made
	if err := rest.Decode(w, r, &a); err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	h.act(w, r, func(p gateway.Principal) (string, error) {
		name, err := h.nameFor(r, p, a.Name, "box")
		if err != nil {
			return "", err
		}
		info, err := h.Hub.Create(r.Context(), p, lifecycle.NewSpec{Name: name, Image: a.Image,
			Network: a.Network}, nil)
		return info.Name, err
	})
}

// fork makes a copy of a sandbox and answers with its name.
func (h *Handler) fork(w http.ResponseWriter, r *http.Request) {
	var a struct {
		Name string `json:"name"`
	}
	if err := rest.Decode(w, r, &a); err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	h.act(w, r, func(p gateway.Principal) (string, error) {
		name, err := h.nameFor(r, p, a.Name, r.PathValue("sandbox"))
		if err != nil {
			return "", err
		}
		info, err := h.Hub.Fork(r.Context(), p, r.PathValue("sandbox"), name, nil)
		return info.Name, err
	})
}

// nameFor returns name, or for an empty one base or the first of base-2, base-3 and so on that p
// does not have.
func (h *Handler) nameFor(r *http.Request, p gateway.Principal, name, base string) (string, error) {
	if name != "" {
		return name, nil
	}
	infos, err := h.Hub.List(r.Context(), p)
	if err != nil {
		return "", err
	}
	taken := make(map[string]bool)
	for _, info := range infos {
		taken[info.Name] = true
	}
	name = base
	for n := 2; taken[name]; n++ {
		end := "-" + strconv.Itoa(n)
		name = strings.TrimRight(base[:min(len(base), wire.MaxLabel-len(end))], "-") + end
	}
	return name, nil
}

func (h *Handler) start(w http.ResponseWriter, r *http.Request) {
	h.act(w, r, func(p gateway.Principal) (string, error) {
		name := r.PathValue("sandbox")
		_, err := h.Hub.Start(r.Context(), p, name, nil)
		return name, err
	})
}

func (h *Handler) stop(w http.ResponseWriter, r *http.Request) {
	h.act(w, r, func(p gateway.Principal) (string, error) {
		name := r.PathValue("sandbox")
		return name, h.Hub.Stop(r.Context(), p, name)
	})
}

func (h *Handler) remove(w http.ResponseWriter, r *http.Request) {
	h.act(w, r, func(p gateway.Principal) (string, error) {
		name := r.PathValue("sandbox")
		_, err := h.Hub.Remove(r.Context(), p, name)
		return name, err
	})
}

// linkTime is the lifetime of a link that the page makes.
const linkTime = 24 * time.Hour

// link answers with a read-only link to a sandbox. It expires no later than the caller's login.
func (h *Handler) link(w http.ResponseWriter, r *http.Request) {
	maker, p := rest.Caller(r.Context()), rest.Principal(r.Context())
	if p.Kind != wire.Person {
		rest.Fail(w, r, h.Hub, errProgram)
		return
	}
	end := time.Now().Add(linkTime).Truncate(time.Millisecond)
	if maker.Expires == nil || end.Before(*maker.Expires) {
		maker.Expires = &end
	}
	secret, t, err := h.Tokens.Link(r.Context(), h.Hub, p, r.PathValue("sandbox"), maker)
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	// The guard has compared Origin, which a page sends with each change, with the host.
	rest.WriteJSON(w, http.StatusOK, map[string]any{"expires": *t.Expires,
		"url": r.Header.Get("Origin") + "/#link=" + secret})
}

// act answers with the name of the sandbox that do has changed. The page's buttons are for people:
// programs have the commands.
func (h *Handler) act(w http.ResponseWriter, r *http.Request,
	do func(p gateway.Principal) (name string, err error)) {
	p := rest.Principal(r.Context())
	if p.Kind != wire.Person {
		rest.Fail(w, r, h.Hub, errProgram)
		return
	}
	name, err := do(p)
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	rest.WriteJSON(w, http.StatusOK, map[string]string{"name": name})
}
