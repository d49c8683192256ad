package docker

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

const (
	stepEvery = time.Second // between measurements of the files that a step writes
	// Until a step has its first process, whose terminals are then limited.
	stepSoon = 20 * time.Millisecond
	// Failed measurements in a row that end the build, because its limit cannot be enforced.
	stepTries = 3
)

// enforcer enforces limits on the steps of a build that the engine's builder does not support. The
// builder prints each container's ID before it starts it, and the engine accepts limits before and
// after the start.
//
// A step can imitate the builder's line. Then a container of this daemon's builds is limited twice.
// It cannot prevent that its own line comes first.
type enforcer struct {
	bd     *builder
	limits sandbox.Limits
	room   int64            // bytes of the engine's disk that stay free; 0: no limit
	base   map[string]int64 // sizes of the base images
	end    context.CancelCauseFunc
}

// errDiskFull begins the error of a build that exceeds the disk limit. The text is the name of this
// error everywhere.
var errDiskFull = errors.New("disk_full")

// running matches the builder's line before it starts a container.
var running = regexp.MustCompile(`^ ---> Running in ([0-9a-f]{12})$`)

// step enforces the limits on the container id until it is gone or ctx ends.
func (e *enforcer) step(ctx context.Context, id string) {
	c, err := e.bd.engine.container(ctx, id)
	if err == nil && !e.isStep(c) {
		return
	}
	if err == nil {
		err = e.bound(ctx, c.ID)
	}
	if err == nil {
		err = e.checkImage(ctx, c.Image)
	}
	if err == nil {
		err = e.watch(ctx, c)
	}
	if err != nil && !errors.Is(err, sandbox.ErrGone) && ctx.Err() == nil {
		e.end(err)
	}
}

// isStep separates steps from sandboxes, which inherit the label of a built image.
func (e *enforcer) isStep(c container.InspectResponse) bool {
	return c.Config.Labels[labelMade] == e.bd.engine.daemon && c.Config.Labels[labelID] == ""
}

// bound sets the limit of processes.
func (e *enforcer) bound(ctx context.Context, id string) error {
	pids := e.limits.PIDs
	err := e.bd.engine.call(ctx, e.bd.engine.limits.quick, "limit processes of a step",
		func(ctx context.Context) error {
			_, err := e.bd.engine.api.ContainerUpdate(ctx, id, client.ContainerUpdateOptions{
				Resources: &container.Resources{PidsLimit: &pids}})
			return err
		})
	if err == nil {
		return nil
	}
	// It may have ended meanwhile, which engines report in several ways. The runtime knows it
	// before Docker does.
	said := err.Error()
	if strings.Contains(said, "not running") || strings.Contains(said, "stopped container") {
		// Its state is checked afterwards.
		_ = e.bd.engine.waitEnded(ctx, id, e.bd.engine.limits.quick)
	}
	if c, gone := e.bd.engine.container(ctx, id); errors.Is(gone, sandbox.ErrGone) || gone == nil &&
		hasEnded(c.State) {
		return sandbox.ErrGone
	}
	return err
}

func hasEnded(s *container.State) bool {
	return s.Dead || s.Status == "removing" || s.Status == "exited"
}

// checkImage checks how much earlier steps added to the image that a step starts from.
func (e *enforcer) checkImage(ctx context.Context, image string) error {
	got, err := e.bd.engine.rawImage(ctx, image)
	if cerrdefs.IsNotFound(err) {
		return sandbox.ErrGone
	}
	if err != nil {
		return err
	}
	least := got.Size
	for _, size := range e.base { // the base is unknown: assume the largest possible
		if size <= got.Size {
			least = min(least, got.Size-size)
		}
	}
	if least > e.limits.Disk {
		return e.tooMuch("its steps wrote " + sandbox.FormatSize(least))
	}
	return nil
}

func (e *enforcer) tooMuch(what string) error {
	return sandbox.Hint(fmt.Errorf("%w: %s, and the disk limit is %s", errDiskFull, what,
		sandbox.FormatSize(e.limits.Disk)),
		"reduce what it writes, or raise the limit with --disk")
}

// watch measures the files that a step writes until it ends, and limits its terminals once it runs.
func (e *enforcer) watch(ctx context.Context, c container.InspectResponse) error {
	p := placesIn(c)
	timer := time.NewTimer(stepSoon)
	defer timer.Stop()
	for capped, missed := false, 0; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		now, err := e.bd.engine.container(ctx, c.ID)
		var used sandbox.DiskUsage
		if err == nil && now.State.Running {
			if !capped {
				capped = true
				if err := machine.CapTerminals(now.State.Pid); err != nil {
					e.bd.engine.log.Debug("no limit of terminals for a step", "container", c.ID,
						"err", err)
				}
			}
			used, err = e.bd.meter.measure(ctx, p, now.State.Pid,
				sandbox.DiskUsage{Bytes: e.limits.Disk, Files: sandbox.MaxFiles(e.limits.Disk)})
		}
		switch {
		case errors.Is(err, sandbox.ErrGone):
			return nil
		case err != nil:
			if missed++; missed == stepTries {
				return fmt.Errorf("measure files of a step: %w", err)
			}
			timer.Reset(stepEvery)
			continue
		case hasEnded(now.State):
			return nil
		case !now.State.Running:
			timer.Reset(stepSoon)
			continue
		case used.Bytes > e.limits.Disk:
			return e.tooMuch("a step wrote more")
		case used.Files > sandbox.MaxFiles(e.limits.Disk):
			return e.tooMuch(fmt.Sprintf("a step made more than %d files",
				sandbox.MaxFiles(e.limits.Disk)))
		}
		missed = 0
		timer.Reset(stepEvery)
	}
}

// watchRoom ends the build when the engine's disk has less free space than required. It also covers
// steps that copy, which have no container.
func (e *enforcer) watchRoom(ctx context.Context) {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	for e.room > 0 {
		if room, err := e.bd.meter.Room(ctx); err == nil && room < e.room {
			e.end(
				sandbox.Hint(fmt.Errorf("%w: %s of disk are free on this machine, and %s must stay free",
					errDiskFull, sandbox.FormatSize(room), sandbox.FormatSize(e.room)),
					"free disk space, for example with sandboxd rm or docker image prune"),
			)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
