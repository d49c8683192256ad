package page

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// list is the list of sandboxes, as sent to the page.
type list struct {
	Principal string      `json:"principal"`
	Rights    wire.Rights `json:"rights"`
	Prefix    string      `json:"prefix"`
	Sandboxes []listed    `json:"sandboxes"`
}

// listed is a sandbox of the list.
type listed struct {
	Name     string          `json:"name"`
	Owner    string          `json:"owner"`
	State    lifecycle.State `json:"state"`
	Reason   string          `json:"reason,omitempty"`
	Image    string          `json:"image"`
	Drive    bool            `json:"drive"` // this person may type
	Sessions []session       `json:"sessions"`
}

type session struct {
	attention.Need
	Label string `json:"label"` // of the attention state, as ls shows it
}

const (
	// Interval between updates of last lines; attention changes are sent at once.
	lookAgain = time.Second
	// Interval of messages without news: scripts do not see pings, and the connection may be lost.
	aliveEvery = 10 * time.Second
)

// live sends the list, and sends it again after every change.
func (h *Handler) live(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, func(s *socket) error {
		s.tasks.Go(s.ignore)
		ctx, stop := context.WithCancel(s.ctx)
		watch := h.Hub.Sessions.WatchAttention(rest.Principal(r.Context()))
		defer watch.Close()
		changed := make(chan error, 1)
		// One call at a time: the next starts when its result was received.
		next := func() { changed <- watch.Wait(ctx) }
		go next()
		defer func() {
			stop()
			<-changed //nolint:errcheck // the cancellation
		}()
		tick := time.NewTicker(lookAgain)
		defer tick.Stop()
		var sent []byte
		var at time.Time // when the last message was sent
		for {
			now, err := h.list(r)
			if err != nil {
				return err
			}
			text, err := json.Marshal(now)
			if err != nil {
				return err
			}
			news := map[string]any{"now": time.Now().UnixMilli()}
			if !bytes.Equal(text, sent) {
				sent, news["list"] = text, now
			}
			if news["list"] != nil || time.Since(at) >= aliveEvery {
				at = time.Now()
				if err := s.say(news); err != nil {
					return err
				}
			}
			select {
			case err := <-changed:
				go next()
				if err != nil {
					return err
				}
			case <-tick.C:
			case <-s.ctx.Done():
				return nil
			}
		}
	})
}

func (h *Handler) list(r *http.Request) (list, error) {
	p := rest.Principal(r.Context())
	now := list{Principal: p.Name, Rights: p.Rights, Prefix: prefixName(h.Prefix),
		Sandboxes: []listed{}}
	infos, err := h.Hub.List(r.Context(), p)
	if err != nil {
		return now, err
	}
	needs, err := h.Hub.Sessions.Attention(r.Context(), p, "")
	if err != nil {
		return now, err
	}
	for _, info := range infos {
		drive := p.Rights != wire.RightWatch && (info.Owner == p.Name ||
			slices.Contains(info.SharedWith,
				lifecycle.Share{Principal: p.Name, Rights: wire.RightDrive}))
		b := listed{Name: info.Name, Owner: info.Owner, State: info.State, Reason: info.Reason,
			Image: info.ShortImage(), Drive: drive, Sessions: []session{}}
		for _, n := range needs {
			if n.Sandbox == info.Name {
				b.Sessions = append(b.Sessions, session{n, n.Label()})
			}
		}
		now.Sandboxes = append(now.Sandboxes, b)
	}
	return now, nil
}

// records returns the records of a sandbox.
func (h *Handler) records(w http.ResponseWriter, r *http.Request) {
	all, err := h.Hub.Sessions.Records(r.Context(), rest.Principal(r.Context()),
		r.PathValue("sandbox"))
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	if all == nil {
		all = []record.Info{}
	}
	rest.WriteJSON(w, http.StatusOK, map[string]any{"records": all})
}
