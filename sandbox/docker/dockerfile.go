package docker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// dockerfile is a Dockerfile that is rewritten for the engine. Names of images are resolved here:
// the engine would accept any image that it has, of any owner. Nothing in it may make the engine
// itself fetch something: the engine uses this machine's network, not that of the steps.
type dockerfile struct {
	name    string
	arch    string            // of the engine
	args    map[string]string // from the caller
	resolve func(ref string) (image, error)

	escape rune
	meta   []string // K=V of the ARG instructions before the first FROM
	stages []string // names of the stages so far, empty where there is none
	shell  []string // of the stage that is being read
	onward bool     // a FROM was read

	shells  map[string][]string // SHELL at the end of stages, by name, and of images, by ID
	bases   []string            // the images by the names that they have in it, in order of use
	sizes   map[string]int64    // of these, by ID
	runs    bool                // a step runs a program
	out     bytes.Buffer
	restore []string // instructions to add after the current FROM
	steps   []string // name of each instruction of out, in the order of out
}

// pinDockerfile rewrites a Dockerfile, one instruction a line, with images by their IDs and a
// label on everything that is built.
func pinDockerfile(text []byte, name, arch, label string, args []string,
	resolve func(ref string) (image, error)) (*dockerfile, error) {
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, printable(err.Error()))
	}
	d := &dockerfile{name: name, arch: arch, args: make(map[string]string),
		sizes:  make(map[string]int64),
		shells: make(map[string][]string), resolve: resolve, escape: parsed.EscapeToken}
	for _, kv := range args {
		key, value, _ := strings.Cut(kv, "=")
		d.args[key] = value
	}
	// The first line fixes it: a later one has no effect.
	fmt.Fprintf(&d.out, "# escape=%c\n", d.escape)
	for _, node := range parsed.AST.Children {
		line, err := d.instruction(node)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, node.StartLine, err)
		}
		if strings.HasSuffix(strings.TrimRight(line, " \t"), string(d.escape)) ||
			strings.ContainsAny(line, "\r\n\x00") {
			return nil, fmt.Errorf("%s:%d: the instruction does not end with its line", name,
				node.StartLine)
		}
		d.write(line, fmt.Sprintf("%s:%d: %s", name, node.StartLine, brief(node.Original)))
		if strings.EqualFold(node.Value, "from") {
			for _, line := range append(d.restore, "LABEL "+label) {
				d.write(line, name+hiddenStep)
			}
			d.restore = nil
		}
	}
	if !d.onward {
		return nil, fmt.Errorf("%s: no FROM instruction", name)
	}
	return d, nil
}

// hiddenStep ends the name of a step that the original does not have.
const hiddenStep = ": label"

func (d *dockerfile) write(line, step string) {
	d.out.WriteString(line + "\n")
	d.steps = append(d.steps, step)
}

// brief shortens an instruction for messages.
func brief(line string) string {
	line = strings.Join(strings.Fields(printable(line)), " ")
	if r := []rune(line); len(r) > 80 {
		line = string(r[:79]) + "…"
	}
	return line
}

// instruction returns node in the form for the engine.
func (d *dockerfile) instruction(node *parser.Node) (string, error) {
	line := strings.TrimSpace(node.Original)
	kind := strings.ToLower(node.Value)
	if err := flags(kind, node.Flags); err != nil {
		return "", err
	}
	if len(node.Heredocs) > 0 && kind != "run" {
		return "", sandbox.Hint(
			fmt.Errorf("%s with a here-document is not supported", strings.ToUpper(kind)),
			"write the file in a step (RUN cat <<EOF >/path), or store it in the directory")
	}
	switch kind {
	case "arg":
		if !d.onward {
			return line, d.metaArg(node)
		}
	case "from":
		return d.from(node)
	case "run":
		d.runs = true
		if len(node.Heredocs) > 0 {
			return d.runHeredocs(node)
		}
	case "shell":
		d.setShell(node)
	case "add":
		return line, d.add(words(node.Next))
	case "copy":
		return d.copyFrom(line, node.Flags)
	case "label":
		return line, labels(words(node.Next))
	case "onbuild":
		return line, d.trigger(node)
	}
	return line, nil
}

// classicFlags are the flags that the classic builder supports.
var classicFlags = map[string][]string{
	"run": {}, "add": {"--chown"}, "copy": {"--chown", "--from"},
}

