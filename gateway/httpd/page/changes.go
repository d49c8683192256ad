package page

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxChanges  = 1 << 20 // bytes of a difference that the page shows
	changesTime = 15 * time.Second

	exitNoGit  = 71
	exitNoRepo = 74
)

// changesScript prints what has changed in the git repository of directory DIR: since a clone by
// sandboxd began, else since the last commit. It takes no lock beside an agent's git, and runs no
// hooks and no diff programs of the repository's configuration. Its filters do run.
const changesScript = `cd -- DIR || exit 74
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
export GIT_OPTIONAL_LOCKS=0 GIT_NO_LAZY_FETCH=1 LC_ALL=C
command -v git >/dev/null || exit 71
g() {
	git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.quotePath=false \
		-c color.ui=false "$@" 2>&1
}
why=$(g rev-parse --is-inside-work-tree) || {
	case $why in *"not a git repository"*) exit 74 ;; esac
	printf '%s\n' "$why"
	exit 1
}
base=HEAD
g rev-parse -q --verify 'refs/sandboxd/base^{commit}' >/dev/null && base=refs/sandboxd/base
g rev-parse -q --verify "$base^{commit}" >/dev/null || base=
g status --short --branch --ignore-submodules=dirty
g diff --no-ext-diff --no-textconv --ignore-submodules=dirty -l1000 ${base:+"$base"} --`

// changes answers with the changes in the repository of a directory, as git prints them.
func (h *Handler) changes(w http.ResponseWriter, r *http.Request) {
	printed, cut, err := h.readChanges(r)
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	rest.WriteJSON(w, http.StatusOK, map[string]any{"text": printed, "cut": cut})
}

func (h *Handler) readChanges(r *http.Request) (printed string, cut bool, err error) {
	dir := r.FormValue("path")
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return "", false, wire.Errorf(wire.CodeUsage, "path %q is not absolute", dir)
	}
	conn, err := h.connect(r)
	if err != nil {
		return "", false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeoutCause(r.Context(), changesTime, &wire.Error{
		Code: wire.CodeUnavailable, Message: "git takes too long",
		Hint: "run git diff in a session"})
	defer cancel()
	script := strings.Replace(changesScript, "DIR", text.Quote(dir), 1)
	out, err := connect.Output(ctx, conn, script, maxChanges)
	exit, ended := errors.AsType[*connect.ExitError](err)
	switch {
	case errors.Is(err, connect.ErrTooMuch):
		cut, err = true, nil
	case ended && exit.Status == exitNoGit:
		err = wire.Errorf(wire.CodeUnavailable, "the sandbox has no git")
	case ended && exit.Status == exitNoRepo:
		err = wire.Errorf(wire.CodeNotFound, "%q is not in the work tree of a git repository", dir)
	case ended: // out says why
		err = nil
	}
	return strings.ToValidUTF8(string(out), "�"), cut, err
}
