package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// checkLeft looks for containers whose daemon has no state directory any more. No daemon knows and
// removes them.
func (d doctor) checkLeft(ctx context.Context) []finding {
	engine, err := newEngine(d.cli.config)
	if err != nil {
		return nil // checkEngine reports it
	}
	defer engine.Close()
	if !strings.HasPrefix(engine.DaemonHost(), "unix:") {
		return nil // its mounts are on another machine
	}
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			return nil // this is a container: state directories of other daemons are not visible
		}
	}
	found, err := engine.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: make(client.Filters).Add("label", daemonLabel)})
	if err != nil {
		return nil
	}
	return leftBehind(found.Items, func(dir string) bool {
		_, err := os.Lstat(dir)
		return !os.IsNotExist(err)
	})
}

// daemonLabel is the label of containers with the ID of their daemon.
const daemonLabel = "sandboxd.daemon"

var validDaemon = regexp.MustCompile(`^[A-Za-z0-9-]+$`) // safe in a shell command

// leftBehind returns a finding for each daemon that has containers in all and whose state
// directory, from which the guest is mounted, does not exist.
func leftBehind(all []container.Summary, there func(dir string) bool) []finding {
	count, states := make(map[string]int), make(map[string]string)
	for _, c := range all {
		id := c.Labels[daemonLabel]
		for _, m := range c.Mounts {
			dir := filepath.Dir(m.Source) // of the guest's program: DIR/guest/FILE
			if filepath.Base(dir) == "guest" && strings.HasPrefix(filepath.Base(m.Source),
				"guest-") && validDaemon.MatchString(id) && !there(dir) {
				count[id]++
				states[id] = filepath.Dir(dir)
			}
		}
	}
	var findings []finding
	for _, id := range slices.Sorted(maps.Keys(count)) {
		findings = append(findings, finding{Check: "left behind", OK: true,
			Found: fmt.Sprintf("%d containers of a daemon whose state directory %q was deleted",
				count[id], states[id]),
			Fix: fmt.Sprintf("remove them: docker rm -f $(docker ps -aq --filter label=%s=%s)",
				daemonLabel, id)})
	}
	return findings
}
