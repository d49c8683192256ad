package dockerfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Bounds of what a Dockerfile, and the ONBUILD instructions of an image, can ask for.
const (
	maxDockerfile = 1 << 20
	maxStages     = 100
	maxSteps      = 400      // of all stages: each may become a layer
	maxSources    = 1000     // of all COPY and ADD, and mounts
	maxWord       = 64 << 10 // bytes, before and after variables are replaced
	maxText       = 4 << 20  // bytes of all words after that
	maxPath       = 4096     // bytes, as on Linux
)

// plan is a Dockerfile whose instructions were read and checked, and not yet carried out.
type plan struct {
	name   string     // of the file, in messages
	lex    *shell.Lex // of words; texts is of here-documents, where quotes mean nothing
	texts  *shell.Lex
	text   int               // bytes of all results of the two
	given  map[string]string // arguments of the caller
	meta   []string          // K=V of the ARG instructions before the first FROM
	stages []stage
	target int // index of the stage whose image is wanted
}

// stage is a FROM and the instructions after it.
type stage struct {
	name  string // in lower case; empty if it has none
	from  string // image, or scratch; empty if it begins with another stage
	after int    // index of that stage; none if it begins with an image
	title string // of the FROM
	other error  // why sandboxes here cannot run it; nil if they can
	steps []step
}

// step is one instruction.
type step struct {
	title   string // file, line and the beginning of the text
	command instructions.Command
	// from has the stages that a COPY or the mounts of a RUN name, by index; none is an image.
	from map[string]int
}

const none = -1

// scratch, in a FROM, is an image without files.
const scratch = "scratch"

// parse reads a Dockerfile. Errors name the line.
func parse(r Request) (*plan, error) {
	if len(r.Dockerfile) > maxDockerfile {
		return nil, fmt.Errorf("%s is longer than %d bytes", r.Name, maxDockerfile)
	}
	if !utf8.Valid(r.Dockerfile) || bytes.ContainsRune(r.Dockerfile, 0) {
		return nil, fmt.Errorf("%s is not valid UTF-8", r.Name)
	}
	parsed, err := parser.Parse(bytes.NewReader(r.Dockerfile))
	if err != nil {
		return nil, fmt.Errorf("%s: %s", r.Name, brief(err.Error()))
	}
	p := &plan{name: r.Name, lex: shell.NewLex(parsed.EscapeToken), texts: shell.NewLex('\\'),
		given: make(map[string]string)}
	p.texts.SkipProcessQuotes = true
	for _, kv := range r.Args {
		key, value, _ := strings.Cut(kv, "=")
		p.given[key] = value
	}
	p.meta = platform(r.Arch)
	steps := 0
	for _, node := range parsed.AST.Children {
		if steps++; steps > maxSteps {
			return nil, fmt.Errorf("%s: more than %d instructions", r.Name, maxSteps)
		}
		if err := p.read(node, r.Arch); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", r.Name, node.StartLine, err)
		}
	}
	if len(p.stages) == 0 {
		return nil, fmt.Errorf("%s: no FROM instruction", r.Name)
	}
	p.target = len(p.stages) - 1
	if r.Target != "" {
		if p.target = p.stageOf(r.Target); p.target == none {
			return nil, fmt.Errorf("%s: no stage %s", r.Name, brief(r.Target))
		}
	}
	return p, nil
}

// platform returns the arguments that builders predefine, for Linux of an architecture.
func platform(arch string) []string {
	var env []string
	for _, of := range []string{"BUILD", "TARGET"} {
		env = append(env, of+"PLATFORM=linux/"+arch, of+"OS=linux", of+"ARCH="+arch)
	}
	return env
}

// read adds an instruction to the plan.
func (p *plan) read(node *parser.Node, arch string) error {
	if len(p.stages) == 0 && !strings.EqualFold(node.Value, "from") &&
		!strings.EqualFold(node.Value, "arg") {
		return errors.New("no FROM instruction before it")
	}
	// The library's errors about flags do not say what to write instead.
	if err := checkFlags(strings.ToUpper(node.Value), node.Flags); err != nil {
		return err
	}
	parsed, err := instructions.ParseInstruction(node)
	if err != nil {
		return errors.New(brief(err.Error()))
	}
	title := fmt.Sprintf("%s:%d: %s", p.name, node.StartLine, brief(node.Original))
	switch c := parsed.(type) {
	case *instructions.Stage:
		return p.from(c, title, arch)
	case *instructions.ArgCommand:
		if len(p.stages) == 0 {
			return p.metaArg(c)
		}
	}
	command, ok := parsed.(instructions.Command)
	if !ok {
		return fmt.Errorf("%s is not supported", brief(node.Value))
	}
	s := step{title: title, command: command}
	if err := p.check(&s); err != nil {
		return err
	}
	at := &p.stages[len(p.stages)-1]
	at.steps = append(at.steps, s)
	return nil
}

// brief shortens text for messages.
func brief(s string) string {
	const most = 80
	return text.Line(strings.Join(strings.Fields(s), " "), most)
}

