package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An engine is remote if its containers cannot use files and sockets of the daemon: it runs on
// another machine, in a virtual machine such as Docker Desktop's, or beside the container in which
// the daemon runs. Its sandboxes get the guest from a volume of the engine, and the daemon reaches
// a guest through the engine, by a program in the container.

const (
	// guestAddress is where the guest of a remote engine listens: an abstract socket, which only
	// the network namespace of the container has.
	guestAddress = "unix:@sandboxd"
	// remoteGuest is the guest program, in a volume.
	remoteGuest = machine.GuestBin + "/guest"
)

// isRemote reports whether the engine is remote, or why an engine with a socket on this machine
// does not say so. It tries: an engine that sees a file of this machine, and has its kernel, is not
// remote. Docker's engine checks the mounts of a container before it looks for the image, so that
// it makes none here.
func (e *engine) isRemote(ctx context.Context, info system.Info, compatible bool) (remote bool,
	odd, err error) {
	release := kernelRelease()
	switch {
	case e.socket == "", release == "", info.KernelVersion != release:
		return true, nil, nil
	case compatible: // it checks mounts last
		return false, nil, nil
	}
	file, err := os.CreateTemp(e.dir, seenFile)
	if err != nil {
		return false, err, nil
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var made client.ContainerCreateResult
	err = e.call(ctx, e.limits.create, "ask engine", func(ctx context.Context) (err error) {
		made, err = e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Config: &container.Config{Image: "sandboxd/none:" + strings.ToLower(rand.Text())},
			HostConfig: &container.HostConfig{
				Mounts: []mount.Mount{readOnly(file.Name(), machine.GuestRun)}},
		})
		return err
	})
	switch {
	case cerrdefs.IsNotFound(err):
		return false, nil, nil
	case err == nil:
		odd = errors.New("ask engine: it made a container without an image")
		if made.ID != "" {
			odd = errors.Join(odd, e.remove(ctx, "", made.ID))
		}
		return false, odd, nil
	case strings.Contains(err.Error(), "source path does not exist"):
		return true, nil, nil
	case errors.Is(err, sandbox.ErrRefused):
		return false, err, nil
	}
	return false, nil, err
}

// seenFile are files that an engine is asked for, to see whether it has them.
const seenFile = ".seen-*"

// forgetSeen removes those of an earlier daemon that was killed.
func (e *engine) forgetSeen() {
	all, _ := filepath.Glob(filepath.Join(e.dir, seenFile)) // fails if the directory is a pattern
	for _, path := range all {
		os.Remove(path)
	}
}

// planRemote decides how a sandbox of a remote engine is made, and rejects what it cannot have.
func (p *plan) planRemote(f facts, spec sandbox.Spec) error {
	lacks := func(what, hint string) error {
		return sandbox.Hint(fmt.Errorf("%s: %w: the engine does not share files with the daemon", what,
			sandbox.ErrUnsupported), hint)
	}
	switch {
	case f.compatible:
		return lacks("an engine other than Docker's", "run the daemon on the engine's machine")
	case len(spec.Mounts) > 0:
		return lacks("mounted directories", "copy the files: sandboxd cp")
	}
	p.GuestVolume = guestVolume(p.GuestFile)
	p.RunDir, p.TrustDir = "", ""
	return nil
}

// remoteConfig is config for the guest of a remote engine: it listens, and writes the file with the
// certificate authorities itself. bundle is a file of this machine; empty means none.
func remoteConfig(config wire.GuestConfig, bundle string) (wire.GuestConfig, error) {
	config.Socket, config.Listen = "", []string{guestAddress}
	var err error
	if bundle != "" {
		config.Authorities, err = guestconfig.ReadBundle(bundle)
	}
	return config, err
}

// ca is the file in the sandbox with the certificate authorities; empty if it trusts its image's.
// bundle is that of this machine.
func (p plan) ca(bundle string) string {
	switch {
	case bundle == "":
		return ""
	case p.GuestVolume != "":
		return wire.AuthoritiesFile
	}
	return machine.GuestCA
}

// listens reports whether the guest of an instance listens: the engine is remote.
func (d stateDir) listens(id string) bool {
	k, err := d.ReadKeys(id)
	return err == nil && k.Listens()
}

// awaitAnswer logs in to the guest of a remote engine when it answers, and gives it the
// authorities. It returns guestsock.ErrGuestEnded if the container has ended.
func (s *booting) awaitAnswer(ctx context.Context, id string, k guestconfig.Keys) error {
	ctx, cancel := context.WithTimeoutCause(ctx, guestsock.GuestTimeout,
		fmt.Errorf("guest did not answer within %v", guestsock.GuestTimeout))
	defer cancel()
	authorities, err := s.b.state.authorities(id) // no call of Trust changes them meanwhile
	if err != nil {
		return err
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := s.b.instruct(ctx, s.ref, k, authorities)
		if err == nil || errors.Is(err, connect.ErrLogin) || errors.Is(err, connect.ErrIdentity) {
			return err
		}
		c, gone := s.b.engine.container(ctx, s.ref)
		switch {
		case errors.Is(gone, sandbox.ErrGone):
			return gone
		case gone == nil && !c.State.Running:
			return guestsock.ErrGuestEnded
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// instruct logs in to a guest of a remote engine, and replaces the certificate authorities besides
// this machine's; nil leaves them.
func (b *Backend) instruct(ctx context.Context, ref string, k guestconfig.Keys,
	authorities []byte) error {
	peer, err := k.Peer()
	if err != nil {
		return err
	}
	if peer.Conn, err = b.engine.relay(ctx, ref); err != nil {
		return err
	}
	conn, err := connect.SSH(ctx, peer)
	if err != nil {
		return err
	}
	defer conn.Client().Close()
	if authorities == nil {
		return nil
	}
	return conn.SetAuthorities(ctx, authorities)
}

// trustRemote is trust for a remote engine: the guest writes the file. It gets the authorities now
// if it runs, and at each start.
func (b *Backend) trustRemote(ctx context.Context, inst sandbox.Instance, k guestconfig.Keys,
	authorities []byte) error {
	if k.Guest.Authorities == "" {
		return sandbox.ErrUnsupported
	}
	unlock, err := b.instances.Lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.state.writeAuthorities(inst.ID, authorities); err != nil {
		return err
	}
	err = b.instruct(ctx, refOf(inst), k, append([]byte{}, authorities...))
	if err != nil {
		if _, now := b.engine.running(ctx, inst); errors.Is(now, sandbox.ErrStopped) {
			return nil
		} else if now != nil {
			return now
		}
	}
	if denied, ok := errors.AsType[*wire.Error](err); ok && denied.Code == wire.CodeDenied {
		return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
	}
	return err
}

// authorities returns those that a sandbox of a remote engine trusts besides this machine's; nil if
// none were ever set.
func (d stateDir) authorities(id string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(d.Dir(id), authoritiesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

const authoritiesFile = "authorities.pem"

func (d stateDir) writeAuthorities(id string, text []byte) error {
	return guestconfig.WriteFile(filepath.Join(d.Dir(id), authoritiesFile), text)
}
