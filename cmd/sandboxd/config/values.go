package config

import (
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox"
)

// none is the text of an empty list, for settings where an empty text means something else.
const none = "none"

// Path is an absolute path, or empty.
type Path string

// UnmarshalText accepts an absolute path, or an empty text.
func (p *Path) UnmarshalText(text []byte) error {
	// Of this machine or, with slashes also on Windows, of a sandbox.
	if given := string(text); given != "" && !filepath.IsAbs(given) && !path.IsAbs(given) {
		return fmt.Errorf("not an absolute path; write a path that begins with /")
	}
	*p = Path(text)
	return nil
}

// Size is a number of bytes.
type Size int64

// UnmarshalText accepts the same as sandbox.ParseSize, and 0.
func (s *Size) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*s = 0
		return nil
	}
	n, err := sandbox.ParseSize(string(text))
	if err != nil {
		return fmt.Errorf("not a size; write a number with k, m, g or t, such as 512m or 2g")
	}
	*s = Size(n)
	return nil
}

// Duration is a length of time.
type Duration time.Duration

// UnmarshalText accepts the same as command.ParseAge: 90s, 30m, 12h, 7d, or 0.
func (d *Duration) UnmarshalText(text []byte) error {
	n, err := command.ParseAge(string(text))
	if err != nil {
		return fmt.Errorf("not a duration; write a number with a unit, such as 90s, 12h or 30d")
	}
	*d = Duration(n)
	return nil
}

// Network is a network mode and the device that carries it. The zero value means that none is set.
type Network struct {
	Mode sandbox.Network
	Via  sandbox.Via
}

// UnmarshalText accepts the same as command.ParseNetwork, or an empty text.
func (n *Network) UnmarshalText(text []byte) (err error) {
	if *n = (Network{}); len(text) == 0 {
		return nil
	}
	if n.Mode, n.Via, err = command.ParseNetwork(string(text)); err != nil {
		return fmt.Errorf("not a network mode; %w", err)
	}
	return nil
}

// A list is a slice that can also be one text: in a variable, and in files of the old form.
type list interface {
	split(text string) []string
	join(elements []string) string
}

// Words are separated by commas or spaces.
type Words []string

func (Words) split(text string) []string    { return command.Words(text) }
func (Words) join(elements []string) string { return strings.Join(elements, " ") }

// Packages are Words; none means an empty list.
type Packages []string

func (Packages) split(text string) []string {
	if text == none {
		return nil
	}
	return command.Words(text)
}

func (Packages) join(elements []string) string { return joinOrNone(elements, " ") }

// Options are separated by spaces: their values may have commas.
type Options []string

func (Options) split(text string) []string    { return strings.Fields(text) }
func (Options) join(elements []string) string { return strings.Join(elements, " ") }

// Paths are separated by colons, on Windows by semicolons; none means an empty list.
type Paths []string

func (Paths) split(text string) []string {
	if text == none {
		return nil
	}
	return strings.Split(text, string(filepath.ListSeparator))
}

func (Paths) join(elements []string) string {
	return joinOrNone(elements, string(filepath.ListSeparator))
}

func joinOrNone(elements []string, separator string) string {
	if len(elements) == 0 {
		return none
	}
	return strings.Join(elements, separator)
}

// Command is a program and its arguments; as one text it is quoted as for a shell.
type Command []string

// UnmarshalText splits a text as a shell does. It runs no shell.
func (c *Command) UnmarshalText(text []byte) (err error) {
	if *c, err = shellquote.Split(string(text)); err != nil {
		return fmt.Errorf("not a command line: %w; add the missing quote", err)
	}
	return nil
}

// Templates are images by name. One text has NAME=IMAGE, separated by commas or spaces.
type Templates map[string]string

// kinds are the names of the types of fields in the reference and in errors.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[string]():    "text",
	reflect.TypeFor[int]():       "number",
	reflect.TypeFor[int64]():     "number",
	reflect.TypeFor[float64]():   "number",
	reflect.TypeFor[Path]():      "path",
	reflect.TypeFor[Size]():      "size",
	reflect.TypeFor[Duration]():  "duration",
	reflect.TypeFor[Network]():   "network",
	reflect.TypeFor[Words]():     "list",
	reflect.TypeFor[Packages]():  "list",
	reflect.TypeFor[Options]():   "list",
	reflect.TypeFor[Paths]():     "list",
	reflect.TypeFor[Command]():   "command",
	reflect.TypeFor[Templates](): "map",
}
