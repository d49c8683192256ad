package clone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestCloneAndFetch(t *testing.T) {
	w := newWorld(t)
	w.write(".env", "SECRET=1\n")
	w.write("untracked", "stays\n")
	c := w.clone(Options{})
	if got := w.inside("git log --format='%an %s' && git symbolic-ref HEAD && ls -A"); got !=
		"Ann Example one\nrefs/heads/web\n.git\nREADME" {
		t.Errorf("in the sandbox: %q", got)
	}
	if got := w.inside("git config user.email"); got != "ann@example.com" {
		t.Errorf("user.email: %q", got)
	}
	f := w.fetch(c)
	if len(f.Refs) != 1 || f.Refs[0].Commits != 0 || f.Head != "refs/sandboxes/web/web" {
		t.Errorf("first fetch: %+v", f)
	}
	w.inside("echo two >>README; git commit -qam two; git checkout -q -b side; " +
		"git commit -q --allow-empty -m three; git checkout -q web")
	f = w.fetch(c)
	if len(f.Refs) != 2 || len(f.Lost) != 0 {
		t.Fatalf("fetch: %+v", f)
	}
	if got := w.git("log", "--format=%s", "sandboxes/web/side"); got != "three\ntwo\none" {
		t.Errorf("log: %q", got)
	}
	if f.Refs[1].Name != "refs/sandboxes/web/web" || f.Refs[1].Commits != 1 ||
		f.Refs[1].Before != c.Base {
		t.Errorf("ref: %+v", f.Refs[1])
	}
	if got := w.git("for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags",
		"refs/remotes"); got != "refs/heads/main" {
		t.Errorf("other refs: %q", got)
	}
	// a changed history is in the reflog
	w.inside("git commit -q --amend -m changed; git commit -q --allow-empty -m more")
	f = w.fetch(c)
	if side, web := f.Refs[0], f.Refs[1]; side.New != 0 || web.New != 2 || web.Commits != 2 {
		t.Errorf("new commits: %+v", f.Refs)
	}
	if got := w.git("log", "-g", "--format=%s", "refs/sandboxes/web/web"); got !=
		"more\ntwo\none" {
		t.Errorf("reflog: %q", got)
	}
	w.git("fsck", "--strict")
	left, err := filepath.Glob(filepath.Join(w.top, ".git", "objects", "tmp_*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// Over a real SSH connection, to a guest in this process.
func TestOverSSH(t *testing.T) {
	w := newWorld(t)
	w.write("large", strings.Repeat("0123456789abcdef", 1<<16))
	w.git("add", ".")
	w.git("commit", "-qm", "large")
	g := agenttest.New(t)
	client, err := g.Dial(t.Context(), agenttest.Box)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := Open(t.Context(), w.top, Options{Dir: w.dir})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Copy(t.Context(), agenttest.Box, "id1", client)
	if err != nil {
		t.Fatal(err)
	}
	w.inside("head -c 3000000 /dev/urandom >noise; git add .; git commit -qm noise; rm large")
	f, err := c.Fetch(t.Context(), client, MaxFetch)
	if err != nil || len(f.Refs) != 2 {
		t.Fatalf("%+v, %v", f, err)
	}
	w.inside("head -c 3000000 /dev/urandom >noise")
	if _, err := c.Fetch(t.Context(), client, 1<<20); err == nil ||
		!strings.Contains(err.Error(), "longer than 1 MiB") {
		t.Errorf("error: %v", err)
	}
}

func TestDirty(t *testing.T) {
	w := newWorld(t)
	w.write("README", "changed\n")
	w.write("staged", "new\n")
	w.git("add", "staged")
	w.write("untracked", "stays\n")
	before := w.state()
	c := w.clone(Options{Dirty: true})
	if w.state() != before {
		t.Error("the index, the stash or a branch has changed")
	}
	if got := w.inside("git log --format=%s; cat README; ls"); got !=
		"wip: uncommitted changes\none\nchanged\nREADME\nstaged" || !c.Wip {
		t.Errorf("in the sandbox: %q, %+v", got, c)
	}
	w = newWorld(t)
	if c := w.clone(Options{Dirty: true}); c.Wip || c.Base != w.git("rev-parse", "HEAD") {
		t.Errorf("nothing to commit: %+v", c)
	}
}

func TestInclude(t *testing.T) {
	w := newWorld(t)
	w.write(".env", "SECRET=1\n")
	w.write("a b/it's\nnew", "odd\n")
	if err := os.Chmod(filepath.Join(w.top, ".env"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := w.clone(Options{Include: []string{".env", "a b/it's\nnew", ".env"}})
	if got := w.inside("cat .env; cat 'a b'/*; stat -c %a .env"); got != "SECRET=1\nodd\n600" ||
		len(c.Included) != 2 {
		t.Errorf("in the sandbox: %q, %q", got, c.Included)
	}
	w = newWorld(t)
	w.write("[a] *b", "x\n")
	w.clone(Options{Include: []string{"[a] *b"}})
	if got := w.inside("git status --porcelain; cat '[a] *b'"); got != "x" {
		t.Errorf("git does not ignore the file: %q", got)
	}
}

// What is on no branch in the sandbox is fetched, too, and its work tree stays as it is.
func TestSaved(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("echo stashed >>README; git stash -q; git checkout -q --detach; " +
		"git commit -q --allow-empty -m detached; echo dirty >>README; echo new >'new\nfile'; " +
		"echo '*.o' >.git/info/exclude; touch a.o; git add README")
	before := w.inside("git status --porcelain; sha1sum .git/index")
	f := w.fetch(c)
	if after := w.inside("git status --porcelain; sha1sum .git/index"); after != before {
		t.Errorf("status in the sandbox: %q, then %q", before, after)
	}
	if f.Head != "" || len(f.Lost) != 0 {
		t.Errorf("fetch: %+v", f)
	}
	want := map[string]string{"wip": "wip: uncommitted changes", "detached-0": "detached",
		"stash-0": "WIP on web: "}
	for name, subject := range want {
		if got := w.git("log", "-1", "--format=%s",
			"sandboxd/saved/web/"+name); !strings.HasPrefix(got, subject) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := w.git("ls-tree", "-z", "--name-only", "sandboxd/saved/web/wip"); got !=
		"README\x00new\nfile\x00" {
		t.Errorf("wip: %q", got)
	}
	// an unchanged work tree gives the same commit
	if again := w.fetch(c); again.Refs[0] != (Ref{f.Refs[0].Name, f.Refs[0].Commit,
		f.Refs[0].Commit, f.Refs[0].Commits, 0}) {
		t.Errorf("again: %+v; first %+v", again.Refs, f.Refs)
	}
	w.inside("git checkout -q -f web; git stash drop -q; rm new*")
	if f := w.fetch(c); len(f.Refs) != 1 {
		t.Errorf("after the clean-up: %+v", f.Refs)
	}
	if got := w.git("for-each-ref", "refs/sandboxd/saved"); got != "" {
		t.Errorf("saved: %q", got)
	}
}

// What was fetched of an earlier sandbox of the name is set aside.
func TestSameName(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("git commit -q --allow-empty -m work; echo dirty >>README")
	w.fetch(c)
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	c = w.clone(Options{})
	if got := w.git("log", "-1", "--format=%s", c.Former+"/web"); got != "work" {
		t.Errorf("branch: %q", got)
	}
	saved := strings.Replace(c.Former, "sandboxes", "sandboxd/saved", 1) + "/wip:README"
	if got := w.git("show", saved); got != "one\ndirty" {
		t.Errorf("saved: %q", got)
	}
	if got := w.git("for-each-ref", "refs/sandboxes/web", "refs/sandboxd/saved/web"); got != "" {
		t.Errorf("refs: %q", got)
	}
}

// Repositories inside the clone are named: their commits are not fetched.
func TestNested(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("git init -q 'a b'; cd 'a b'; git -c user.name=a -c user.email=a commit -q " +
		"--allow-empty -m one; cd ..; echo new >new")
	f := w.fetch(c)
	if diff := cmp.Diff([]string{"a b"}, f.Skipped); diff != "" || len(f.Lost) != 0 ||
		len(f.Refs) != 2 {
		t.Errorf("%+v", f)
	}
	w.inside("git add .; git commit -qm nested; git init -q empty; echo x >empty/file")
	if f := w.fetch(c); len(f.Skipped) != 1 || len(f.Lost) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestSHA256(t *testing.T) {
	w := newWorld(t)
	w.top += "-256"
	if out, err := exec.Command("git", "init", "-q", "--object-format=sha256",
		w.top).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.repo = repository{w.top}
	w.git("-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-m", "one")
	c := w.clone(Options{})
	w.inside("git -c user.name=a -c user.email=a commit -q --allow-empty -m two")
	if w.fetch(c); len(c.Base) != 64 {
		t.Errorf("base: %s", c.Base)
	}
	if got := w.git("log", "--format=%s", "sandboxes/web/web"); got != "two\none" {
		t.Errorf("log: %q", got)
	}
}

// A partial clone fetches what it lacks from its own remote while it is cloned.
func TestPartialClone(t *testing.T) {
	w := newWorld(t)
	w.write("README", "two\n")
	w.git("commit", "-qam", "two")
	w.git("config", "uploadpack.allowFilter", "true")
	whole := w.top
	w.top += "-partial"
	if out, err := exec.Command("git", "clone", "-q", "--filter=blob:none", "file://"+whole,
		w.top).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.repo = repository{w.top}
	c := w.clone(Options{})
	if got := w.inside("git show HEAD~:README; cat README"); got != "one\ntwo" {
		t.Errorf("in the sandbox: %q", got)
	}
	w.inside("echo three >>README; git -c user.name=a -c user.email=a commit -qam three")
	w.fetch(c)
	if got := w.git("show", "sandboxes/web/web:README"); got != "two\nthree" {
		t.Errorf("README: %q", got)
	}
}

func TestDiff(t *testing.T) {
	w := newWorld(t)
	odd := "odd\n\"\x1b[31m name"
	w.write(odd, strings.Repeat("line\n", 20))
	w.git("add", ".")
	w.git("commit", "-qm", "odd")
	c := w.clone(Options{})
	w.inside("git mv odd* 'to b'; printf 'x\\0y' >binary; echo two >>README; git add .; " +
		"git commit -qm work; git checkout -q -b side HEAD~; git rm -q README; git commit -qm side")
	w.fetch(c)
	d, err := NewDiff(t.Context(), w.top, "web", "", false)
	if err != nil {
		t.Fatal(err)
	}
	want := []File{{Path: "README", Added: 1}, {Path: "binary", Binary: true},
		{Path: "to b", From: odd}}
	if diff := cmp.Diff(want, d.Files); diff != "" {
		t.Error(diff)
	}
	if d, err = NewDiff(t.Context(), w.top, "web", "side", false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]File{{Path: "README", Deleted: 1}}, d.Files); diff != "" {
		t.Error(diff)
	}
	for _, branch := range []string{"nope", "../web/web", "--output=x", "a b", "-x"} {
		if d, err := NewDiff(t.Context(), w.top, "web", branch, false); err == nil {
			t.Errorf("%q: %+v", branch, d)
		}
	}
	if _, err := NewDiff(t.Context(), w.top, "other", "", false); err == nil ||
		!strings.Contains(err.Error(), "was not cloned into sandbox other") {
		t.Errorf("error: %v", err)
	}
}

func TestShallow(t *testing.T) {
	w := newWorld(t)
	w.write("README", "two\n")
	w.git("commit", "-qam", "two")
	deep := w.top
	w.top += "-shallow"
	if out, err := exec.Command("git", "clone", "-q", "--depth=1", "file://"+deep,
		w.top).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.repo = repository{w.top}
	c := w.clone(Options{})
	w.inside("git -c user.name=a -c user.email=a commit -q --allow-empty -m three")
	w.fetch(c)
	if got := w.git("log", "--format=%s", "sandboxes/web/web"); got != "three\ntwo" {
		t.Errorf("log: %q", got)
	}
}

// What cannot be cloned is an error before anything is made.
func TestOpenRejects(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(w *world)
		o    Options
		want string
	}{
		{"no repository", func(w *world) { w.top = filepath.Dir(w.top) }, Options{}, "is in no git repository"},
		{"no commit", func(w *world) {
			w.top += "2"
			exec.Command("git", "init", "-q", w.top).Run()
		}, Options{}, "has no commit yet"},
		{"bare", func(w *world) {
			w.git("clone", "-q", "--bare", ".", "../bare")
			w.top = filepath.Join(w.top, "../bare")
		}, Options{}, "is a bare repository"},
		{"inside .git", func(w *world) { w.top += "/.git" }, Options{}, "not in the work tree"},
		{"unknown base", func(*world) {}, Options{Base: "nope"}, `base "nope": not a commit`},
		{"base is an option", func(*world) {}, Options{Base: "--all"}, `base "--all": not a commit`},
		{"base is a tree", func(*world) {}, Options{Base: "HEAD^{tree}"}, `not a commit`},
		{"submodule", func(w *world) {
			addSubmodule(w)
			w.git("commit", "-qm", "sub")
		}, Options{}, "has submodules, which clones do not support: sub"},
		{"staged submodule", func(w *world) {
			addSubmodule(w)
			os.Mkdir(filepath.Join(w.top, "sub"), 0o755)
		}, Options{Dirty: true}, "has submodules, which clones do not support: sub"},
		{"LFS", func(w *world) {
			w.write("a/.gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
			w.write("a/x.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
			w.git("add", ".")
			w.git("-c", "filter.lfs.clean=cat", "-c", "filter.lfs.required=false", "commit",
				"-qm", "lfs")
		}, Options{}, "has files of Git LFS, which clones do not support: a/x.bin"},
		{"base with --dirty", func(w *world) {
			w.git("commit", "-q", "--allow-empty", "-m", "two")
		}, Options{Base: "HEAD~", Dirty: true}, "--dirty: the uncommitted changes are of HEAD"},
		{"tracked include", func(*world) {}, Options{Include: []string{"README"}}, "README: is tracked"},
		{"missing include", func(*world) {}, Options{Include: []string{"nope"}}, "no such file"},
		{"include of a directory", func(w *world) { w.write("d/f", "") }, Options{Include: []string{"d"}}, "is a directory"},
		{"include outside", func(*world) {}, Options{Include: []string{"../home"}}, "not in /"},
		{"include of the repository", func(*world) {}, Options{Include: []string{".git/config"}}, "part of the repository"},
		{"include of a link", func(w *world) {
			os.Symlink("/etc/passwd", filepath.Join(w.top, "link"))
		}, Options{Include: []string{"link"}}, "not a regular file"},
		{"include by a linked directory", func(w *world) {
			os.Symlink("/etc", filepath.Join(w.top, "link"))
		}, Options{Include: []string{"link/passwd"}}, "not in /"},
		{"relative directory", func(*world) {}, Options{Dir: "srv"}, "not a clean absolute path"},
		{"root directory", func(*world) {}, Options{Dir: "/"}, "not a clean absolute path"},
		{"directory in memory", func(*world) {}, Options{Dir: "/dev/shm/x"}, "are lost when the sandbox stops"},
		{"directory that is not UTF-8", func(*world) {}, Options{Dir: "/srv/\xff"}, "not UTF-8"},
		{"path that is not UTF-8", func(w *world) {
			odd := w.top + "\xff"
			if err := os.Rename(w.top, odd); err != nil {
				w.t.Fatal(err)
			}
			w.top = odd
		}, Options{Dir: "/srv/x"}, "not UTF-8"},
		{"directory with an escape", func(*world) {}, Options{Dir: "/srv/\x1b[2J"}, "has control characters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.make(w)
			_, err := Open(t.Context(), w.top, c.o)
			e, ok := errors.AsType[*wire.Error](err)
			if !ok || e.Code != wire.CodeUsage || !strings.Contains(e.Message, c.want) ||
				e.Hint == "" || strings.Contains(e.Message, "\x1b") {
				t.Errorf("error %v; want %q", err, c.want)
			}
		})
	}
}

// A remote is added although another program changes the configuration of git.
func TestAddRemoteWaits(t *testing.T) {
	w := newWorld(t)
	lock := filepath.Join(w.top, ".git", "config.lock")
	w.write(".git/config.lock", "")
	time.AfterFunc(200*time.Millisecond, func() { os.Remove(lock) })
	c := &Clone{Sandbox: "web", Repository: w.top}
	if err := c.AddRemote(t.Context(), "ssh://web@localhost/srv"); err != nil {
		t.Fatal(err)
	}
	w.write(".git/config.lock", "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.AddRemote(ctx, "ssh://web@localhost/srv"); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// addSubmodule adds a submodule to the index.
func addSubmodule(w *world) {
	w.t.Helper()
	w.git("update-index", "--add", "--cacheinfo", "160000,"+w.git("rev-parse", "HEAD")+",sub")
}

func TestDetachedHead(t *testing.T) {
	w := newWorld(t)
	w.git("checkout", "-q", "--detach")
	w.git("commit", "-q", "--allow-empty", "-m", "two")
	w.clone(Options{})
	if got := w.inside("git log --format=%s; git symbolic-ref HEAD"); got !=
		"two\none\nrefs/heads/web" {
		t.Errorf("in the sandbox: %q", got)
	}
}

// The clone of a linked work tree is a repository of its own.
func TestWorktree(t *testing.T) {
	w := newWorld(t)
	w.git("worktree", "add", "-q", "-b", "linked", "../linked")
	w.top = filepath.Join(filepath.Dir(w.top), "linked")
	w.write("README", "changed\n")
	c := w.clone(Options{Dirty: true})
	w.inside("git commit -q --allow-empty -m two")
	w.fetch(c)
	if got := w.git("log", "--format=%s", "sandboxes/web/web"); got !=
		"two\nwip: uncommitted changes\none" {
		t.Errorf("log: %q", got)
	}
}

// The sandbox is unusable for a clone: the error names what to do.
func TestCopyRejects(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(w *world)
		want string
	}{
		{"occupied", func(w *world) {
			os.MkdirAll(w.dir, 0o755)
			os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o644)
		}, "is not empty"},
		{"not a directory", func(w *world) { os.WriteFile(w.dir, nil, 0o644) }, "File exists"},
		{"cannot be made", func(w *world) { w.dir = "/proc/nope/project" }, "directory /proc/nope/project: mkdir: cannot create directory"},
		{"no git", func(w *world) {
			program(w, "git", "exit 1")
			program(w, "command", "")
			os.Remove(filepath.Join(w.box.path, "git"))
			for _, name := range []string{"sh", "env"} {
				path, _ := exec.LookPath(name)
				os.Symlink(path, filepath.Join(w.box.path, name))
			}
			w.t.Setenv("PATH", w.box.path)
		}, "git is not installed"},
		{"another commit", func(w *world) {
			program(w, "git", `case "$*" in *rev-parse*) echo 0;; *) exec /usr/bin/git "$@";; esac`)
		}, "checked out another commit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			s, err := Open(t.Context(), w.top, Options{Dir: "/srv/x"})
			if err != nil {
				t.Fatal(err)
			}
			c.make(w)
			s.Dir = w.dir
			_, err = s.Copy(t.Context(), "web", "id1", w.box)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "sandbox web") {
				t.Errorf("error %v; want %q", err, c.want)
			}
		})
	}
}

// Callers that add and remove clones of one repository at once wait for git's lock.
func TestRecordsAtOnce(t *testing.T) {
	w := newWorld(t)
	records := Records(t.TempDir())
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			name := fmt.Sprintf("web-%d", i)
			c := &Clone{Sandbox: name, ID: name, Repository: w.top, Group: "web"}
			for range 3 {
				if err := c.AddRemote(t.Context(), "ssh://"+name); err != nil {
					t.Error(err)
				}
				if err := records.Add(c); err != nil {
					t.Error(err)
				}
				if err := records.Remove(t.Context(), c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := w.git("config", "--list", "--local"); strings.Contains(left, "sandbox-web") ||
		records.Any() {
		t.Errorf("left: %s, records: %v", left, records.Any())
	}
}

// alone is a sandbox that only one fetch may use at a time.
type alone struct {
	Sandbox
	t    *testing.T
	used *atomic.Int32
}

func (a alone) Exec(ctx context.Context, c agent.Cmd) (agent.Exit, error) {
	if a.used.Add(1) > 1 {
		a.t.Error("two fetches at once")
	}
	defer a.used.Add(-1)
	return a.Sandbox.Exec(ctx, c)
}

// Fetches by several programs at once take turns: each reports all that is saved.
func TestFetchesAtOnce(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("echo two >README; git stash -q; echo three >README")
	records := Records(filepath.Join(t.TempDir(), "clones"))
	if err := records.Add(c); err != nil {
		t.Fatal(err)
	}
	box := alone{w.box, t, new(atomic.Int32)}
	var fetches sync.WaitGroup
	for range 8 {
		fetches.Go(func() {
			f, err := records.Fetch(t.Context(), c, box, MaxFetch)
			if err != nil || len(f.Refs) != 3 || len(f.Lost) > 0 {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	fetches.Wait()
	unlock, err := records.lock(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := records.Fetch(ctx, c, w.box, MaxFetch); !errors.Is(err, context.Canceled) {
		t.Errorf("while another one fetches: %v", err)
	}
}
