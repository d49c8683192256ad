package docker

import (
	"fmt"
	"strings"
	"testing"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
)

// fakeImages resolves base, other, and trap, an image with a trigger.
func fakeImages(ref string) (image, error) {
	switch ref {
	case "base", "other":
		return image{id: "sha256:" + ref}, nil
	case "ash":
		return image{id: "sha256:ash", config: dockerspec.DockerOCIImageConfig{
			DockerOCIImageConfigExt: dockerspec.DockerOCIImageConfigExt{Shell: []string{"/bin/ash",
				"-c"}}}}, nil
	case "trap":
		return image{id: "sha256:trap",
			config: dockerspec.DockerOCIImageConfig{
				DockerOCIImageConfigExt: dockerspec.DockerOCIImageConfigExt{
					OnBuild: []string{"ADD http://169.254.169.254/ /x"}}}}, nil
	}
	return image{}, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
}

func TestPinDockerfile(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"plain":         {"FROM base\nRUN make \\\n  # why\n  all\n", "FROM sha256:base\nLABEL made=1\nRUN make   all\n"},
		"stages":        {"FROM base AS One\nFROM one\nFROM scratch\nCOPY --from=One /a /b\nCOPY --from=0 /a /b\n", "FROM sha256:base AS One\nLABEL made=1\nFROM one\nLABEL made=1\nFROM scratch\nLABEL made=1\nCOPY --from=One /a /b\nCOPY --from=0 /a /b\n"},
		"copy of image": {"FROM base\nCOPY --chown=1 --from=other /a /b\n", "FROM sha256:base\nLABEL made=1\nCOPY --chown=1 --from=sha256:other /a /b\n"},
		"arguments":     {"ARG B=no\nARG T=oth${B}\nFROM $T\nFROM ${NONE:-base}\n", "ARG B=no\nARG T=oth${B}\nFROM sha256:other\nLABEL made=1\nFROM sha256:base\nLABEL made=1\n"},
		"lower case":    {"from base\nadd file /x\n", "FROM sha256:base\nLABEL made=1\nadd file /x\n"},
		"here-document": {"FROM base\nRUN <<EOF\necho \"a\"\n\techo $B \\\n\nEOF\nRUN x\n",
			"FROM sha256:base\nLABEL made=1\n" + `RUN ["/bin/sh","-c","echo \"a\"\n\techo $B \\\n\n"]` + "\nRUN x\n"},
		"without tabs": {"FROM base\nRUN <<-E\n\techo a\n\tE\n",
			"FROM sha256:base\nLABEL made=1\n" + `RUN ["/bin/sh","-c","echo a\n"]` + "\n"},
		"for a program": {"FROM base\nRUN python3 - <<'A' && cat <<B\nprint(1)\nA\nb\nB\n",
			"FROM sha256:base\nLABEL made=1\n" +
				`RUN ["/bin/sh","-c","python3 - \u003c\u003c'A' \u0026\u0026 cat \u003c\u003cB\nprint(1)\nA\nb\nB"]` + "\n"},
		"shells": {"FROM base AS One\nSHELL [\"bash\", \"-ec\"]\nFROM scratch\nRUN " +
			"<<E\na\nE\nFROM ONE\nRUN <<E\nb\nE\n" +
			"FROM ash\nRUN <<E\nc\nE\n",
			"FROM sha256:base AS One\nLABEL made=1\nSHELL [\"bash\", \"-ec\"]\n" +
				"FROM scratch\nLABEL made=1\n" + `RUN ["/bin/sh","-c","a\n"]` + "\n" +
				"FROM ONE\nLABEL made=1\n" + `RUN ["bash","-ec","b\n"]` + "\n" +
				"FROM sha256:ash\nLABEL made=1\n" + `RUN ["/bin/ash","-c","c\n"]` + "\n"},
		"escape": {"# escape=`\nFROM base\nRUN <<E\na `\n\\\nE\n",
			"# escape=`\nFROM sha256:base\nLABEL made=1\n" + "RUN [\"/bin/sh\",\"-c\",\"a `\\n\\\\\\n\"]\n"},
		"platform": {"FROM --platform=$BUILDPLATFORM base\n", "FROM sha256:base\nLABEL made=1\n"},
	} {
		args := []string{"B=er"}
		d, err := pinDockerfile([]byte(tt.in), "Dockerfile", "amd64", "made=1", args, fakeImages)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.TrimPrefix(d.out.String(), "# escape=\\\n"); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, tt.want)
		}
		if lines := strings.Count(d.out.String(), "\n") - 1; lines != len(d.steps) {
			t.Errorf("%s: %d instructions and %d names of steps", name, lines, len(d.steps))
		}
	}
}

