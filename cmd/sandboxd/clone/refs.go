package clone

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Refs of a clone in the repository of this machine. SPACE is the name of the sandbox while the
// sandbox owns that name, else NAME.ID: see space.
const (
	branchRefs = "refs/sandboxes/"      // SPACE/BRANCH: branches of the sandbox
	savedRefs  = "refs/sandboxd/saved/" // SPACE/…: what is on no branch there
	goneRefs   = "refs/sandboxd/gone/"  // SPACE/…: what was there before; the reflog has all of it
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
	ref := ownerRefs + c.Sandbox
	id, object, err := c.owner(ctx, r)
	switch {
	case err != nil:
		return space{}, err
	case object == "": // a clone of an earlier version
		object, err = c.mark(ctx, r)
		return space{c.Sandbox, "create " + ref + " " + object + "\n"}, err
	case id == c.ID:
		return space{c.Sandbox, "verify " + ref + " " + object + "\n"}, nil
	}
	return space{c.Sandbox + "." + c.ID, "verify " + ref + " " + object + "\n"}, nil
}

// mark stores the ID of the sandbox as an object.
func (c *Clone) mark(ctx context.Context, r repository) (object string, err error) {
	out, err := r.call(ctx, call{stdin: c.ID}, "hash-object", "-w", "--stdin")
	return strings.TrimSpace(string(out)), err
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

// set makes edits of refs in the space, as one transaction. The reflog keeps what a changed history
// replaces.
func (s space) set(ctx context.Context, r repository, edits string) error {
	if edits == "" {
		return nil
	}
	_, err := r.call(ctx, call{stdin: s.guard + edits}, "update-ref", "--no-deref",
		"--create-reflog", "-m", "sandboxd fetch", "--stdin")
	return err
}

// takeName makes the sandbox the owner of its name, and sets its base. The refs of the owner before
// are renamed to its own space, which Former then names.
func (c *Clone) takeName(ctx context.Context, r repository) error {
	id, object, err := c.owner(ctx, r)
	if err != nil {
		return err
	}
	suffix := id
	if id == "" || id == c.ID { // of an earlier version, or a host that is cloned into again
		suffix = time.Now().UTC().Format("20060102-150405.000")
	}
	from, to := space{name: c.Sandbox}, space{name: c.Sandbox + "." + suffix}
	refs, err := from.refs(ctx, r, branchRefs, savedRefs, goneRefs, baseRefs)
	if err != nil {
		return err
	}
	own, err := c.mark(ctx, r)
	if err != nil {
		return err
	}
	edits := new(strings.Builder)
	if object == "" {
		fmt.Fprintf(edits, "create %s%s %s\n", ownerRefs, c.Sandbox, own)
	} else {
		fmt.Fprintf(edits, "update %s%s %s %s\n", ownerRefs, c.Sandbox, own, object)
	}
	base := baseRefs + from.name
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		for _, kind := range []string{branchRefs, savedRefs, goneRefs, baseRefs} {
			if rest, ok := strings.CutPrefix(name, kind+from.name); ok {
				fmt.Fprintf(edits, "create %s%s%s %s\n", kind, to.name, rest, refs[name])
			}
		}
		if name != base {
			fmt.Fprintf(edits, "delete %s %s\n", name, refs[name])
			c.Former = branchRefs + to.name
		}
	}
	if before := refs[base]; before == "" {
		fmt.Fprintf(edits, "create %s %s\n", base, c.Base)
	} else {
		fmt.Fprintf(edits, "update %s %s %s\n", base, c.Base, before)
	}
	_, err = r.call(ctx, call{stdin: edits.String()}, "update-ref", "--no-deref", "--stdin")
	return err
}
