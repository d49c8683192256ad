package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// localFlags are the flags of forwarded commands that only this program knows.
var localFlags = map[string][]string{
	"python": {"images", "save-images"},
	"new":    {"clone", "base", "dirty", "include", "clone-dir"},
	"rm":     {"discard"},
}

// repositories are the commands and flags that use git repositories of this machine.
type repositories struct{ *cli }

// clones returns the records of the sandboxes that have a clone of a repository of this machine.
func (c repositories) clones() clone.Records {
	return clone.Records(filepath.Join(string(c.config.State), "clones"))
}

// coding returns a client for the coding agents and clones of this machine.
func (c repositories) coding() *coding.Client {
	return &coding.Client{
		Dial: func(ctx context.Context) (*agent.Gateway, error) {
			return c.dialGateway(ctx, false)
		},
		DialSandbox: func(ctx context.Context, name string) (*agent.Client, error) {
			return c.dial(ctx, name, false)
		},
		Remote: c.cloneURL, Clones: c.clones(), Own: ownAgents(),
		Note: func(line string) { fmt.Fprintf(os.Stderr, "note: %s\n", text.Line(line, 400)) }}
}

// cloning adds --clone to the command new.
func (c repositories) cloning(cmd *cobra.Command) {
	var o clone.Options
	var on bool
	f := cmd.Flags()
	f.BoolVar(&on, "clone", false,
		"copy the commits of the git repository of this directory into the sandbox, on branch NAME")
	f.StringVar(&o.Base, "base", "", "with --clone: commit to begin at (default HEAD)")
	f.BoolVar(&o.Dirty, "dirty", false,
		"with --clone: add a commit with the uncommitted changes of tracked files")
	f.StringArrayVar(&o.Include, "include", nil,
		"with --clone: untracked file to copy, too; repeatable")
	f.StringVar(&o.Dir, "clone-dir", "",
		"with --clone: directory in the sandbox (default: the path of the work tree)")
	cmd.Long += "\n\n--clone copies the commits of the git repository of this directory into the\n" +
		"sandbox, to the same path, on a branch with the name of the sandbox. sandboxd\n" +
		"fetch gets commits from there."
	cmd.Example += "\n  sandboxd new web --clone                  # with the commits of this repository"
	forwarded := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case on:
			return untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				return c.newClone(ctx, cmd, o, args, forwarded)
			})
		case o.Base+o.Dir != "" || o.Dirty || len(o.Include) > 0:
			return usage("new: --base, --dirty, --include and --clone-dir need --clone",
				"see: sandboxd new --help")
		}
		return forwarded(cmd, args)
	}
}

// cloned is what new --clone prints with --json: the object of new, and the clone.
type cloned struct {
	made  map[string]json.RawMessage
	clone *clone.Clone
}

// MarshalJSON returns one object.
func (n cloned) MarshalJSON() ([]byte, error) {
	all := make(map[string]any, len(n.made)+1)
	for name, value := range n.made {
		all[name] = value
	}
	all["clone"] = n.clone
	return json.Marshal(all)
}