// flags rejects flags of steps that the classic builder does not support.
func flags(kind string, list []string) error {
	known, ok := classicFlags[kind]
	for _, flag := range list {
		if name, _, _ := strings.Cut(flag, "="); ok && !slices.Contains(known, name) {
			return unsupported(strings.ToUpper(kind), flag)
		}
	}
	return nil
}

func words(node *parser.Node) []string {
	var all []string
	for ; node != nil; node = node.Next {
		all = append(all, node.Value)
	}
	return all
}

// expand replaces, in a word of a FROM, the arguments before the first FROM.
func (d *dockerfile) expand(word string) (string, error) {
	got, _, err := shell.NewLex(d.escape).ProcessWord(word, shell.EnvsFromSlice(d.meta))
	return got, err
}

func (d *dockerfile) metaArg(node *parser.Node) error {
	for _, word := range words(node.Next) {
		key, value, _ := strings.Cut(word, "=")
		if given, ok := d.args[key]; ok {
			value = given
		} else {
			var err error
			if value, err = d.expand(value); err != nil {
				return err
			}
		}
		d.meta = append(slices.DeleteFunc(d.meta, func(kv string) bool {
			return strings.HasPrefix(kv, key+"=")
		}), key+"="+value)
	}
	return nil
}

func (d *dockerfile) from(node *parser.Node) (string, error) {
	d.onward = true
	for _, flag := range node.Flags {
		platform, ok := strings.CutPrefix(flag, "--platform=")
		if !ok {
			return "", fmt.Errorf("FROM %s: unknown flag", brief(flag))
		}
		switch platform {
		case "linux/" + d.arch, "$BUILDPLATFORM", "${BUILDPLATFORM}", "$TARGETPLATFORM",
			"${TARGETPLATFORM}":
		default:
			return "", fmt.Errorf("FROM %s: %w: the engine runs linux/%s", brief(flag),
				sandbox.ErrUnsupported, d.arch)
		}
	}
	said := words(node.Next)
	stage := ""
	switch {
	case len(said) == 1:
	case len(said) == 3 && strings.EqualFold(said[1], "as"):
		stage = strings.ToLower(said[2])
	default:
		return "", errors.New("FROM: want an image, or an image AS a name")
	}
	ref, err := d.expand(said[0])
	if err != nil {
		return "", err
	}
	base, err := d.stageOr(ref, scratch)
	if err != nil {
		return "", err
	}
	if n := len(d.stages); n > 0 {
		d.shells[d.stages[n-1]] = d.shell
	}
	if d.shell = d.shells[strings.ToLower(base)]; len(d.shell) == 0 {
		d.shell = defaultShell
	}
	d.stages = append(d.stages, stage)
	line := "FROM " + base
	if stage != "" {
		line += " AS " + said[2]
	}
	return line, nil
}

// scratch, in a FROM, is not an image.
const scratch = "scratch"

// restoring returns instructions that restore the original configuration of an image that was made
// from a sandbox. Such an image's own program is the guest, run as root.
func restoring(img image) ([]string, error) {
	list := func(words []string) string {
		text, err := json.Marshal(slices.Concat([]string{}, words))
		if err != nil {
			return "[]" // marshaling strings cannot fail
		}
		return string(text)
	}
	c := img.config
	lines := []string{"ENTRYPOINT " + list(c.Entrypoint), "CMD " + list(c.Cmd),
		"LABEL " + labelImage + "="}
	for _, word := range []struct{ instruction, value string }{{"USER", cmp.Or(c.User, "root")},
		{"WORKDIR", cmp.Or(c.WorkingDir, "/")}} {
		if !plainWord.MatchString(word.value) { // the builder would expand variables and quotes
			return nil, fmt.Errorf("%s %q cannot be expressed in a Dockerfile", word.instruction,
				word.value)
		}
		lines = append(lines, word.instruction+" "+word.value)
	}
	return lines, nil
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@+-]+$`)

// stageOr returns ref if it is an earlier stage or equals also, else the ID of the image with that
// name.
func (d *dockerfile) stageOr(ref, also string) (string, error) {
	if ref == "" {
		return "", errors.New("the image has no name")
	}
	if ref == also || slices.Contains(d.stages, strings.ToLower(ref)) {
		return ref, nil
	}
	img, err := d.resolve(ref)
	if err != nil {
		return "", err
	}
	for _, trigger := range img.config.OnBuild {
		if err := d.triggered(trigger); err != nil {
			return "", fmt.Errorf("image %s: ONBUILD %s: %w", printable(ref), brief(trigger), err)
		}
	}
	if !slices.Contains(d.bases, ref) {
		d.bases = append(d.bases, ref)
		d.sizes[img.id], d.shells[img.id] = img.size, img.config.Shell
	}
	if img.restored && also == scratch {
		if d.restore, err = restoring(img); err != nil {
			return "", fmt.Errorf("image %s: %w", printable(ref), err)
		}
	}
	return img.id, nil
}

// add rejects sources that the engine itself would fetch. It also rejects quotes and variables,
// which the engine expands later.
func (d *dockerfile) add(words []string) error {
	for _, source := range words[:max(0, len(words)-1)] {
		if strings.Contains(source, "://") || strings.HasPrefix(source, "git@") ||
			strings.ContainsAny(source, "$\"'\\`") {
			return fmt.Errorf(
				"ADD %s: the engine would fetch that itself, past the network of the build; "+
					"fetch it in a RUN step, or COPY a file", brief(source))
		}
	}
	return nil
}

