package page

import (
	"net/http"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	lookEvery  = 500 * time.Millisecond // interval of pictures
	maxScreens = 100                    // sessions with a picture

	pictureRows = 100
	pictureLine = 500 // bytes
)

// pictured is the screen of one session.
type pictured struct {
	ID   string `json:"id"`   // SANDBOX~SESSION
	Text string `json:"text"` // its lines, without empty ones at the end
}

// screens sends the screens of all sessions of the list, and each again after new output.
func (h *Handler) screens(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, func(s *socket) error {
		s.tasks.Go(s.ignore)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		sent := make(map[string]uint64) // by ID; how much of its output the picture has
		for {
			changed, now, err := h.look(r, sent)
			if err != nil {
				return err
			}
			sent = now
			if len(changed) > 0 {
				if err := s.say(map[string]any{"screens": changed}); err != nil {
					return err
				}
			}
			select {
			case <-tick.C:
			case <-s.ctx.Done():
				return nil
			}
		}
	})
}

// look returns the screens that have changed since those of sent, and what there is now.
func (h *Handler) look(r *http.Request, sent map[string]uint64) (changed []pictured,
	now map[string]uint64, err error) {
	p := rest.Principal(r.Context())
	infos, err := h.Hub.List(r.Context(), p)
	if err != nil {
		return nil, nil, err
	}
	looked := 0
	now = make(map[string]uint64, len(sent))
	for _, info := range infos {
		if info.State != lifecycle.Running {
			continue
		}
		for _, session := range info.Sessions {
			if looked++; looked > maxScreens {
				return changed, now, nil
			}
			t := wire.Target{Sandbox: info.Name, Session: session.Name}
			id := info.ID + "~" + session.Name
			// A session that ends meanwhile has no picture.
			_ = h.Hub.Sessions.Look(r.Context(), p, t, func(sc *screen.Screen, offset uint64) {
				now[id] = offset
				if at, known := sent[id]; known && at == offset {
					return
				}
				changed = append(changed, pictured{t.Sandbox + "~" + t.Session, textOf(sc)})
			})
		}
	}
	return changed, now, nil
}

// textOf returns the lines of a screen, without empty ones at the end and what is beyond a picture.
func textOf(sc *screen.Screen) string {
	_, rows := sc.Size()
	lines := make([]string, min(rows, pictureRows))
	for y := range lines {
		lines[y] = sc.LineText(y)
		if len(lines[y]) > pictureLine {
			lines[y] = strings.ToValidUTF8(lines[y][:pictureLine], "")
		}
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
