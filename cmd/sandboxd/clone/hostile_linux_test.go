package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// failing fetches a clone and returns the error, which must have none of a terminal's escapes. No
// ref and no object of the repository may change.
func (w *world) failing(c *Clone, most int64) string {
	w.t.Helper()
	refs, objects := w.git("for-each-ref"), w.git("count-objects", "-v")
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	f, err := c.Fetch(ctx, w.box, most)
	if err == nil {
		w.t.Fatalf("no error: %+v", f)
	}
	if ctx.Err() != nil {
		w.t.Errorf("the fetch does not end by itself: %v", err)
	}
	if strings.ContainsAny(err.Error(), "\x1b\x07\r\n") || len(err.Error()) > 2000 {
		w.t.Errorf("error %q", err)
	}
	if now := w.git("for-each-ref"); now != refs {
		w.t.Errorf("refs changed: %s", now)
	}
	if now := w.git("count-objects", "-v"); now != objects {
		w.t.Errorf("objects changed: %s\nbefore: %s", now, objects)
	}
	left, globErr := filepath.Glob(filepath.Join(w.top, ".git", "objects", "tmp_*"))
	if globErr != nil || len(left) > 0 {
		w.t.Errorf("left behind: %q, %v", left, globErr)
	}
	return err.Error()
}

