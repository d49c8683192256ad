package page

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// list is what the page shows beside terminals.
type list struct {
	Principal string      `json:"principal"`
	Rights    wire.Rights `json:"rights"`
	Prefix    string      `json:"prefix"`
	Sandboxes []box       `json:"sandboxes"`
}

// box is a sandbox of it.
type box struct {
	Name     string          `json:"name"`
	Owner    string          `json:"owner"`
	State    lifecycle.State `json:"state"`
	Reason   string          `json:"reason,omitempty"`
	Image    string          `json:"image"`
	Sessions []session       `json:"sessions"`
}

type session struct {
	attention.Need
	Label string `json:"label"` // of what it needs, as ls has it
}

const (
	lookAgain  = time.Second      // how often last lines are brought up to date; what is needed is told when it changes
	aliveEvery = 10 * time.Second // how often the page hears that there is nothing new: a script is not told of pings, and the other end may be gone
)

// live tells what there is, and again after every change.
func (d *Door) live(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, func(s *socket) error {
		s.tasks.Go(func() {
			for s.ctx.Err() == nil {
				_, _ = s.hear(&struct{}{}) // nothing is expected; it ends when they go
			}
		})
		ctx, stop := context.WithCancel(s.ctx)
		watch := d.Hub.Sessions.WatchAttention(rest.Principal(r.Context()))
		defer watch.Close()
		changed := make(chan error, 1)
		next := func() { changed <- watch.Wait(ctx) } // one at a time: it is begun again when it has been heard
		go next()
		defer func() {
			stop()
			<-changed //nolint:errcheck // the end that was just made
		}()
		tick := time.NewTicker(lookAgain)
		defer tick.Stop()
		var told []byte
		var at time.Time // when anything was
		for {
			now, err := d.list(r)
			if err != nil {
				return err
			}
			text, err := json.Marshal(now)
			if err != nil {
				return err
			}
			news := map[string]any{"now": time.Now().UnixMilli()}
			if !bytes.Equal(text, told) {
				told, news["list"] = text, now
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

func (d *Door) list(r *http.Request) (list, error) {
	p := rest.Principal(r.Context())
	now := list{Principal: p.Name, Rights: p.Rights, Prefix: prefixName(d.Prefix), Sandboxes: []box{}}
	infos, err := d.Hub.List(r.Context(), p)
	if err != nil {
		return now, err
	}
	needs, err := d.Hub.Sessions.Attention(r.Context(), p, "")
	if err != nil {
		return now, err
	}
	for _, info := range infos {
		b := box{Name: info.Name, Owner: info.Owner, State: info.State, Reason: info.Reason, Image: info.ShortImage(), Sessions: []session{}}
		for _, n := range needs {
			if n.Sandbox == info.Name {
				b.Sessions = append(b.Sessions, session{n, n.Label()})
			}
		}
		now.Sandboxes = append(now.Sandboxes, b)
	}
	return now, nil
}

// records lists the records of a sandbox.
func (d *Door) records(w http.ResponseWriter, r *http.Request) {
	all, err := d.Hub.Sessions.Records(r.Context(), rest.Principal(r.Context()), r.PathValue("sandbox"))
	if err != nil {
		rest.Fail(w, r, d.Hub, err)
		return
	}
	if all == nil {
		all = []record.Info{}
	}
	rest.WriteJSON(w, http.StatusOK, map[string]any{"records": all})
}
