package clone

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Refs of a clone in the repository of this machine. SPACE is the name of the sandbox while the
// sandbox owns that name, else NAME.ID: see space. No reflog is needed: it would not survive when a
// space is renamed.
const (
	branchRefs = "refs/sandboxes/"      // SPACE/BRANCH: branches of the sandbox
	savedRefs  = "refs/sandboxd/saved/" // SPACE/…: what is on no branch there
	goneRefs   = "refs/sandboxd/gone/"  // SPACE/OBJECT: what one of these was, and is no more
	baseRefs   = "refs/sandboxd/base/"  // SPACE: where the branch of the clone begins
	ownerRefs  = "refs/sandboxd/owner/" // NAME: a blob with the ID of the sandbox that owns it
)

// Refs of a clone in the repository of the sandbox.
const (
	insideHeads = "refs/heads/"
	insideSaved = "refs/sandboxd/saved/"
	insideBase  = "refs/sandboxd/base"
)

// space is where the refs of one sandbox are. Sandboxes of several gateways may have a name, and a
// later sandbox that of one that was removed. The last one that was cloned owns the name.
type space struct {
	name string
	// guard begins each transaction that changes refs of the space. It fails if the owner has
	// changed since: the refs are another sandbox's by now.
	guard string
}

func (s space) branch(name string) string { return branchRefs + s.name + "/" + name }

// owner returns the ID of the sandbox that owns the name of c, and the object that says so. Both
// are empty without one.
func (c *Clone) owner(ctx context.Context, r repository) (id, object string, err error) {
	object, err = r.line(ctx, "for-each-ref", "--format=%(objectname)", ownerRefs+c.Sandbox)
	if err != nil || object == "" {
		return "", "", err
	}
	id, err = r.line(ctx, "cat-file", "blob", object)
	return id, object, err
}

// space returns where the refs of the sandbox are.
func (c *Clone) space(ctx context.Context, r repository) (space, error) {
	id, object, err := c.owner(ctx, r)
	s := space{c.Sandbox, "verify " + ownerRefs + c.Sandbox + " " + object + "\n"}
	switch {
	case object == "":
		s.guard = "" // of a clone of an earlier version
	case id != c.ID:
		s.name += "." + c.ID
	}
	return s, err
}

// ownSpace is space for changes. A name without an owner becomes that of the sandbox.
func (c *Clone) ownSpace(ctx context.Context, r repository) (space, error) {
	s, err := c.space(ctx, r)
	if err != nil || s.guard != "" {
		return s, err
	}
	object, err := c.mark(ctx, r)
	if err != nil {
		return s, err
	}
	if err := r.update(ctx, "create "+ownerRefs+c.Sandbox+" "+object+"\n"); err != nil {
		return s, err
	}
	return c.space(ctx, r)
}

// mark stores the ID of the sandbox as an object.
func (c *Clone) mark(ctx context.Context, r repository) (object string, err error) {
	out, err := r.call(ctx, call{stdin: c.ID}, "hash-object", "-w", "--stdin")
	return strings.TrimSpace(string(out)), err
}

// update makes changes of refs, as one transaction.
func (r repository) update(ctx context.Context, edits string) error {
	_, err := r.call(ctx, call{stdin: edits}, "update-ref", "--no-deref", "--create-reflog", "-m",
		"sandboxd fetch", "--stdin")
	return err
}

// refs returns the objects of refs in a space, by name: of all that begin with one of kinds.
func (s space) refs(ctx context.Context, r repository, kinds ...string) (map[string]string, error) {
	args := []string{"for-each-ref", "--format=%(objectname) %(refname)"}
	for _, kind := range kinds {
		args = append(args, kind+s.name)
	}
	out, err := r.call(ctx, call{output: maxListing}, args...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		object, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		all[name] = object
	}
	return all, nil
}

