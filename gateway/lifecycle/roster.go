package lifecycle

import (
	"maps"
	"slices"
	"sync"
)

// roster is the set of a daemon's sandboxes. It knows only which exist and which names they have.
// What decides by all of them, such as accounts, holds mu from the count to the change.
type roster struct {
	mu    sync.Mutex
	all   map[string]*Sandbox // guarded by mu; by ID
	names map[string]*Sandbox // guarded by mu; without pooled ones and those being removed
}

func newRoster() *roster {
	return &roster{all: make(map[string]*Sandbox), names: make(map[string]*Sandbox)}
}

// add adds sb under its ID, and under its name unless it is pooled or being removed.
func (r *roster) add(sb *Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[sb.id] = sb
	if f := sb.get(); f.State != Deleting && !f.isPooled() {
		r.names[f.Name] = sb
	}
}

// unname frees the name of sb.
func (r *roster) unname(sb *Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name := sb.Name(); r.names[name] == sb {
		delete(r.names, name)
	}
}

// remove removes sb and frees its name.
func (r *roster) remove(sb *Sandbox) {
	r.unname(sb)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, sb.id)
}

// named returns the sandbox called name; nil if there is none.
func (r *roster) named(name string) *Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name]
}

// byID returns the sandbox with that ID; nil if there is none.
func (r *roster) byID(id string) *Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[id]
}

// list returns every sandbox in no order.
func (r *roster) list() []*Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.all))
}
