package dockerfile

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// request is a build of a Dockerfile in a directory.
func request(t *testing.T, text string, files map[string]string) Request {
	t.Helper()
	return Request{Dockerfile: []byte(text), Name: "Dockerfile", Context: directory(t, files),
		Arch: "amd64", Spool: t.TempDir(), Progress: func(string) {}}
}

// Whatever is not carried out as written is an error with its line.
func TestRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                                                        "no instructions",
		"RUN true":                                                "Dockerfile:1: no FROM instruction",
		"FROM base\nADD http://x/y /z":                            "Dockerfile:2: ADD http://x/y: fetching is not supported",
		"FROM base\nADD git@x:y /z":                               "fetching is not supported",
		"FROM base\nADD $U /z":                                    "fetching is not supported",
		"FROM base\nONBUILD ADD ftp://x /y":                       "fetching is not supported",
		"FROM trap":                                               "image trap: ONBUILD ADD http://169.254.169.254/ /x: ADD http://169.254.169.254/: fetching",
		"FROM base\nCOPY --from=none /a /b":                       "no such image: none",
		"FROM base\nCOPY --from=$X /a /b":                         "without variables",
		"FROM base\nONBUILD COPY --from=base /a /b":               "--from is not supported in an ONBUILD",
		"FROM base\nONBUILD RUN --mount=type=x y":                 "RUN --mount=type=x is not supported",
		"FROM none":                                               "no such image: none",
		"FROM $NOTHING":                                           "the image has no name",
		"FROM base other":                                         "Dockerfile:1: FROM",
		"FROM --platform=linux/s390x base":                        "sandboxes here run linux/amd64",
		"FROM base\nRUN --mount=type=ssh x":                       "Dockerfile:2: RUN --mount=type=ssh is not supported: images are built without BuildKit",
		"FROM base\nRUN --network=host x":                         "RUN --network=host is not supported",
		"FROM base\nRUN --mount=x <<E\na\nE":                      "invalid field 'x' must be a key=value pair",
		"FROM base\nRUN --mount=target=/ x":                       "--mount: the target is /",
		"FROM base\nRUN --mount=target=/b,source=b x":             "b: no such file in the build context",
		"FROM base\nRUN --mount=type=cache x":                     "--mount: the target is /",
		"FROM base\nRUN --mount=type=cache,from=base,target=/x x": "--mount=type=cache: from and size",
		"FROM base\nRUN --mount=type=tmpfs,size=9,target=/x x":    "--mount=type=tmpfs: from and size",
		"FROM base\nRUN --mount=type=$T,target=/x x":              "RUN --mount=type=secret is not supported",
		"FROM base\nRUN --mount=from=none,target=/x x":            "no such image: none",
		"FROM base\nRUN --mount=from=$X/y,target=/x x":            "doesn't support variable expansion",
		"FROM base\nRUN --mount=from=0,target=/x x":               "Dockerfile:2: RUN --mount=from=0: no stage before this one",
		"FROM base\nONBUILD RUN --mount=from=a,target=/x y":       "from is not supported in an ONBUILD",
		"FROM base\nRUN " + strings.Repeat("--mount=type=cache,target=/x ", maxSources+1) + "x": "more than 1000 sources",
		"FROM base\nCOPY --chmod=u+x a /b":                                         "--chmod=u+x: want an octal number",
		"FROM base\nCOPY --chown=$W a /b":                                          "",
		"FROM base\nADD --checksum=1 a /b":                                         "ADD --checksum=1 is not supported",
		"FROM base\nRUN <<E\n#!/bin/a\nE\n":                                        "Dockerfile:2: RUN <<E with #! is not supported",
		"FROM base\nRUN <<E\n\xff\nE\n":                                            "is not valid UTF-8",
		"FROM base\nRUN x\x00y":                                                    "is not valid UTF-8",
		"FROM base\nRUN <<E\nx\n":                                                  "unterminated heredoc",
		"FROM base\nLABEL sandboxd.x=1":                                            "reserved for sandboxd",
		"FROM base\nCOPY --from=7 /a /b":                                           "COPY --from=7: no stage before this one",
		"FROM base\nCOPY --from=-1 /a /b":                                          "no stage before this one",
		"FROM base AS me\nCOPY --from=me /a /b":                                    "no stage before this one",
		"FROM base\nLABEL sand\\boxd.x=1":                                          "reserved for sandboxd",
		"FROM base\nENV A=" + strings.Repeat("x", 40000) + "\nENV B=$A$A":          "the text is too long",
		"FROM base\nENV A=" + strings.Repeat(strings.Repeat("x", 40000)+"\\\n", 2): "the text is too long",
		"ARG A=" + strings.Repeat("x", 60000) + "\nARG B=" + strings.Repeat("$A", 90) + "\nFROM base": "the text is too long",
		"FROM base\nENV A=" + strings.Repeat("x", 60000) + "\n" + strings.Repeat("LABEL a=$A\n", 100): "the text is too long",
		"FROM base\nENV A=" + strings.Repeat("x", 60000) + "\nENV B=$A C=$A D=$A E=$A":                "more than 262144 bytes",
		"FROM base\nENV A=" + strings.Repeat(strings.Repeat("${a:-", 10000)+"\\\n", 2):                "the text is too long",
		"FROM base\nCOPY " + strings.Repeat("a ", maxSources+1) + "/d/":                               "more than 1000 sources",
		"FROM base\nCOPY a /" + strings.Repeat("d", maxPath):                                          "a path is longer than 4096 bytes",
		"FROM many":                                         "ONBUILD: more than 400 instructions",
		"FROM base\nNONSENSE x":                             "Dockerfile:2: unknown instruction: NONSENSE",
		"FROM base\nRUN []":                                 "the command is empty",
		"FROM base\nCOPY nosuch /x":                         "Dockerfile:2: COPY nosuch /x: nosuch: no such file in the build context, or .dockerignore excludes it",
		"FROM base\nCOPY no*such /x":                        "no such file in the build context",
		"FROM base\n" + strings.Repeat("RUN x\n", maxSteps): "more than 400 instructions",
		"FROM base\n" + strings.Repeat("#", maxDockerfile):  "longer than 1048576 bytes",
	} {
		r := request(t, in, map[string]string{"a": "1"})
		r.Args = []string{"U=http://x/", "T=secret"}
		if strings.Contains(in, "$U") || strings.Contains(in, "$T") {
			r.Dockerfile = []byte(strings.Replace(in, "\n", "\nARG U\nARG T\n", 1))
		}
		_, err := Build(t.Context(), r, newFake())
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got error %v, want %q", in, err, want)
		}
	}
}