// check rejects what an instruction may not say, and finds the stages that it copies from.
func (p *plan) check(s *step) error {
	switch c := s.command.(type) {
	case *instructions.AddCommand:
		return checkLocal(c.SourcePaths)
	case *instructions.CopyCommand:
		if c.From == "" {
			break
		}
		if strings.Contains(c.From, "$") {
			return fmt.Errorf("COPY --from=%s: write the stage or the image without variables",
				brief(c.From))
		}
		return p.uses(s, "COPY --from", c.From)
	case *instructions.OnbuildCommand:
		_, err := p.trigger(c.Expression)
		return err
	case *instructions.RunCommand:
		for _, m := range instructions.GetMounts(c) { // of which only from is known yet
			if m.From == "" {
				continue
			}
			if err := p.uses(s, "RUN --mount=from", m.From); err != nil {
				return err
			}
		}
		_, err := script(c)
		return err
	}
	return nil
}

// uses notes that a step copies from a stage or an image, which flag names.
func (p *plan) uses(s *step, flag, from string) error {
	stage, err := p.earlier(from)
	if err != nil {
		return fmt.Errorf("%s=%s: %w", flag, brief(from), err)
	}
	set(&s.from, from, stage)
	return nil
}

// checkLocal rejects sources of an ADD that are not files.
func checkLocal(sources []string) error {
	for _, source := range sources {
		if strings.Contains(source, "://") || strings.HasPrefix(source, "git@") {
			return sandbox.Hint(fmt.Errorf("ADD %s: fetching is not supported", brief(source)),
				"fetch it in a RUN step, or COPY a file")
		}
	}
	return nil
}

// ownLabels is the beginning of the labels that sandboxd gives to images.
const ownLabels = "sandboxd."

// trigger reads the instruction of an ONBUILD.
func (p *plan) trigger(expression string) (step, error) {
	fail := func(err error) (step, error) {
		return step{}, fmt.Errorf("ONBUILD %s: %w", brief(expression), err)
	}
	parsed, err := parser.Parse(strings.NewReader(expression))
	if err != nil {
		return fail(errors.New(brief(err.Error())))
	}
	if len(parsed.AST.Children) != 1 {
		return fail(errors.New("want one instruction"))
	}
	node := parsed.AST.Children[0]
	if err := checkFlags(strings.ToUpper(node.Value), node.Flags); err != nil {
		return fail(err)
	}
	command, err := instructions.ParseCommand(node)
	if err != nil {
		return fail(errors.New(brief(err.Error())))
	}
	s := step{title: p.name + ": ONBUILD " + brief(expression), command: command}
	switch c := command.(type) {
	case *instructions.OnbuildCommand:
		return fail(errors.New("not supported in an ONBUILD"))
	case *instructions.CopyCommand:
		if c.From != "" { // a stage of the file in which it is used, which need not have it
			return fail(errors.New("--from is not supported in an ONBUILD"))
		}
	case *instructions.RunCommand:
		for _, m := range instructions.GetMounts(c) {
			if m.From != "" {
				return fail(errors.New("from is not supported in an ONBUILD"))
			}
		}
	}
	if err := p.check(&s); err != nil {
		return fail(err)
	}
	return s, nil
}

// expand replaces variables in a word by env, which has K=V.
func (p *plan) expand(word string, env []string) (string, error) {
	return p.expandBy(p.lex, word, env)
}

func (p *plan) expandBy(lex *shell.Lex, word string, env []string) (string, error) {
	longest := 0
	for _, kv := range env {
		longest = max(longest, len(kv))
	}
	// Checked before: a few lines could otherwise ask for terabytes.
	most := len(word) + strings.Count(word, "$")*longest
	if len(word) > maxWord || most > maxText {
		return "", fmt.Errorf("the text is too long: %s", brief(word))
	}
	got, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(env))
	if err != nil {
		return "", errors.New(brief(err.Error()))
	}
	if p.text += len(got); len(got) > maxWord || p.text > maxText {
		return "", fmt.Errorf("the text is too long: %s", brief(word))
	}
	return got, nil
}

func (p *plan) metaArg(c *instructions.ArgCommand) error {
	for _, arg := range c.Args {
		value, ok := p.given[arg.Key]
		if !ok && arg.Value != nil {
			var err error
			if value, err = p.expand(*arg.Value, p.meta); err != nil {
				return err
			}
			ok = true
		}
		if ok {
			p.meta = setEnv(p.meta, arg.Key, value)
		}
	}
	return nil
}

// setEnv returns env with a variable. It does not change env.
func setEnv(env []string, key, value string) []string {
	return append(slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		return strings.HasPrefix(kv, key+"=")
	}), key+"="+value)
}

func (p *plan) from(c *instructions.Stage, title, arch string) error {
	if len(p.stages) == maxStages {
		return fmt.Errorf("more than %d stages", maxStages)
	}
	var other error
	if c.Platform != "" {
		want, err := p.expand(c.Platform, p.meta)
		if err != nil {
			return err
		}
		if !runs(want, arch) {
			other = fmt.Errorf("%s: %w: sandboxes here run linux/%s", title,
				sandbox.ErrUnsupported, arch)
		}
	}
	ref, err := p.expand(c.BaseName, p.meta)
	if err != nil {
		return err
	}
	if ref == "" {
		return errors.New("FROM: the image has no name")
	}
	s := stage{name: strings.ToLower(c.Name), after: none, title: title, other: other}
	if s.after = p.stageOf(ref); s.after == none {
		s.from = ref
	}
	p.stages = append(p.stages, s)
	return nil
}

