package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// What Dockerfiles have beyond the engine's classic builder: here-documents in RUN become a plain
// RUN, all else is refused with what to write instead. docs/concepts/decisions/0008-classic-builder.md says
// why BuildKit does not build.

// maxLine is how long a line of a Dockerfile the classic builder reads.
const maxLine = 64<<10 - 1

// defaultShell runs RUN steps of images and stages that set no SHELL.
var defaultShell = []string{"/bin/sh", "-c"}

// runHeredocs returns a RUN with here-documents as one without: as BuildKit does, it gives the text
// to the shell of the stage. A single here-document is the script; others, the shell reads itself.
func (d *dockerfile) runHeredocs(node *parser.Node) (string, error) {
	if node.Next == nil || node.Attributes["json"] {
		return "", errors.New("RUN with a here-document is not followed by a command of the shell")
	}
	script := node.Next.Value
	if alone, err := parser.ParseHeredoc(script); err == nil && alone != nil {
		script = node.Heredocs[0].Content
		if alone.Chomp {
			script = parser.ChompHeredocContent(script)
		}
		if strings.HasPrefix(script, "#!") {
			return "", hinted{
				fmt.Errorf("RUN %s with #! is not supported", brief(node.Next.Value)),
				"name the program: RUN python3 <<EOF"}
		}
	} else {
		for _, doc := range node.Heredocs {
			script += "\n" + doc.Content + doc.Name
		}
	}
	if !utf8.ValidString(script) || strings.ContainsRune(script, 0) {
		return "", errors.New("RUN: the here-document is not text in UTF-8")
	}
	words, err := json.Marshal(append(d.shell[:len(d.shell):len(d.shell)], script))
	if err != nil {
		return "", err
	}
	line := "RUN " + string(words)
	if len(line) > maxLine {
		return "", hinted{fmt.Errorf("RUN: the here-document is longer than %d bytes", maxLine),
			"COPY the script, and RUN it"}
	}
	return line, nil
}

// setShell reads a SHELL instruction. The builder refuses one that is no list.
func (d *dockerfile) setShell(node *parser.Node) {
	if list := words(node.Next); node.Attributes["json"] && len(list) > 0 {
		d.shell = list
	}
}

// unsupported refuses a flag that only BuildKit knows.
func unsupported(instruction, flag string) error {
	name, value, _ := strings.Cut(flag, "=")
	hint := "leave it out"
	switch instruction + " " + name {
	case "RUN --mount":
		hint = mountHint(value)
	case "RUN --network":
		hint = "steps have the network of the sandbox: --network"
	case "COPY --chmod", "ADD --chmod":
		hint = "RUN chmod after it"
	case "COPY --parents", "COPY --exclude", "ADD --exclude":
		hint = "copy by several instructions, or list what to leave out in .dockerignore"
	case "ADD --checksum":
		hint = "RUN sha256sum -c after it"
	}
	return hinted{fmt.Errorf("%s %s is not supported: images are built without BuildKit",
		instruction, brief(flag)), hint}
}

// mountHint says what replaces a mount of a step.
func mountHint(value string) string {
	kind := "bind"
	for field := range strings.SplitSeq(value, ",") {
		if k, ok := strings.CutPrefix(field, "type="); ok {
			kind = k
		}
	}
	switch kind {
	case "bind":
		return "COPY the files before the step"
	case "cache":
		return "leave it out: the step then downloads each time that it runs"
	case "tmpfs":
		return "leave it out, and remove in the step what it leaves there"
	}
	return "leave it out, and do in setup: what needs the secret" // secret, ssh
}
