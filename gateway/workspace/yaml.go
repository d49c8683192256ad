package workspace

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Keys of our file, and those that this version rejects.
var (
	keys = []string{"image", "network", "allow", "limits", "ttl", "user", "sudo", "env",
		"entrypoint", "workdir", "dockerfile", "setup"}
	limitKeys = []string{"memory", "cpus", "pids", "disk"}
	buildKeys = []string{"path", "context", "args", "target"}
	laterKeys = []string{"ports", "mounts"}
)

// document is a YAML file that is being converted to a Workspace.
type document struct {
	name string
	w    Workspace
}

func parseYAML(name string, text []byte, _ string) (Workspace, error) {
	d := document{name: name}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var top yaml.Node
	if err := decoder.Decode(&top); errors.Is(err, io.EOF) {
		return d.w, nil // empty, or comments
	} else if err != nil {
		return d.w, wrong("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return d.w, wrong("%s: more than one document", name)
	}
	return d.w, d.mapping(top.Content[0], "", keys, d.set)
}

// mapping passes each key of a mapping to set, once.
func (d *document) mapping(node *yaml.Node, in string, known []string,
	set func(key string, value *yaml.Node) error) error {
	if node.Kind != yaml.MappingNode {
		return d.at(node, "%s must be a mapping of keys to values",
			cmp.Or(strings.TrimSuffix(in, "."), "the document"))
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode:
			return d.at(key, "a key must be a plain word")
		case seen[key.Value]:
			return d.at(key, "%s%s is given twice", in, key.Value)
		case known != nil && !slices.Contains(known, key.Value):
			if slices.Contains(laterKeys, key.Value) {
				return d.at(key, "%s%s is not supported", in, key.Value)
			}
			return d.at(key, "unknown key %s%q; known keys: %s", in, key.Value,
				strings.Join(known, ", "))
		}
		seen[key.Value] = true
		if err := set(key.Value, value); err != nil {
			return err
		}
	}
	return nil
}

func (d *document) set(key string, node *yaml.Node) error {
	switch key {
	case "limits":
		return d.mapping(node, "limits.", limitKeys, d.setLimit)
	case "env":
		return d.variables("env.", node, &d.w.Env)
	case "allow":
		return d.setAllow(node)
	case "dockerfile":
		return d.setBuild(node)
	case "setup":
		return d.setSetup(node)
	}
	value, err := d.scalar(key, node)
	if err != nil {
		return err
	}
	switch key {
	case "image":
		d.w.Image = value
	case "user":
		d.w.User = value
	case "workdir":
		d.w.Workdir = value
	case "ttl":
		if d.w.TTL, err = time.ParseDuration(value); err != nil || d.w.TTL <= 0 {
			return d.at(node, "ttl %q: must be a time above 0, such as 30m", value)
		}
	case "network":
		d.w.Network = sandbox.Network(value)
		if !slices.Contains([]sandbox.Network{sandbox.NetworkNone, sandbox.NetworkFiltered,
			sandbox.NetworkAllowlist, sandbox.NetworkBridge}, d.w.Network) {
			return d.at(node, "network %q: must be none, filtered, allowlist or bridge", value)
		}
	case "sudo", "entrypoint":
		var on bool
		if node.Decode(&on) != nil {
			return d.at(node, "%s: %q must be true or false", key, value)
		}
		if key == "sudo" {
			d.w.Sudo = on
		} else if !on {
			d.w.Entrypoint = sandbox.EntrypointOff
		}
	}
	return nil
}

// variables reads a mapping of names to values.
func (d *document) variables(in string, node *yaml.Node, to *[]string) error {
	all := make(map[string]string)
	err := d.mapping(node, in, nil, func(name string, value *yaml.Node) (err error) {
		all[name], err = d.scalar(in+name, value)
		return err
	})
	*to = environment(all)
	return err
}