// Each error about a BuildKit feature has an alternative as its hint.
func TestHints(t *testing.T) {
	for line, want := range map[string]string{
		"RUN --mount=id=x,type=secret a": "setup:",
		"RUN --mount=type=SSH a":         "setup:",
		"RUN --network=none a":           "--network",
		"RUN --security=insecure a":      "remove it",
		"COPY --parents a b":             "several instructions",
		"COPY --exclude=x a b":           ".dockerignore",
		"ADD --checksum=x a b":           "sha256sum",
		"RUN <<E\n#!/bin/python\nE":      "RUN python3 <<EOF",
		"ADD https://x/y /z":             "RUN step",
	} {
		_, err := parse(request(t, "FROM base\n"+line, nil))
		if err == nil || !strings.Contains(sandbox.HintOf(err), want) {
			t.Errorf("%q: error %v, hint %q, want %q", line, err, sandbox.HintOf(err), want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("FROM base AS x\nRUN a \\\n b\nCOPY --from=x a b\n")
	f.Add("FROM base\nRUN <<E\na \\\nb\nE\nRUN x <<A <<-'B'\n\ta\nA\nb\n\tB\n")
	f.Add("FROM base AS a\nRUN --mount=type=cache,target=/c,uid=1 --mount=from=a,source=a,target=b x\n")
	f.Add("# escape=`\nFROM base\nADD [\"a\", \"b\"]\nONBUILD RUN x\n")
	f.Add("ARG A=1\nFROM base\nARG A\nENV B=$A C=${B:-x}\nCOPY <<E /x\n$B\nE\nFROM 0\n")
	f.Fuzz(func(t *testing.T, in string) {
		r := request(t, in, map[string]string{"a": "1"})
		p, err := parse(r)
		if err != nil {
			return
		}
		for _, i := range p.needed() {
			if i > p.target {
				t.Errorf("%q: stage %d is needed for stage %d", in, i, p.target)
			}
		}
		_, _ = Build(t.Context(), r, newFake())
	})
}
