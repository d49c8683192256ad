package main

import (
	"cmp"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
)

// dirRules returns the rules for directories of this machine that sandboxes may mount. They exclude
// directories that give away more than files: the daemon's state, images, the engine's socket, and
// keys and containers of users.
func dirRules(c *config.Loaded) hostdir.Rules {
	r := hostdir.Rules{Roots: c.MountRoots}
	r.Never = []string{string(c.State), string(c.OCI.Images), "/var/run/docker.sock",
		"/run/docker.sock"}
	host := cmp.Or(engineHost(c), docker.DefaultHost)
	if socket, ok := strings.CutPrefix(host, "unix://"); ok && filepath.IsAbs(socket) {
		r.Never = append(r.Never, socket)
	}
	for _, home := range homes() {
		r.Homes = append(r.Homes, home)
		for _, secret := range []string{".ssh", ".gnupg", ".config/sandboxd",
			".local/share/containers"} {
			r.Never = append(r.Never, filepath.Join(home, secret))
		}
	}
	return r
}

// homes returns the home directories of the admin: from the environment and from the user database.
func homes() []string {
	var all []string
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		all = append(all, home)
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		all = append(all, u.HomeDir)
	}
	return all
}

// localPaths makes the paths in the flags of cmd absolute if the daemon runs on this machine.
func (c *cli) localPaths(cmd *cobra.Command) error {
	if c.gateway != "" {
		return nil // the daemon rejects relative paths
	}
	if f := cmd.Flags().Lookup("dir"); f != nil && (f.Changed || !cmd.Flags().Changed("name")) {
		return cmd.Flags().Set("dir", absolute(f.Value.String())) // "" becomes the current one
	}
	for _, name := range []string{"dockerfile", "build-context"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			if err := cmd.Flags().Set(name, absolute(f.Value.String())); err != nil {
				return err
			}
		}
	}
	if f := cmd.Flags().Lookup("volume"); f != nil && f.Changed {
		if err := localVolumes(f.Value.(pflag.SliceValue)); err != nil {
			return err
		}
	}
	if f := cmd.Flags().Lookup("mount"); f != nil {
		list := f.Value.(pflag.SliceValue)
		dirs := list.GetSlice()
		for i, m := range dirs {
			dir, readOnly := strings.CutSuffix(m, ":ro")
			if dir == "" {
				return usage("new: --mount "+m+": missing directory",
					"write --mount DIR or --mount DIR:ro")
			}
			if dirs[i] = absolute(dir); readOnly {
				dirs[i] += ":ro"
			}
		}
		if f.Changed {
			return list.Replace(dirs)
		}
	}
	return nil
}

// localVolumes makes the first path of each SRC:DST absolute.
func localVolumes(list pflag.SliceValue) error {
	volumes := list.GetSlice()
	for i, v := range volumes {
		if _, ok := command.ParseStorage(v); ok {
			continue
		}
		m, err := command.ParseVolume(v)
		if err != nil {
			return err
		}
		if volumes[i] = absolute(m.Path) + ":" + m.Target; m.ReadOnly {
			volumes[i] += ":ro"
		}
	}
	return list.Replace(volumes)
}
