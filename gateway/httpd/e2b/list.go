package e2b

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// maxPage is the maximum number of sandboxes in an answer.
const maxPage = 100

// query selects sandboxes.
type query struct {
	metadata map[string]string
	states   []string
	after    time.Time
	template string
	oldest   bool // oldest first
	limit    int
	next     string // position of the last sandbox of the previous page
}

// list returns the caller's sandboxes that this API created, newest first. Clients remove what they
// find here, so other sandboxes are accessible only by name.
func (cp *controlPlane) list(w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r.URL.Query())
	if err != nil {
		return err
	}
	p := rest.Principal(r.Context())
	all, err := cp.hub.List(r.Context(), p)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(i lifecycle.Info) bool {
		return i.Owner != p.Name || !q.matches(i)
	})
	slices.SortFunc(all, func(a, b lifecycle.Info) int {
		if q.oldest {
			a, b = b, a
		}
		return strings.Compare(position(b), position(a))
	})
	page := []listed{}
	for _, i := range all {
		at := position(i)
		if q.next != "" && (q.oldest && at <= q.next || !q.oldest && at >= q.next) {
			continue
		}
		if len(page) == q.limit {
			w.Header().Set("X-Next-Token",
				base64.RawURLEncoding.EncodeToString([]byte(page[len(page)-1].position())))
			break
		}
		one := cp.listedOf(r, i)
		one.Access = ""
		page = append(page, one)
	}
	rest.WriteJSON(w, http.StatusOK, page)
	return nil
}

// position returns a key that sorts sandboxes by creation.
func position(i lifecycle.Info) string { return positionOf(i.Created, i.Name) }

func (l listed) position() string { return positionOf(l.Started, l.ID) }

func positionOf(t time.Time, name string) string {
	return t.UTC().Format("2006-01-02T15:04:05.000") + " " + name
}

func (q query) matches(i lifecycle.Info) bool {
	template, here := i.Labels[templateLabel]
	state := "running"
	switch i.State {
	case lifecycle.Creating, lifecycle.Deleting:
		return false
	case lifecycle.Paused, lifecycle.Stopped:
		state = "paused"
	}
	if !here || q.template != "" && q.template != template || !slices.Contains(q.states, state) ||
		i.Created.Before(q.after) {
		return false
	}
	for key, value := range q.metadata {
		if got, ok := i.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func queryOf(v url.Values) (query, error) {
	q := query{states: []string{"running", "paused"}, limit: maxPage, template: v.Get("template"),
		metadata: make(map[string]string)}
	// The value is a query itself, so keys and values are escaped twice.
	pairs, err := url.ParseQuery(v.Get("metadata"))
	if err != nil {
		return q, invalid("metadata: %v", err)
	}
	for key, values := range pairs {
		key, err := url.PathUnescape(key)
		value, verr := url.PathUnescape(values[0])
		if err != nil || verr != nil {
			return q, invalid("metadata: invalid escape sequence")
		}
		q.metadata[key] = value
	}
	if text := strings.Join(v["state"], ","); text != "" {
		q.states = strings.Split(text, ",")
		for _, state := range q.states {
			if state != "running" && state != "paused" {
				return q, invalid("state must be running or paused")
			}
		}
	}
	if text := v.Get("startedAfter"); text != "" {
		if q.after, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return q, invalid("startedAfter: must be an RFC 3339 time")
		}
	}
	switch v.Get("order") {
	case "", "desc":
	case "asc":
		q.oldest = true
	default:
		return q, invalid("order must be asc or desc")
	}
	if text := v.Get("limit"); text != "" {
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 1 {
			return q, invalid("limit must be at least 1")
		}
		q.limit = min(q.limit, maxPage)
	}
	next, err := base64.RawURLEncoding.DecodeString(v.Get("nextToken"))
	if err != nil {
		return q, invalid("nextToken: invalid")
	}
	q.next = string(next)
	return q, nil
}
