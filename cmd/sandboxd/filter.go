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
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/docker"
)

// filterProbe is the hidden command that runs in a container, to find out what the engine's filter of system calls lets
// through. Its exit status is filterTried and one bit for each of openings that is open.
const (
	filterProbe   = "probe-filter"
	filterProgram = "/sandboxd" // where it is mounted
	filterTried   = 64
)

// opening is something that Docker's profile lets through in some versions, and a sandbox has no use for.
type opening struct {
	name, fix string
	open      func() bool // tried in the container
}

var openings = []opening{
	{"AF_VSOCK (the host of a virtual machine answers there, whatever the network of the sandbox)",
		"upstream's Docker closes AF_VSOCK from 20.10.22 and 23.0 on", vsockOpens},
	{"io_uring (much of the kernel past the filter)",
		"Docker 25.0 closes io_uring, as does sysctl kernel.io_uring_disabled=2 (Linux 6.6)", ringOpens},
}

func filterProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    filterProbe,
		Hidden: true,
		Args:   noArgs,
		// Not the configuration: there is none in a container.
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

// checkFilter tells what the engine's filter of system calls leaves open. Neither the engine's version nor its interface
// says so – distributions carry fixes back, and dockerd may have a profile of its own – so a container tries it, with the
// configured image and this program. What cannot be tried is not a fault.
func (d doctor) checkFilter(ctx context.Context) []finding {
	engine, err := newEngine(d.cli.config)
	if err != nil {
		return nil // checkEngine said so
	}
	defer engine.Close()
	image := d.cli.config.Image
	if !hasImage(ctx, engine, image) {
		return nil // checkImage said so
	}
	f := finding{Check: "seccomp", OK: true}
	if v, err := engine.ServerVersion(ctx, client.ServerVersionOptions{}); err == nil && !docker.IsDockers(v) {
		f.Found = "sandboxes have Docker's profile, which closes AF_VSOCK and io_uring: the engine's own is not asked for"
		return []finding{f}
	}
	open, err := probeFilter(ctx, engine, image)
	switch {
	case err != nil:
		f.Found = "not known what the engine's filter leaves open: " + err.Error()
	case len(open) == 0:
		f.Found = "AF_VSOCK and io_uring are closed"
	default:
		var names, fixes []string
		for _, o := range open {
			names, fixes = append(names, o.name), append(fixes, o.fix)
		}
		f.Found = "open to every sandbox: " + strings.Join(names, "; ")
		f.Fix = strings.Join(fixes, "; ") + "; or give dockerd a seccomp-profile of your own"
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
		Config: &container.Config{Image: image, Entrypoint: []string{filterProgram, filterProbe}, Cmd: []string{}, User: "0", WorkingDir: "/",
			Labels: map[string]string{"sandboxd.probe": "filter"}},
		// What counts is as in sandboxes: root, and the engine's own profile.
		HostConfig: &container.HostConfig{NetworkMode: "none", CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"},
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			Mounts:        []mount.Mount{{Type: mount.TypeBind, Source: program, Target: filterProgram, ReadOnly: true}}},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkPatience)
		defer cancel()
		_, _ = engine.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true}) // its label says what it is
	}()
	wait := engine.ContainerWait(ctx, made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
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

// readProbe says what the probe's exit status means.
func readProbe(status int) (open []opening, err error) {
	if status&^(1<<len(openings)-1) != filterTried {
		return nil, fmt.Errorf("this program does not run in a container of the image: status %d", status)
	}
	for i, o := range openings {
		if status&(1<<i) != 0 {
			open = append(open, o)
		}
	}
	return open, nil
}

// vsockOpens reports whether this process may make a socket of AF_VSOCK (vsock(7)).
func vsockOpens() bool {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false // EPERM of the filter, or a kernel without it: EAFNOSUPPORT
	}
	unix.Close(fd)
	return true
}

// ringOpens reports whether this process may call io_uring_setup(2). It gives the call no memory to write to: where that is
// let through and the kernel has it, this is what it complains of.
func ringOpens() bool {
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	return errno == unix.EFAULT
}