// newClone creates a sandbox with forwarded, and clones the repository of the working directory
// into it. After an error, nothing is left of a sandbox that it created.
func (c repositories) newClone(ctx context.Context, cmd *cobra.Command, o clone.Options,
	args []string, forwarded func(*cobra.Command, []string) error) error {
	if flagSet(cmd, "rm") {
		return usage("new: --clone and --rm are mutually exclusive",
			"the sandbox would be removed before its commits are fetched")
	}
	onHost := cmd.Flags().Changed("host")
	names := namesOf(cmd, args)
	if onHost && len(names) == 0 {
		return usage("new: --clone with --host needs a name", "write: sandboxd new NAME --host …")
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("new: %w", err)
	}
	src, err := clone.Open(ctx, dir, o)
	if err != nil {
		return prefixed("new: --clone: ", err)
	}
	if err := c.localPaths(cmd); err != nil {
		return err
	}
	if !onHost && !cmd.Flags().Changed("workdir") {
		if err := cmd.Flags().Set("workdir", src.Dir); err != nil {
			return err
		}
	}
	control, err := c.dial(ctx, wire.ControlHost, startsDaemon(cmd))
	if err != nil {
		return err
	}
	defer control.Close()
	var before []agent.Sandbox // those that a failure does not remove
	if flagSet(cmd, "if-missing") {
		if before, err = c.sandboxes(ctx); err != nil {
			return err
		}
	}
	began, quiet := time.Now(), flagSet(cmd, "quiet") // create changes the flag
	made, err := c.create(ctx, cmd, control, args, onHost, forwarded)
	if err != nil {
		return err
	}
	info, fields, err := newInfo(made)
	if err != nil {
		return err
	}
	record, err := c.clonedBefore(src, info)
	existed := record != nil
	if err == nil && !existed {
		if isTerminal(os.Stderr) && !quiet && !c.json {
			fmt.Fprintf(os.Stderr, "cloning %s into %s\n", text.Line(src.Top, 200), info.Name)
		}
		record, err = c.copyInto(ctx, src, info)
	}
	if err != nil {
		err = prefixed("new: --clone: ", err)
		if slices.ContainsFunc(before, func(s agent.Sandbox) bool { return s.ID == info.ID }) {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if _, left := c.command(ctx, nil, "rm", "--force", "--", info.Name); left != nil {
			fmt.Fprintf(os.Stderr, "note: sandbox %s was not removed: %s\n", info.Name,
				text.Line(left.Error(), 200))
		}
		return err
	}
	switch {
	case c.json:
		return text.WriteJSON(os.Stdout, cloned{fields, record})
	case quiet:
		_, err = fmt.Println(info.Name)
		return err
	case !onHost:
		fmt.Printf("%s ready in %.2f s (%s, network %s)\n  %s\n", info.Name,
			time.Since(began).Seconds(),
			text.Line(lifecycle.Info{Image: info.Image}.ShortImage(), 100), info.Network,
			text.Line(info.SSHCommand, 400))
	}
	if existed {
		fmt.Printf("%s has a clone of %s already\n", info.Name, text.Line(record.Repository, 200))
		return nil
	}
	fmt.Printf("cloned %s at %.10s to branch %s%s\n  to get its commits: sandboxd fetch %s\n",
		text.Line(record.Repository, 200), record.Base, record.Branch, extras(record),
		info.Name)
	if record.Former != "" {
		fmt.Printf("note: what was fetched of another %s is now below %s\n", info.Name,
			record.Former)
	}
	return nil
}

// namesOf returns the names that a command received as arguments or by -n.
func namesOf(cmd *cobra.Command, args []string) []string {
	if f := cmd.Flags().Lookup("name"); f != nil && f.Changed {
		return append([]string{f.Value.String()}, args...)
	}
	return args
}

// extras says what a clone has besides commits of the repository.
func extras(r *clone.Clone) string {
	var all []string
	if r.Wip {
		all = append(all, "a commit of the uncommitted changes")
	}
	if n := len(r.Included); n > 0 {
		all = append(all, plural(n, "untracked file"))
	}
	if len(all) == 0 {
		return ""
	}
	return ", with " + strings.Join(all, " and ")
}

// plural returns n and thing, in the plural unless n is 1.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// create runs the command new on the daemon and returns the object of the sandbox.
func (c repositories) create(ctx context.Context, cmd *cobra.Command, control *agent.Client,
	args []string, onHost bool, forwarded func(*cobra.Command, []string) error) ([]byte, error) {
	if onHost && !c.json && !flagSet(cmd, "quiet") {
		// It may ask for a password on the terminal, and prints what it did.
		if err := forwarded(cmd, args); err != nil {
			return nil, err
		}
		return c.command(ctx, nil, "describe", "--json", "--", namesOf(cmd, args)[0])
	}
	progress := shownOn(os.Stderr)
	if drawsBars(cmd) {
		progress = newBars(os.Stderr)
	}
	defer progress.Close()
	quiet := flagSet(cmd, "quiet") || c.json && !flagSet(cmd, "progress")
	for name, value := range map[string]bool{"json": true, "quiet": false, "progress": !quiet} {
		if err := cmd.Flags().Set(name, fmt.Sprint(value)); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	said := &text.Head{Limit: 4 << 10}
	exit, err := control.Exec(ctx, agent.Cmd{Command: remoteLine(cmd, args), Stdout: &out,
		Stderr: io.MultiWriter(said, progress)})
	if err != nil {
		return nil, err
	}
	return out.Bytes(), agent.CommandError("new", exit.Code, out.Bytes(), said.String())
}

// newInfo decodes the object of a sandbox, and all its fields.
func newInfo(made []byte) (info agent.Sandbox, fields map[string]json.RawMessage, err error) {
	if err = json.Unmarshal(made, &info); err == nil {
		err = json.Unmarshal(made, &fields)
	}
	if err == nil {
		_, err = wire.ParseSandbox(info.Name)
	}
	if err != nil {
		err = fmt.Errorf("new: answer of the daemon: %w", err)
	}
	return info, fields, err
}

// clonedBefore returns the clone that a sandbox has already, nil if it has none. A clone of another
// repository or directory is an error.
func (c repositories) clonedBefore(src *clone.Source, info agent.Sandbox) (*clone.Clone, error) {
	had, err := c.clones().Find(info.ID)
	if err != nil || had == nil || had.Repository == src.Top && had.Dir == src.Dir {
		return had, err
	}
	return nil, &wire.Error{Code: wire.CodeExists,
		Message: fmt.Sprintf("sandbox %s has a clone of %s in %s", info.Name,
			text.Line(had.Repository, 200), text.Line(had.Dir, 200)),
		Hint: "a sandbox has one clone: use another sandbox"}
}

// copyInto copies a repository into a sandbox and records that.
func (c repositories) copyInto(ctx context.Context, src *clone.Source,
	info agent.Sandbox) (*clone.Clone, error) {
	client, err := c.dial(ctx, info.Name, false)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	record, err := src.Copy(ctx, info.Name, info.ID, client)
	if err != nil {
		return nil, err
	}
	return record, c.coding().Add(ctx, record)
}

// cloneURL returns the URL at which git reaches a clone over ssh(1).
func (c repositories) cloneURL(ctx context.Context, r *clone.Clone) (string, error) {
	host, _, err := c.reach(ctx, false)
	if err != nil {
		return "", err
	}
	if c.gateway == "" {
		if e, err := c.daemon(); err == nil && sshConfigIncluded(e) {
			host = sshConfigName
		}
	}
	u := url.URL{Scheme: "ssh", User: url.User(r.Sandbox), Host: host, Path: r.Dir}
	return u.String(), nil
}

// prefixed returns err with text before its message, and with the same code and hint.
func prefixed(before string, err error) error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		better := *e
		better.Message = before + strings.TrimSuffix(err.Error(), "; "+e.Hint)
		return &better
	}
	return errors.New(before + err.Error())
}

// untilInterrupt calls run with a context that ^C ends. Then the error is the exit code for that.
func untilInterrupt(ctx context.Context, run func(context.Context) error) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	err := run(ctx)
	if err != nil && ctx.Err() != nil {
		return exitCode(wire.ExitInterrupt)
	}
	return err
}
