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
)

const (
	stepEvery = time.Second           // between looks at what a step has written
	stepSoon  = 20 * time.Millisecond // until there is its first process, whose terminals have a limit
	stepTries = 3                     // failed looks in a row that end the build: its limit would not hold
)

// holding enforces limits that the engine's builder does not know on the steps of a build. The
// builder prints each container's ID before it starts it, and the engine accepts limits before and
// after the start.
//
// A step can print an imitation of the builder's line: then a container of this daemon's builds is
// held twice. It cannot prevent that its own line comes first.
type holding struct {
	bd     *builder
	limits sandbox.Limits
	room   int64            // bytes of the engine's disk that stay free; 0 is none
	base   map[string]int64 // sizes of the images that it began with
	end    context.CancelCauseFunc
}

// errDiskFull begins the error of a build that had too much disk, by the name that this limit has
// everywhere.
var errDiskFull = errors.New("disk_full")

// running matches the builder's line about a container that it is about to start.
var running = regexp.MustCompile(`^ ---> Running in ([0-9a-f]{12})$`)

// step enforces the limits on the container id until it is gone or ctx ends.
func (h *holding) step(ctx context.Context, id string) {
	c, err := h.bd.engine.container(ctx, id)
	if err == nil && !h.isStep(c) {
		return
	}
	if err == nil {
		err = h.bound(ctx, c.ID)
	}
	if err == nil {
		err = h.weigh(ctx, c.Image)
	}
	if err == nil {
		err = h.watch(ctx, c)
	}
	if err != nil && !errors.Is(err, sandbox.ErrGone) && ctx.Err() == nil {
		h.end(err)
	}
}

// isStep tells steps from sandboxes, which inherit the label of a built image.
func (h *holding) isStep(c container.InspectResponse) bool {
	return c.Config.Labels[labelMade] == h.bd.engine.daemon && c.Config.Labels[labelID] == ""
}

// bound sets the limit of processes.
func (h *holding) bound(ctx context.Context, id string) error {
	pids := h.limits.PIDs
	err := h.bd.engine.call(ctx, h.bd.engine.limits.quick, "limit processes of a step", func(ctx context.Context) error {
		_, err := h.bd.engine.api.ContainerUpdate(ctx, id, client.ContainerUpdateOptions{
			Resources: &container.Resources{PidsLimit: &pids}})
		return err
	})
	if err == nil {
		return nil
	}
	// It may have ended meanwhile, which engines report in several ways. The runtime knows it
	// before Docker does.
	if strings.Contains(err.Error(), "not running") {
		_ = h.bd.engine.waitEnded(ctx, id, h.bd.engine.limits.quick) // then it is looked at
	}
	if c, gone := h.bd.engine.container(ctx, id); errors.Is(gone, sandbox.ErrGone) || gone == nil && hasEnded(c.State) {
		return sandbox.ErrGone
	}
	return err
}

func hasEnded(s *container.State) bool {
	return s.Dead || s.Status == "removing" || s.Status == "exited"
}

// weigh checks what earlier steps have left in the image that a step starts from.
func (h *holding) weigh(ctx context.Context, image string) error {
	got, err := h.bd.engine.rawImage(ctx, image)
	if cerrdefs.IsNotFound(err) {
		return sandbox.ErrGone
	}
	if err != nil {
		return err
	}
	least := got.Size
	for _, size := range h.base { // which of them it came of is not told: the largest that it can be
		if size <= got.Size {
			least = min(least, got.Size-size)
		}
	}
	if least > h.limits.Disk {
		return h.tooMuch("its steps have left " + sandbox.FormatSize(least))
	}
	return nil
}

func (h *holding) tooMuch(what string) error {
	return hinted{fmt.Errorf("%w: %s, and the limit of disk is %s", errDiskFull, what, sandbox.FormatSize(h.limits.Disk)),
		"have it write less, or give the sandbox more: --disk"}
}

// watch measures what a step writes until it ends, and limits its terminals once it runs.
func (h *holding) watch(ctx context.Context, c container.InspectResponse) error {
	p := placesIn(c)
	timer := time.NewTimer(stepSoon)
	defer timer.Stop()
	for capped, missed := false, 0; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		now, err := h.bd.engine.container(ctx, c.ID)
		var used sandbox.DiskUsage
		if err == nil && now.State.Running {
			if !capped {
				capped = true
				if err := capTerminals(now.State.Pid); err != nil {
					h.bd.engine.log.Debug("terminals of a step have no limit of their own", "container", c.ID, "err", err)
				}
			}
			used, err = h.bd.meter.measure(ctx, p, now.State.Pid,
				sandbox.DiskUsage{Bytes: h.limits.Disk, Files: sandbox.MaxFiles(h.limits.Disk)})
		}
		switch {
		case errors.Is(err, sandbox.ErrGone):
			return nil
		case err != nil:
			if missed++; missed == stepTries {
				return fmt.Errorf("what a step writes cannot be measured: %w", err)
			}
			timer.Reset(stepEvery)
			continue
		case hasEnded(now.State):
			return nil
		case !now.State.Running:
			timer.Reset(stepSoon)
			continue
		case used.Bytes > h.limits.Disk:
			return h.tooMuch("a step has written more")
		case used.Files > sandbox.MaxFiles(h.limits.Disk):
			return h.tooMuch(fmt.Sprintf("a step has made more than %d files", sandbox.MaxFiles(h.limits.Disk)))
		}
		missed = 0
		timer.Reset(stepEvery)
	}
}

// watchRoom ends the build when the engine's disk has less free than must stay. It also covers
// steps that copy, which have no container.
func (h *holding) watchRoom(ctx context.Context) {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	for h.room > 0 {
		if room, err := h.bd.meter.Room(ctx); err == nil && room < h.room {
			h.end(hinted{fmt.Errorf("%w: this machine has %s of disk left, and %s are to stay free",
				errDiskFull, sandbox.FormatSize(room), sandbox.FormatSize(h.room)),
				"make room, such as by sandboxd rm or docker image prune"})
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
