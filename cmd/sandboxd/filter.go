package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox/docker"
)

// filterProbe is the hidden command that tests, inside a container, which system calls the engine's
// filter allows. Its exit status is filterTried plus one bit for each of openings that is open.
const (
	filterProbe   = "probe-filter"
	filterProgram = "/sandboxd" // where it is mounted
	filterTried   = 64
)

// opening is a system call that some versions of Docker's profile allow, and that sandboxes do not
// need.
type opening struct {
	name, fix string
	open      func() bool // runs in the container
}

var openings = []opening{
	{"AF_VSOCK (reaches the host of a virtual machine, past the sandbox's network filter)",
		"Docker blocks AF_VSOCK from 20.10.22 and 23.0 on", vsockOpens},
	{"io_uring (system calls past the filter)",
		"Docker blocks io_uring from 25.0 on; or set sysctl kernel.io_uring_disabled=2 (Linux 6.6)",
		ringOpens},
}

func filterProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    filterProbe,
		Hidden: true,
		Args:   noArgs,
		// It does not load the configuration: a container has none.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(*cobra.Command, []string) error {
			status := filterTried
			for i, o := range openings {
				if o.open() {
					status |= 1 << i
				}
			}
			return exitCode(status)
		},
	}
}

// checkFilter reports which openings the engine's filter of system calls leaves open. The engine
// does not report it: distributions backport fixes, and dockerd may have another profile. So a
// container with the configured image and this program tests it. A test that cannot run is not a
// failure.
func (d doctor) checkFilter(ctx context.Context) []finding {
	engine, err := newEngine(d.cli.config)
	if err != nil {
		return nil // checkEngine reports it
	}
	defer engine.Close()
	image := d.cli.config.Image
	if !hasImage(ctx, engine, image) {
		return nil // checkImage reports it
	}
	f := finding{Check: "seccomp", OK: true}
	if v, err := engine.ServerVersion(ctx, client.ServerVersionOptions{}); err == nil &&
		!docker.IsDockers(v) {
		f.Found = "sandboxes use Docker's profile, which blocks AF_VSOCK and io_uring, not the " +
			"engine's own"
		return []finding{f}
	}
	open, err := probeFilter(ctx, engine, image)
	switch {
	case err != nil:
		f.Found = "cannot test the engine's filter: " + err.Error()
	case len(open) == 0:
		f.Found = "AF_VSOCK and io_uring are blocked"
	default:
		var names, fixes []string
		for _, o := range open {
			names, fixes = append(names, o.name), append(fixes, o.fix)
		}
		f.Found = "open to every sandbox: " + strings.Join(names, "; ")
		f.Fix = strings.Join(fixes, "; ") + "; or set another seccomp-profile for dockerd"
	}
	return []finding{f}
}

// probeFilter runs the probe in a container of image and returns what is open.
func probeFilter(ctx context.Context, engine *client.Client, image string) ([]opening, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	made, err := engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Entrypoint: []string{filterProgram, filterProbe},
			Cmd: []string{}, User: "0", WorkingDir: "/",
			Labels: map[string]string{"sandboxd.probe": "filter"}},
		// As in sandboxes: root, and the engine's own profile.
		HostConfig: &container.HostConfig{NetworkMode: "none", CapDrop: []string{"ALL"},
			SecurityOpt:   []string{"no-new-privileges"},
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: program,
				Target: filterProgram, ReadOnly: true}}},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkPatience)
		defer cancel()
		// if it fails, the label identifies it
		_, _ = engine.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true})
	}()
	wait := engine.ContainerWait(ctx, made.ID,
		client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := engine.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		return nil, err
	}
	select {
	case end := <-wait.Result:
		return readProbe(int(end.StatusCode))
	case err := <-wait.Error:
		return nil, err
	}
}

// readProbe returns the openings for the probe's exit status.
func readProbe(status int) (open []opening, err error) {
	if status&^(1<<len(openings)-1) != filterTried {
		return nil, fmt.Errorf("this program does not run in a container of the image: status %d",
			status)
	}
	for i, o := range openings {
		if status&(1<<i) != 0 {
			open = append(open, o)
		}
	}
	return open, nil
}