// setBuild reads the path of a Dockerfile, or a mapping with its path. Paths are relative to the
// directory.
func (d *document) setBuild(node *yaml.Node) error {
	d.w.Build = &Build{Dockerfile: "Dockerfile", Context: "."}
	if node.Kind != yaml.MappingNode {
		file, err := d.scalar("dockerfile", node)
		if file != "" {
			d.w.Build.Dockerfile = path.Clean(file)
		}
		return err
	}
	return d.mapping(node, "dockerfile.", buildKeys, func(key string, value *yaml.Node) error {
		if key == "args" {
			return d.variables("dockerfile.args.", value, &d.w.Build.Args)
		}
		said, err := d.scalar("dockerfile."+key, value)
		switch {
		case err != nil || said == "":
		case key == "path":
			d.w.Build.Dockerfile = path.Clean(said)
		case key == "context":
			d.w.Build.Context = path.Clean(said)
		case key == "target":
			d.w.Build.Target = said
		}
		return err
	})
}

// setSetup reads one command, possibly of many lines, or several.
func (d *document) setSetup(node *yaml.Node) error {
	list := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		list = node.Content
	}
	for _, n := range list {
		command, err := d.scalar("setup", n)
		if err != nil {
			return err
		}
		if strings.TrimSpace(command) != "" {
			d.w.Setup = append(d.w.Setup, strings.TrimRight(command, "\n"))
		}
	}
	return nil
}

// setAllow reads names, which open no blocked address. Addresses and ranges would, and the author
// of the file does not control the network.
func (d *document) setAllow(node *yaml.Node) error {
	if node.Kind != yaml.SequenceNode {
		return d.at(node, "allow must be a list of names")
	}
	for _, n := range node.Content {
		entry, err := d.scalar("an entry of allow", n)
		if err != nil {
			return err
		}
		if strings.ContainsAny(entry, "/[]") || strings.Count(entry, ":") > 1 ||
			net.ParseIP(strings.Split(entry, ":")[0]) != nil {
			return d.at(
				n,
				"allow %q: a file in a directory may allow only names; for others use sandboxd "+
					"allow", entry)
		}
		d.w.Allow = append(d.w.Allow, entry)
	}
	return nil
}

func (d *document) setLimit(key string, node *yaml.Node) error {
	value, err := d.scalar("limits."+key, node)
	if err != nil {
		return err
	}
	switch key {
	case "memory":
		d.w.Limits.Memory, err = size(value)
	case "disk":
		d.w.Limits.Disk, err = size(value)
	case "cpus":
		d.w.Limits.CPUs, err = strconv.ParseFloat(value, 64)
		if err != nil || !(d.w.Limits.CPUs > 0 && d.w.Limits.CPUs < 1<<20) {
			err = errors.New("must be a number above 0")
		}
	case "pids":
		d.w.Limits.PIDs, err = strconv.ParseInt(value, 10, 64)
		if err != nil || d.w.Limits.PIDs <= 0 {
			err = errors.New("must be a number above 0")
		}
	}
	if err != nil {
		return d.at(node, "limits.%s %q %v", key, value, err)
	}
	return nil
}

// scalar returns the text of a single value.
func (d *document) scalar(key string, node *yaml.Node) (string, error) {
	if node.Kind != yaml.ScalarNode {
		return "", d.at(node, "%s must be a single value", key)
	}
	if strings.ContainsRune(node.Value, 0) {
		return "", d.at(node, "%s contains a NUL byte", key)
	}
	return node.Value, nil
}

func (d *document) at(node *yaml.Node, format string, args ...any) error {
	return wrong("%s:%d: %s", d.name, node.Line, fmt.Sprintf(format, args...))
}

// size reads bytes with an optional suffix k, m, g or t.
func size(s string) (int64, error) {
	number, shift := strings.TrimSuffix(strings.ToLower(s), "b"), 0
	if number != "" {
		if at := strings.IndexByte("kmgt", number[len(number)-1]); at >= 0 {
			number, shift = number[:len(number)-1], 10*(at+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<62>>shift {
		return 0, errors.New("must be a size such as 512m or 2g")
	}
	return n << shift, nil
}