// Instructions by which the engine would fetch something, or use another owner's image, are
// rejected with their line.
func TestPinDockerfileRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "no instructions",
		"RUN true":                         "no FROM instruction",
		"FROM base\nADD http://x/y /z":     "Dockerfile:2: ADD http://x/y: the engine would fetch that itself",
		"FROM base\nADD HTTP://x/y /z":     "would fetch that itself",
		"FROM base\nADD $U /z":             "would fetch that itself",
		"FROM base\nADD ht\"tp:\"//x/y /z": "would fetch that itself",
		"FROM base\nADD [\"http:\\/\\/x\", \"/z\"]":                       "would fetch that itself",
		"FROM base\nADD a \\\n http://x/y /z":                             "Dockerfile:2: ADD http://x/y",
		"FROM base\nADD git@x:y /z":                                       "would fetch that itself",
		"FROM base\nONBUILD ADD http://x /y":                              "would fetch that itself",
		"FROM trap":                                                       "image trap: ONBUILD ADD http://169.254.169.254/ /x: ADD http://169.254.169.254/: the engine would fetch",
		"FROM base\nCOPY --from=trap /a /b":                               "image trap: ONBUILD",
		"FROM base\nCOPY --from=none /a /b":                               "no such image: none",
		"FROM base\nCOPY --from=$X /a /b":                                 "without quotes and variables",
		"FROM base\nONBUILD COPY --from=base /a /b":                       "is not supported in ONBUILD",
		"FROM base\nONBUILD RUN --mount=type=x y":                         "is not supported in ONBUILD",
		"FROM base\nONBUILD RUN <<E\nx\nE\n":                              "ONBUILD with a here-document is not supported",
		"FROM none":                                                       "Dockerfile:1: no such image: none",
		"FROM $NOTHING":                                                   "the image has no name",
		"FROM base other":                                                 "FROM: want an image",
		"FROM --platform=linux/s390x base":                                "the engine runs linux/amd64",
		"FROM base\nRUN --mount=type=bind x":                              "Dockerfile:2: RUN --mount=type=bind is not supported: images are built without BuildKit",
		"FROM base\nRUN --network=host x":                                 "RUN --network=host is not supported",
		"FROM base\nRUN --mount=x <<E\na\nE":                              "RUN --mount=x is not supported",
		"FROM base\nCOPY --chmod=1 a /b":                                  "COPY --chmod=1 is not supported",
		"FROM base\nADD --checksum=1 a /b":                                "ADD --checksum=1 is not supported",
		"FROM base\nCOPY <<E /a\nx\nE\n":                                  "Dockerfile:2: COPY with a here-document is not supported",
		"FROM base\nADD <<E /a\nx\nE\n":                                   "ADD with a here-document is not supported",
		"FROM base\nRUN <<E\n#!/bin/a\nE\n":                               "Dockerfile:2: RUN <<E with #! is not supported",
		"FROM base\nRUN <<E\n\xff\nE\n":                                   "is not valid UTF-8",
		"FROM base\nRUN <<E\n\x00\nE\n":                                   "is not valid UTF-8",
		"FROM base\nRUN <<E\nx\n":                                         "unterminated heredoc",
		"FROM base\nRUN <<E\n" + strings.Repeat("x\n", maxLine/2) + "E\n": "longer than 65535 bytes",
		"FROM base\nRUN x\x00y":                                           "does not end with its line",
		// The builder drops it at the end of the file.
		"# escape=`\nFROM base\nRUN x `": "",
	} {
		_, err := pinDockerfile([]byte(in), "Dockerfile", "amd64", "made=1", nil, fakeImages)
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", in, err, want)
		}
	}
}

// Each error about a BuildKit feature has an alternative as its hint.
func TestUnsupportedHints(t *testing.T) {
	for line, want := range map[string]string{
		"RUN --mount=target=/x a":            "use COPY before",
		"RUN --mount=type=cache,target=/x a": "remove it",
		"RUN --mount=type=tmpfs a":           "delete temporary files",
		"RUN --mount=id=x,type=secret a":     "setup:",
		"RUN --network=none a":               "--network",
		"RUN --security=insecure a":          "remove it",
		"COPY --chmod=755 a b":               "RUN chmod",
		"COPY --link a b":                    "remove it",
		"COPY --parents a b":                 ".dockerignore",
		"ADD --checksum=x a b":               "sha256sum",
		"COPY <<E b\nE":                      "RUN cat <<EOF",
		"RUN <<E\n#!/bin/python\nE":          "RUN python3 <<EOF",
	} {
		_, err := pinDockerfile([]byte("FROM base\n"+line), "Dockerfile", "amd64", "made=1", nil,
			fakeImages)
		if err == nil || !strings.Contains(sandbox.HintOf(err), want) {
			t.Errorf("%q: error %v, hint %q, want %q", line, err, sandbox.HintOf(err), want)
		}
	}
}

func FuzzPinDockerfile(f *testing.F) {
	f.Add("FROM base AS x\nRUN a \\\n b\nCOPY --from=x a b\n")
	f.Add("FROM base\nRUN <<E\na \\\nb\nE\nRUN x <<A <<-'B'\n\ta\nA\nb\n\tB\n")
	f.Add("# escape=`\nFROM base\nADD [\"a\", \"b\"]\nONBUILD RUN x\n")
	f.Fuzz(func(t *testing.T, in string) {
		d, err := pinDockerfile([]byte(in), "Dockerfile", "amd64", "made=1", nil, fakeImages)
		if err != nil {
			return
		}
		if got := strings.Count(d.out.String(), "\n") - 1; got != len(d.steps) {
			t.Errorf("%q: %d lines for %d instructions:\n%s", in, got, len(d.steps), d.out.String())
		}
		// The builder reads the result as intended, and it contains nothing that is resolved later.
		numbers := func(ref string) (image, error) {
			if !strings.HasPrefix(ref, "sha256:") {
				t.Errorf("%q: image %q was left by its name:\n%s", in, ref, d.out.String())
			}
			return image{id: ref}, nil
		}
		if _, err := pinDockerfile(d.out.Bytes(), "Dockerfile", "amd64", "made=1", nil,
			numbers); err != nil {
			t.Errorf("%q became a Dockerfile that is rejected: %v\n%s", in, err, d.out.String())
		}
	})
}
