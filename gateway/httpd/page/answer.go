package page

import (
	"net/http"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// reply is an answer of the page to a question that the list shows.
type reply struct {
	Text string `json:"text"`
	// The question, as the list has it.
	Since    time.Time `json:"since"`
	LastLine string    `json:"last_line"`
}

var errProgram = &wire.Error{Code: wire.CodeDenied,
	Message: "token belongs to a program, not to a person"}

// answer answers a question without opening the session.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request) {
	var a reply
	err := rest.Decode(w, r, &a)
	p := rest.Principal(r.Context())
	switch {
	case err != nil:
	case p.Kind != wire.Person:
		err = errProgram
	default:
		t := target(r)
		err = h.Hub.Sessions.Answer(r.Context(), p, attention.Need{Sandbox: t.Sandbox,
			Session: t.Session, Since: a.Since, LastLine: a.LastLine}, a.Text)
	}
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
