package clone

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// headsScript prints the commits of HEAD and of all branches, a line each; the last line is "end".
// It changes nothing. Its argument is the directory.
const headsScript = `set -u
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
command -v git >/dev/null || exit 71
cd -- "$1" 2>/dev/null || exit 74
git rev-parse -q --verify 'HEAD^{commit}'
git for-each-ref --format='%(objectname)' refs/heads || exit 1
echo end
`

// HasNew reports whether HEAD or a branch of the clone is at a commit that the last fetch did not
// see. It takes less time than Fetch, and changes nothing. It ignores what is not committed.
func (c *Clone) HasNew(ctx context.Context, box Sandbox) (bool, error) {
	out, said, exit, err := script(ctx, box, nil, headsScript, c.Dir)
	if err := c.failed(said, exit, err); err != nil {
		return false, err
	}
	body, whole := strings.CutSuffix(string(out), "end\n")
	if !whole {
		return false, fmt.Errorf("sandbox %s: list of branches: has no end", c.Sandbox)
	}
	fetched, err := c.refs(ctx, repository{c.Repository})
	if err != nil {
		return false, err
	}
	known := map[string]bool{c.Base: true}
	for _, object := range fetched {
		known[object] = true
	}
	for object := range strings.Lines(body) {
		object = strings.TrimSuffix(object, "\n")
		if !isObject(object) {
			return false, fmt.Errorf("sandbox %s: %q is no object", c.Sandbox,
				text.Line(object, 100))
		}
		if !known[object] {
			return true, nil
		}
	}
	return false, nil
}
