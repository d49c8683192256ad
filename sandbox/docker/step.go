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
	stepTries = 3                     // looks in a row that fail, upon which the build ends: its limit would be none
)

// holding holds the steps of one build to limits that the engine's builder does not know. The builder names each container before it
// starts it; the engine takes limits of one that runs as well as of one that does not yet.
//
// A step may print what looks like the builder's line: then it is held twice, or another build's of this daemon's is. It cannot keep its
// own line from coming first.
type holding struct {
	bd     *builder
	limits sandbox.Limits
	room   int64            // bytes of the engine's disk that stay free; 0 is none
	base   map[string]int64 // sizes of the images that it began with
	end    context.CancelCauseFunc
}

// errDiskFull begins what is said of a build that had too much, with the name that the limit has everywhere.
var errDiskFull = errors.New("disk_full")

// running is the builder's line about a container that it is about to start.
var running = regexp.MustCompile(`^ ---> Running in ([0-9a-f]{12})$`)

// step holds the container id until it is gone, or ctx ends.
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

// isStep tells the builder's containers from sandboxes, which have a label of an image that was built as well.
func (h *holding) isStep(c container.InspectResponse) bool {
	return c.Config.Labels[labelMade] == h.bd.engine.daemon && c.Config.Labels[labelID] == ""
}

// bound sets the limit of processes.
func (h *holding) bound(ctx context.Context, id string) error {
	pids := h.limits.PIDs
	err := h.bd.engine.call(ctx, h.bd.engine.limits.quick, "limit processes of a step", func(ctx context.Context) error {
		_, err := h.bd.engine.api.ContainerUpdate(ctx, id, client.ContainerUpdateOptions{Resources: &container.Resources{PidsLimit: &pids}})
		return err
	})
	if err == nil {
		return nil
	}
	// It may have ended meanwhile, which engines tell in several ways; Docker's runtime knows before Docker does.
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

// weigh looks at what the steps before have left in the image of which a step begins.
func (h *holding) weigh(ctx context.Context, image string) error {
	var got client.ImageInspectResult
	err := h.bd.engine.call(ctx, h.bd.engine.limits.quick, "look up image", func(ctx context.Context) (err error) {
		got, err = h.bd.engine.api.ImageInspect(ctx, image)
		return err
	})
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

// watch looks at what a step writes until it has ended, and at its first process as soon as there is one.
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
			used, err = h.bd.meter.measure(ctx, p, now.State.Pid, sandbox.DiskUsage{Bytes: h.limits.Disk, Files: sandbox.MaxFiles(h.limits.Disk)})
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

// watchRoom ends the build when there is less of the engine's disk than is to stay free, whichever step takes it: those that copy have no
// container.
func (h *holding) watchRoom(ctx context.Context) {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	for h.room > 0 {
		if room, err := h.bd.meter.Room(ctx); err == nil && room < h.room {
			h.end(hinted{fmt.Errorf("%w: this machine has %s of disk left, and %s are to stay free", errDiskFull, sandbox.FormatSize(room), sandbox.FormatSize(h.room)),
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