// stageOf returns the index of the last stage with a name, or none.
func (p *plan) stageOf(name string) int {
	for i := len(p.stages) - 1; i >= 0; i-- {
		if p.stages[i].name != "" && p.stages[i].name == strings.ToLower(name) {
			return i
		}
	}
	return none
}

// runs reports whether a platform, such as linux/arm64/v8, is that of an architecture in Go's form.
func runs(platform, arch string) bool {
	os, machine, _ := strings.Cut(strings.ToLower(platform), "/")
	machine, _, _ = strings.Cut(machine, "/") // the variant
	switch machine {
	case "x86_64":
		machine = "amd64"
	case "aarch64":
		machine = "arm64"
	}
	return os == "linux" && machine == arch
}

// earlier returns the index of a stage before the current one, by its name or number, or none for a
// name that no stage has.
func (p *plan) earlier(ref string) (int, error) {
	at := p.stageOf(ref)
	if n, err := strconv.Atoi(ref); err == nil {
		if at = n; at < 0 {
			at = len(p.stages)
		}
	}
	if at >= len(p.stages)-1 {
		return none, errors.New("no stage before this one")
	}
	return at, nil
}

// needed returns the stages that the target needs, itself included, in the order of the file.
func (p *plan) needed() []int {
	need := map[int]bool{p.target: true}
	for i := p.target; i >= 0; i-- { // a stage needs earlier ones only
		if !need[i] {
			continue
		}
		if after := p.stages[i].after; after != none {
			need[after] = true
		}
		for _, s := range p.stages[i].steps {
			for _, from := range s.from {
				need[from] = true // of none, nothing reads it
			}
		}
	}
	var list []int
	for i := range p.stages {
		if need[i] {
			list = append(list, i)
		}
	}
	return list
}

// script returns the text of a RUN in shell form with its here-documents, or its only word list. As
// with BuildKit, a single here-document is the script; otherwise the shell itself reads them.
func script(c *instructions.RunCommand) (words []string, err error) {
	if len(c.Files) == 0 {
		return c.CmdLine, nil
	}
	if !c.PrependShell || len(c.CmdLine) != 1 {
		return nil, errors.New("RUN: a here-document must follow a shell command")
	}
	line := c.CmdLine[0]
	alone, err := parser.ParseHeredoc(line)
	if err != nil || alone == nil {
		for _, doc := range c.Files {
			line += "\n" + doc.Data + doc.Name
		}
		return []string{line}, nil
	}
	line = c.Files[0].Data
	if alone.Chomp {
		line = parser.ChompHeredocContent(line)
	}
	if strings.HasPrefix(line, "#!") {
		return nil, sandbox.Hint(fmt.Errorf("RUN %s with #! is not supported",
			brief(c.CmdLine[0])), "name the program: RUN python3 <<EOF")
	}
	return []string{line}, nil
}

// known are the flags of instructions that are supported. Others come from BuildKit.
var known = map[string][]string{
	"ADD": {"--chown", "--chmod", "--link"}, "COPY": {"--chown", "--chmod", "--from", "--link"},
	"RUN": {"--mount"},
}

// checkFlags rejects flags that are not supported, and says what to write instead.
func checkFlags(instruction string, flags []string) error {
	supported, ok := known[instruction]
	for _, flag := range flags {
		name, value, _ := strings.Cut(flag, "=")
		if !ok || slices.Contains(supported, name) && (name != "--mount" || places(value)) {
			continue
		}
		return refused(instruction, flag)
	}
	return nil
}

// refused is the error of a flag that is not supported, with what to write instead.
func refused(instruction, flag string) error {
	name, _, _ := strings.Cut(flag, "=")
	hint := map[string]string{
		"RUN --network":  "steps use the network of the sandbox: --network",
		"COPY --parents": "use several instructions",
		"COPY --exclude": "list files to exclude in .dockerignore",
		"ADD --exclude":  "list files to exclude in .dockerignore",
		"ADD --checksum": "add RUN sha256sum -c after it",
		"RUN --mount":    "remove it, and use secrets in setup: instead",
	}[instruction+" "+name]
	return sandbox.Hint(fmt.Errorf("%s %s is not supported: images are built without BuildKit",
		instruction, brief(flag)), cmp.Or(hint, "remove it"))
}

// places reports whether the value of a --mount is of a type that is supported, or that a variable
// names.
func places(value string) bool {
	for field := range strings.SplitSeq(value, ",") {
		kind, ok := strings.CutPrefix(strings.ToLower(field), "type=")
		if ok && !strings.Contains(kind, "$") &&
			!slices.Contains([]string{"bind", "cache", "tmpfs"}, kind) {
			return false
		}
	}
	return true
}