// No program that a repository or its configuration names runs on this machine. In this test the
// sandbox is on the same machine, and has another home.
func TestNothingRunsHere(t *testing.T) {
	w := newWorld(t)
	canary := filepath.Join(t.TempDir(), "canary")
	bomb := filepath.Join(t.TempDir(), "bomb")
	if err := os.WriteFile(bomb, []byte("#!/bin/sh\necho \"$HOME $0\" >>"+canary+"\nexit 1\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	arm := func(git func(string)) {
		for _, hook := range []string{"reference-transaction", "post-checkout", "post-index-change",
			"pre-push", "update", "pre-receive", "post-update", "push-to-checkout", "pre-auto-gc",
			"fsmonitor-watchman", "proc-receive"} {
			git("mkdir -p .git/hooks; cp " + bomb + " .git/hooks/" + hook)
		}
		for _, key := range []string{"core.fsmonitor", "core.sshCommand", "core.pager",
			"core.editor", "core.alternateRefsCommand", "uploadpack.packObjectsHook",
			"diff.external", "diff.bomb.command", "diff.bomb.textconv", "filter.bomb.smudge",
			"filter.bomb.clean", "merge.bomb.driver", "gpg.program", "credential.helper",
			"core.gitProxy", "core.askPass"} {
			git("git config " + key + " " + bomb)
		}
	}
	host := func(command string) {
		t.Helper()
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = w.top
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	arm(host)
	c := w.clone(Options{})
	w.inside("echo '* diff=bomb filter=bomb merge=bomb' >.gitattributes; echo two >>README; " +
		"git add .; git commit -qm two; echo three >>README")
	arm(func(command string) { w.inside(command) })
	w.fetch(c)
	var out bytes.Buffer
	for _, wip := range []bool{false, true} {
		d, err := NewDiff(t.Context(), w.top, "web", "", wip)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Write(t.Context(), &out, wip); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); !strings.Contains(got, "+two") ||
		!strings.Contains(got, "2 files changed") {
		t.Errorf("diff: %q", got)
	}
	ran, err := os.ReadFile(canary)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(ran)) {
		if !strings.HasPrefix(line, w.box.home+" ") {
			t.Errorf("ran on this machine: %s", line)
		}
	}
}

// git on this machine rejects objects that are dangerous to check out, whatever the user's
// configuration allows.
func TestMaliciousObjects(t *testing.T) {
	const blob = `blob=$(echo x | git hash-object -w --stdin); `
	for name, tree := range map[string]string{
		"dotdot":     blob + `tree=$(printf "100644 ..\0$(printf %s $blob | sed 's/../\\x&/g')" >t; git hash-object -t tree -w --literally t)`,
		"dotgit":     blob + `tree=$(printf "100644 .git\0$(printf %s $blob | sed 's/../\\x&/g')" >t; git hash-object -t tree -w --literally t)`,
		"DotGIT":     blob + `tree=$(printf "100644 .GiT\0$(printf %s $blob | sed 's/../\\x&/g')" >t; git hash-object -t tree -w --literally t)`,
		"slash":      blob + `tree=$(printf "100644 a/b\0$(printf %s $blob | sed 's/../\\x&/g')" >t; git hash-object -t tree -w --literally t)`,
		"gitmodules": `blob=$(printf '[submodule "a"]\n\tpath = a\n\turl = -u./payload\n' | git hash-object -w --stdin); tree=$(printf "100644 blob $blob\t.gitmodules\n" | git mktree)`,
		"name":       `blob=$(printf '[submodule "../../x"]\n\tpath = a\n\turl = https://x\n' | git hash-object -w --stdin); tree=$(printf "100644 blob $blob\t.gitmodules\n" | git mktree)`,
		"update":     `blob=$(printf '[submodule "x"]\n\tpath = a\n\turl = https://x\n\tupdate = !touch x\n' | git hash-object -w --stdin); tree=$(printf "100644 blob $blob\t.gitmodules\n" | git mktree)`,
		"symlink":    blob + `tree=$(printf "120000 blob $blob\t.gitmodules\n" | git mktree)`,
		"commit":     `tree=$(git mktree </dev/null); printf "tree $tree\nauthor a\n\nx" >t; forged=$(git hash-object -t commit -w --literally t)`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.git("config", "transfer.fsckObjects", "false")
			for _, id := range []string{"hasDotdot", "hasDotgit", "fullPathname", "gitmodulesUrl",
				"gitmodulesName", "gitmodulesUpdate", "gitmodulesSymlink"} {
				w.git("config", "fetch.fsck."+id, "ignore")
			}
			c := w.clone(Options{})
			// bash, because printf of dash has no \x
			script := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(script, []byte("set -e\nforged=\n"+tree+
				"\n[ -n \"$forged\" ] || forged=$(git commit-tree $tree -p HEAD -m evil)\n"+
				"rm -f t; git update-ref refs/heads/evil $forged\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			w.inside("bash " + script)
			if got := w.failing(c, MaxFetch); !strings.Contains(got, "fsck error") {
				t.Errorf("error: %s", got)
			}
		})
	}
}

// A list of refs that would leave the namespace of the sandbox, or the terminal in another state,
// is an error.
func TestMaliciousRefs(t *testing.T) {
	const object = "0123456789012345678901234567890123456789"
	w := newWorld(t)
	c := w.clone(Options{})
	data := filepath.Join(t.TempDir(), "list")
	program(w, "git", `case "$*" in
		*for-each-ref*format=ref*) cat `+data+`;;
		*) exec /usr/bin/git "$@";; esac`)
	for _, list := range []string{
		"ref " + object + " refs/heads/../../heads/main",
		"ref " + object + " refs/heads/..",
		"ref " + object + " refs/heads/",
		"ref " + object + " refs/heads/x.lock",
		"ref " + object + " refs/heads/.x",
		"ref " + object + " refs/heads/a//b",
		"ref " + object + " refs/heads/a:refs/heads/main",
		"ref " + object + " refs/heads/*",
		"ref " + object + " refs/heads/a b",
		"ref " + object + " refs/heads/\x1b[31m",
		"ref " + object + " refs/heads/" + strings.Repeat("a", 300),
		"ref " + object + " refs/heads/@{x",
		"ref " + object + " refs/tags/v1",
		"ref " + object + " refs/sandboxd/base/web",
		"ref " + object + " HEAD",
		"ref " + object + " --upload-pack=x",
		"ref " + object,
		"ref -x refs/heads/x",
		"ref " + object[1:] + " refs/heads/x",
		"ref " + strings.ToUpper("a"+object[1:]) + " refs/heads/x",
		"\x1b]0;title\x07",
		strings.Repeat("ref "+object+" refs/heads/x\n", 40000),
	} {
		if err := os.WriteFile(data, []byte(list+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := w.failing(c, MaxFetch); !strings.Contains(got, "ref") &&
			!strings.Contains(got, "longer than 1 MiB") {
			t.Errorf("%.60q: error %s", list, got)
		}
	}
}

// A git that sends without an end, or nothing, or escape sequences, ends with an error.
func TestMaliciousGit(t *testing.T) {
	for _, c := range []struct{ name, program, want string }{
		{"endless refs", `*for-each-ref*format=ref*) yes "ref 0123456789012345678901234567890123456789 refs/heads/x";;`,
			"answer of the sandbox: longer than 1 MiB"},
		{"endless messages", `*for-each-ref*format=ref*) yes message >&2;;`, "messages of the sandbox: longer than 1 MiB"},
		{"endless greeting", `*upload-pack*) while :; do printf '000eversion 2\n0011agent=x12345\n'; done;;`,
			"list of refs that is too long"},
		{"endless refs of the old protocol", `*upload-pack*) while :; do
			printf '00400123456789012345678901234567890123456789 refs/heads/abcdefg\n'; done;;`,
			"list of refs that is too long"},
		{"endless pack", `*upload-pack*) printf '000eversion 2\n0012fetch=shallow\n0000'; head -c 1 >/dev/null;
			printf '0014acknowledgments\n000aready\n0001000dpackfile\n'; while :; do printf '0009\002abc\n'; done;;`,
			"answer of git in the sandbox: longer than 1 MiB"},
		{"escape sequences", `*upload-pack*) printf '\033[2J\033]0;pwned\007fatal: \033[31mred\n' >&2; exit 1;;`, "git in the sandbox:"},
		{"escape sequences in the protocol", `*upload-pack*) printf '000eversion 2\n0012fetch=shallow\n0000'; head -c 1 >/dev/null
			printf '0014acknowledgments\n000aready\n0001000dpackfile\n'; printf '0012\003\033[31mred\033[2J\n'; cat >/dev/null;;`, "red"},
		{"escape sequences of the script", `*show-cdup*) printf '\033[31mfatal: red\n' >&2; exit 1;;`, "not the top of a git repository"},
		{"closes", `*upload-pack*) exit 0;;`, "git fetch"},
		{"no pack", `*upload-pack*) printf '000eversion 2\n0012fetch=shallow\n0000'; head -c 1 >/dev/null;
			printf '0014acknowledgments\n000aready\n0001000dpackfile\n'; printf '0000'; cat >/dev/null;;`, "git fetch"},
		{"objects that it has not", `*for-each-ref*format=ref*)
			echo "ref 0123456789012345678901234567890123456789 refs/heads/x";;`, "git fetch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			made := w.clone(Options{})
			w.inside("git commit -q --allow-empty -m two")
			program(w, "git", `case "$*" in `+c.program+` *) exec /usr/bin/git "$@";; esac`)
			if got := w.failing(made, 1<<20); !strings.Contains(got, c.want) {
				t.Errorf("error %q; want %q", got, c.want)
			}
		})
	}
}

// A git that receives the clone can do no more than fail.
func TestMaliciousReceiver(t *testing.T) {
	for _, c := range []struct{ name, program, want string }{
		{"endless messages", `receive-pack*) yes message >&2;;`, "longer than 1 MiB"},
		{"endless refs", `receive-pack*) while :; do
			printf '00400123456789012345678901234567890123456789 refs/heads/abcdefg\n'; done;;`,
			"list of refs that is too long"},
		{"escape sequences", `receive-pack*) printf '\033[2J\033]0;pwned\007\n' >&2; exit 1;;`,
			"git push"},
		{"escape sequences of a script", `init*) printf '\033[2Jfatal: red\r\n' >&2; exit 1;;`, "red"},
		{"endless answer", `*rev-parse*) yes;;`, "longer than 1 MiB"},
		{"nothing", `receive-pack*) ;;`, "git push"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			program(w, "git", `case "$*" in `+c.program+` *) exec /usr/bin/git "$@";; esac`)
			s, err := Open(t.Context(), w.top, Options{Dir: w.dir})
			if err != nil {
				t.Fatal(err)
			}
			refs := w.git("for-each-ref")
			_, err = s.Copy(t.Context(), "web", "id1", w.box)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.ContainsAny(err.Error(), "\x1b\x07\r\n") {
				t.Errorf("error %q; want %q", err, c.want)
			}
			if now := w.git("for-each-ref"); now != refs {
				t.Errorf("refs changed: %s", now)
			}
		})
	}
}

// A git that never answers is ended with the call.
func TestSilentGit(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("git commit -q --allow-empty -m two")
	program(w, "git", `case "$*" in *upload-pack*) exec sleep 1000;; *) exec /usr/bin/git "$@";; esac`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	if _, err := c.Fetch(ctx, w.box, MaxFetch); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error: %v", err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
}

// The sandbox learns of no commit that it has not had.
func TestNoOtherCommits(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.git("checkout", "-q", "-b", "secret")
	w.git("commit", "-q", "--allow-empty", "-m", "secret")
	secret := w.git("rev-parse", "HEAD")
	w.inside("git commit -q --allow-empty -m two")
	w.box.seen = new(bytes.Buffer)
	w.fetch(c)
	if seen := w.box.seen.String(); !strings.Contains(seen, "have "+c.Base) ||
		strings.Contains(seen, secret) {
		t.Errorf("sent: %q", seen)
	}
}

// Branches may have any name that git allows, and are only names.
func TestOddBranches(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	names := []string{"ü/é", `a"b`, "$(touch pwned)", ";x", "@", "a'b", "-x", "HEAD", "web/../x",
		"\u202ex", "feature/one"}
	valid := 0
	for _, name := range names {
		file := filepath.Join(t.TempDir(), "name")
		if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := w.inside(fmt.Sprintf(
			`git update-ref "refs/heads/$(cat %s)" HEAD 2>/dev/null && echo valid || echo no`,
			file)); got == "valid" {
			valid++
		}
	}
	f := w.fetch(c)
	if len(f.Refs) != valid+1 || valid < 8 {
		t.Errorf("%d refs of %d valid names: %+v", len(f.Refs), valid, f.Refs)
	}
	if got := w.git("status", "--porcelain"); got != "" {
		t.Errorf("status: %s", got)
	}
}

// The path of the repository has what git treats specially in lists and URLs.
func TestOddPath(t *testing.T) {
	w := newWorld(t)
	odd := filepath.Join(filepath.Dir(w.top), `a:b "c" %41 'd' $x`)
	if err := os.Rename(w.top, odd); err != nil {
		t.Fatal(err)
	}
	w.top, w.dir = odd, filepath.Join(filepath.Dir(w.dir), filepath.Base(odd))
	w.repo = repository{w.top}
	s, err := Open(t.Context(), w.top, Options{Dir: w.dir})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Copy(t.Context(), "web", "id1", w.box)
	if err != nil {
		t.Fatal(err)
	}
	box := w.box
	box.home = w.dir
	if out, _, exit, err := script(t.Context(), box, nil, `cd "$1"; git commit -q --allow-empty -m two`,
		w.dir); err != nil || exit != 0 {
		t.Fatalf("%s, %d, %v", out, exit, err)
	}
	w.fetch(c)
	if got := w.git("log", "--format=%s", "sandboxes/web/web"); got != "two\none" {
		t.Errorf("log: %q", got)
	}
}

// The repository in the sandbox is gone, or is another one.
func TestNoRepositoryAnyMore(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("rm -rf .git")
	if got := w.failing(c, MaxFetch); !strings.Contains(got, "is not the top of a git repository") {
		t.Errorf("error: %s", got)
	}
	w.inside("git init -q; git -c user.name=a -c user.email=a commit -q --allow-empty -m new")
	if f := w.fetch(c); f.Head == "" || w.git("log", "-1", "--format=%s", f.Head) != "new" {
		t.Errorf("fetch: %+v", f)
	}
	if err := os.RemoveAll(w.top); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(t.Context(), w.box, MaxFetch); err == nil ||
		!strings.Contains(err.Error(), "repository "+w.top) {
		t.Errorf("error: %v", err)
	}
}

// A branch without its history is no branch that a sandbox may be removed for.
func TestShallowInside(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("git commit -q --allow-empty -m two; git commit -q --allow-empty -m three; " +
		"git rev-parse HEAD >.git/shallow")
	before := w.git("for-each-ref")
	if got := w.failing(c, MaxFetch); !strings.Contains(got, "not complete") {
		t.Errorf("error %q", got)
	}
	if after := w.git("for-each-ref"); after != before {
		t.Errorf("refs: %q, then %q", before, after)
	}
	w.inside("rm .git/shallow")
	if f := w.fetch(c); f.Refs[0].New != 2 {
		t.Errorf("%+v", f)
	}
}