// set sets the refs of the sandbox, which were before. A branch that is gone stays. Whatever else
// an object is replaced by, or its ref removed, it stays as one of goneRefs: only the sandbox says
// that it is on a branch by now, or was dropped.
func (s space) set(ctx context.Context, r repository, refs, before map[string]string) error {
	objects, dirs := make(map[string]bool), make(map[string]bool)
	for name, object := range refs {
		objects[object] = true
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	// A name that another one has as a directory, in either direction.
	conflicts := func(name string) bool {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if refs[dir] != "" {
				return true
			}
		}
		return dirs[name]
	}
	within, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	first, then := new(strings.Builder), new(strings.Builder)
	type keep struct {
		first  bool // in the first transaction
		object string
	}
	kept := make(map[keep]bool)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		was, is := before[name], refs[name]
		blocks := is == "" && conflicts(name)
		if was == is || is == "" && !blocks && !strings.HasPrefix(name, savedRefs) {
			continue
		}
		edits := then
		if blocks {
			edits = first
		}
		if k := (keep{blocks, was}); !kept[k] && (blocks ||
			!objects[was] && (is == "" || !r.contains(within, is, was))) {
			kept[k] = true
			fmt.Fprintf(edits, "update %s%s/%s %s\n", goneRefs, s.name, was, was)
		}
		if is == "" {
			fmt.Fprintf(edits, "delete %s %s\n", name, was)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		switch before[name] {
		case refs[name]:
		case "":
			fmt.Fprintf(then, "create %s %s\n", name, refs[name])
		default:
			fmt.Fprintf(then, "update %s %s %s\n", name, refs[name], before[name])
		}
	}
	// Two, because one cannot replace a by a/b. The first leaves all that it deletes in goneRefs.
	for _, edits := range []*strings.Builder{first, then} {
		if edits.Len() == 0 {
			continue
		}
		if err := r.update(ctx, s.guard+edits.String()); err != nil {
			return err
		}
	}
	return nil
}

// contains reports whether a commit is known to have another one in its history.
func (r repository) contains(ctx context.Context, commit, other string) bool {
	_, err := r.git(ctx, "merge-base", "--is-ancestor", other, commit)
	return err == nil
}

// takeName makes the sandbox the owner of its name, and sets its base. The refs of the owner before
// are renamed to a space of its own, which Former then names.
func (c *Clone) takeName(ctx context.Context, r repository) error {
	id, object, err := c.owner(ctx, r)
	if err != nil {
		return err
	}
	own, err := c.mark(ctx, r)
	if err != nil {
		return err
	}
	from, to := space{name: c.Sandbox}, space{name: c.Sandbox + "." + id}
	there, err := to.refs(ctx, r, allRefs...)
	if err != nil {
		return err
	}
	if id == "" || id == c.ID || len(there) > 0 { // it has had the name before
		to.name = strings.TrimSuffix(to.name, ".") + "." +
			time.Now().UTC().Format("20060102-150405.000")
	}
	take := "create " + ownerRefs + c.Sandbox + " " + own + "\n"
	if object != "" {
		take = "update " + ownerRefs + c.Sandbox + " " + own + " " + object + "\n"
	}
	// Again, because a fetch of the owner before may have set more until it is no owner.
	for range 2 {
		refs, err := from.refs(ctx, r, allRefs...)
		if err != nil {
			return err
		}
		edits := take + c.moves(refs, from, to)
		if take != "" {
			edits += c.newBase(refs[baseRefs+from.name], to)
		}
		if edits == "" {
			break
		}
		if err := r.update(ctx, edits); err != nil {
			return err
		}
		take = ""
	}
	return nil
}

// allRefs are all kinds of refs of a space.
var allRefs = []string{branchRefs, savedRefs, goneRefs, baseRefs}

// moves returns the changes that rename refs of a space, but its base.
func (c *Clone) moves(refs map[string]string, from, to space) string {
	edits := new(strings.Builder)
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if name == baseRefs+from.name {
			continue
		}
		for _, kind := range allRefs {
			if rest, ok := strings.CutPrefix(name, kind+from.name); ok {
				fmt.Fprintf(edits, "create %s%s%s %s\n", kind, to.name, rest, refs[name])
			}
		}
		fmt.Fprintf(edits, "delete %s %s\n", name, refs[name])
		c.Former = branchRefs + to.name
	}
	return edits.String()
}

// newBase returns the changes that set the base of the name to that of c. The one before moves to
// the space of the owner before.
func (c *Clone) newBase(before string, to space) string {
	base := baseRefs + c.Sandbox
	if before == "" {
		return fmt.Sprintf("create %s %s\n", base, c.Base)
	}
	return fmt.Sprintf("update %s %s %s\nupdate %s%s %[3]s\n", base, c.Base, before, baseRefs,
		to.name)
}
