package dockerfile

import (
	"context"
	"fmt"
	"path"
	"strings"
)

// maxMatches bounds the files and directories that a pattern may match.
const maxMatches = 10_000

// match returns the files that a pattern of path.Match names, in no order. A pattern without
// special characters names itself. list returns the names in a directory, or an error if it is
// none.
func match(ctx context.Context, pattern string,
	list func(dir string) ([]string, error)) ([]string, error) {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return []string{pattern}, nil
	}
	dirs, err := match(ctx, path.Dir(pattern), list)
	if err != nil {
		return nil, err
	}
	last, found := path.Base(pattern), []string(nil)
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		names, err := list(dir)
		if err != nil {
			continue // not a directory
		}
		for _, name := range names {
			matches, err := path.Match(last, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", brief(pattern), err)
			}
			if !matches {
				continue
			}
			if found = append(found, path.Join(dir, name)); len(found) > maxMatches {
				return nil, fmt.Errorf("%s: more than %d files match", brief(pattern), maxMatches)
			}
		}
	}
	return found, nil
}
