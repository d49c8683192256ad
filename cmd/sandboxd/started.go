package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// started records how the last daemon of a state directory was started. The next one is started in
// the same way: its rights must not depend on which command found it missing.
type started struct {
	Config string `json:"config,omitempty"` // the file of --config
	// by serve in the foreground: another program manages it
	Serve bool `json:"serve,omitempty"`
}

const startedFile = "started.json"

// readStarted returns the zero value if no daemon has run.
func readStarted(state string) (started, error) {
	var s started
	path := filepath.Join(state, startedFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("start options of the last daemon: %s: %w", path, err)
	}
	return s, nil
}

func (s started) write(state string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := writeDurably(filepath.Join(state, startedFile), append(text, '\n'),
		0o600); err != nil {
		return fmt.Errorf("start options of the daemon: %w", err)
	}
	return nil
}

// writeDurably replaces a file atomically, also across a power failure.
func writeDurably(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// again loads the configuration file of the last daemon, unless another is named. A command other
// than up returns an error if the last daemon was started by serve, or with another file.
func (c *cli) again(up bool) error {
	state := string(c.config.State)
	last, err := readStarted(state)
	if err != nil {
		return err
	}
	with := ""
	if last.Config != "" {
		with = " --config " + last.Config
	}
	switch {
	case last.Serve && !up:
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("no daemon runs for %s", state),
			Hint: "start it as before: sandboxd serve" + with +
				"; or in the background: sandboxd up"}
	case last.Config == "" || c.configFile != "" && absolute(c.configFile) == last.Config ||
		c.configFile != "" && up:
		return nil
	case c.configFile != "":
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("no daemon runs for %s, and the last one was started with%s",
				state, with),
			Hint: "start it with sandboxd up and the --config that you want"}
	}
	c.configFile = last.Config
	return c.load()
}