// labels rejects labels that sandboxd uses, and variables in names.
func labels(words []string) error {
	for at := 0; at < len(words); at += 3 { // name, value, separator
		key := strings.NewReplacer(`"`, "", "'", "", `\`, "", "`", "").Replace(words[at])
		if strings.Contains(key, "$") || strings.HasPrefix(key, ourLabels) {
			return fmt.Errorf(
				"LABEL %s: names must not begin with %s, which is reserved for sandboxd, or "+
					"contain variables", brief(words[at]), ourLabels)
		}
	}
	return nil
}

// copyFrom replaces an image in --from by its ID.
func (d *dockerfile) copyFrom(line string, flags []string) (string, error) {
	for _, flag := range flags {
		ref, ok := strings.CutPrefix(flag, "--from=")
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(ref); err == nil && n >= 0 && n < len(d.stages) {
			continue
		}
		if strings.ContainsAny(ref, "$\"'\\`") {
			return "",
				fmt.Errorf("COPY %s: write the stage or the image without quotes and variables",
					brief(flag))
		}
		base, err := d.stageOr(ref, "")
		if err != nil {
			return "", err
		}
		if base == ref {
			continue
		}
		if strings.Count(line, flag) != 1 {
			return "", fmt.Errorf("COPY %s: the flag must be given once", brief(flag))
		}
		line = strings.Replace(line, flag, "--from="+base, 1)
	}
	return line, nil
}

// trigger rejects an ONBUILD that would do in a later build what this file rejects.
func (d *dockerfile) trigger(node *parser.Node) error {
	if node.Next == nil || len(node.Next.Children) != 1 {
		return errors.New("ONBUILD: want one instruction")
	}
	return d.nested(node.Next.Children[0])
}

func (d *dockerfile) triggered(text string) error {
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil || len(parsed.AST.Children) != 1 {
		return errors.New("want one instruction")
	}
	return d.nested(parsed.AST.Children[0])
}

func (d *dockerfile) nested(node *parser.Node) error {
	switch {
	case len(node.Heredocs) > 0:
		return errors.New("here-documents are not supported in ONBUILD")
	case strings.EqualFold(node.Value, "add"):
		return d.add(words(node.Next))
	case strings.EqualFold(node.Value, "run"):
		d.runs = true
	case strings.EqualFold(node.Value, "label"):
		return labels(words(node.Next))
	}
	for _, flag := range node.Flags {
		if strings.HasPrefix(flag, "--from=") || strings.EqualFold(node.Value, "run") {
			return fmt.Errorf("%s is not supported in ONBUILD", brief(flag))
		}
	}
	return nil
}

// baseImage returns the image of a FROM for owner. It pulls or builds a missing one.
func (im *images) baseImage(ctx context.Context, owner, ref string, progress func(string)) (image,
	error) {
	name, err := machine.ParseImage(ref)
	if err != nil {
		return image{}, err
	}
	if err := im.names.MayBoot(sandbox.Spec{Owner: owner, Image: name}); err != nil {
		return image{}, err
	}
	return im.image(ctx, name, progress)
}
