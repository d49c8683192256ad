package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The classes of answers that a caller of the fault matrix receives.
const (
	answeredDone    = "done"    // the call was made, to its end
	answeredLost    = "lost"    // it may have been made
	answeredRefused = "refused" // it was not made
	// any other answer, such as the signal that ended the command
	answeredOther = "other"
)

// answer is the answer to the call of one caller.
type answer struct {
	class string
	text  string // as the caller read it
	at    time.Time
	late  time.Duration // after it was due
}

func answerOf(class, text string) answer {
	return answer{class: class, text: text, at: time.Now()}
}

// caller is one way to make a call in a sandbox. prepare opens what the call needs. It returns the
// call, which appends the tag to the round's file, and a function that closes what it opened.
type caller struct {
	name    string
	session bool // the call is made in a session of its own, which has the caller's name
	prepare func(ctx context.Context, r *faultRound) (call func(context.Context) answer,
		done func(), err error)
}

var callers = []caller{
	{"run", true, func(ctx context.Context, r *faultRound) (func(context.Context) answer, func(),
		error) {
		return r.inTable(ctx, "run", "--json", "-n", r.target("run"), "--", r.command("run"))
	}},
	{"type", true, func(ctx context.Context, r *faultRound) (func(context.Context) answer, func(),
		error) {
		if err := r.asks(ctx, "type"); err != nil {
			return nil, nil, err
		}
		return r.inTable(ctx, "type", "--json", "-n", r.target("type"), "--", r.secret("type"))
	}},
	{"keys", true, func(ctx context.Context, r *faultRound) (func(context.Context) answer, func(),
		error) {
		if err := r.asks(ctx, "keys"); err != nil {
			return nil, nil, err
		}
		return r.inTable(ctx, append([]string{"keys", "--json", "-n", r.target("keys"), "--"},
			r.presses("keys")...)...)
	}},
	{"exec", false, func(ctx context.Context, r *faultRound) (func(context.Context) answer, func(),
		error) {
		return r.inTable(ctx, "exec", r.sandbox, "--", r.command("exec"))
	}},
	{"mcp", true, byMCP},
	{"e2b", false, byE2B},
	{"library", true, byLibrary},
}

// inTable makes the call with a command: in the phase before over SSH, so that the fault comes
// close to its start, and otherwise with the command line tool.
func (r *faultRound) inTable(ctx context.Context, words ...string) (func(context.Context) answer,
	func(), error) {
	if r.phase != before {
		return func(ctx context.Context) answer {
			cmd := r.f.m.command(words...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				return answerOf(answeredOther, err.Error())
			}
			defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
			err := cmd.Wait()
			if err != nil && !errors.As(err, new(*exec.ExitError)) {
				return answerOf(answeredOther, err.Error())
			}
			return ofTable(words[0], said{cmd.ProcessState.ExitCode(), out.String(), errs.String()})
		}, func() {}, nil
	}
	c, err := r.f.m.client(ctx, "sandboxd")
	if err != nil {
		return nil, nil, err
	}
	if _, err := ask(ctx, c, "version"); err != nil { // connects
		return nil, nil, err
	}
	return func(ctx context.Context) answer {
		s, err := ask(ctx, c, text.Quote(words...))
		if err != nil {
			return ofConnection(err)
		}
		return ofTable(words[0], s)
	}, func() { c.Close() }, nil
}

// ofConnection returns the class of a call whose connection failed.
func ofConnection(err error) answer {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return answerOf(answeredRefused, err.Error())
	}
	return answerOf(answeredLost, "connection: "+err.Error())
}

// ofTable returns the class of the output of a command.
func ofTable(verb string, s said) answer {
	text := fmt.Sprintf("%d %s%s", s.code, s.out, s.err)
	if verb != "exec" {
		var res agent.Result
		if err := json.Unmarshal([]byte(s.out), &res); err == nil && res.Ended != "" {
			return ofResult(res)
		}
		var failed struct{ Error *wire.Error }
		if err := json.Unmarshal([]byte(s.out), &failed); err == nil && failed.Error != nil {
			return ofError(failed.Error)
		}
		return answerOf(answeredOther, text)
	}
	switch {
	case s.code == 0:
		return answerOf(answeredDone, text)
	case strings.Contains(s.err, "it may have run"),
		strings.Contains(s.err, "lost during the call"):
		return answerOf(answeredLost, text)
	case s.code == wire.ExitFailed && strings.Contains(s.err, "sandboxd: ") &&
		!strings.Contains(s.err, "internal error"):
		return answerOf(answeredRefused, text)
	}
	return answerOf(answeredOther, text)
}

func ofResult(res agent.Result) answer {
	why := ""
	if res.Error != nil {
		why = fmt.Sprintf("%s %s: %s", res.Error.Code, res.Error.Reason, res.Error.Message)
	}
	text := fmt.Sprintf("%s: %s", res.Ended, why)
	switch res.Ended {
	case agent.EndedDone, agent.EndedWaiting:
		return answerOf(answeredDone, text)
	case agent.EndedLost:
		return answerOf(answeredLost, text)
	case agent.EndedRefused:
		return answerOf(answeredRefused, text)
	}
	return answerOf(answeredOther, text)
}

func ofError(e *wire.Error) answer {
	text := fmt.Sprintf("error: %s %s: %s", e.Code, e.Reason, e.Message)
	switch {
	case e.Code == wire.CodeLost && e.Reason != "":
		return answerOf(answeredLost, text)
	case e.Code == wire.CodeInternal:
		return answerOf(answeredOther, text)
	}
	return answerOf(answeredRefused, text)
}

// byMCP calls the tool run: in the phase before on the daemon's own server, and otherwise with
// sandboxd mcp.
func byMCP(ctx context.Context, r *faultRound) (func(context.Context) answer, func(), error) {
	var transport mcp.Transport
	close := func() {}
	if r.phase == before {
		conn, err := r.f.m.sshConn(r.sandbox)
		if err != nil {
			return nil, nil, err
		}
		close = func() { conn.Close() }
		session, err := conn.NewSession()
		if err != nil {
			return nil, nil, err
		}
		in, err := session.StdinPipe()
		if err != nil {
			return nil, nil, err
		}
		out, err := session.StdoutPipe()
		if err != nil {
			return nil, nil, err
		}
		if err := session.RequestSubsystem("mcp"); err != nil {
			return nil, nil, err
		}
		transport = &mcp.IOTransport{Reader: io.NopCloser(out), Writer: in}
	} else {
		transport = &mcp.CommandTransport{Command: r.f.m.command("mcp", "-n", r.sandbox)}
	}
	s, err := mcp.NewClient(&mcp.Implementation{Name: "faults", Version: "1"}, nil).Connect(ctx,
		transport, nil)
	if err != nil {
		close()
		return nil, nil, err
	}
	return func(ctx context.Context) answer {
		res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "run",
			Arguments: map[string]any{"command": r.command("mcp"), "session": "mcp"}})
		if err != nil {
			return ofConnection(err)
		}
		var got agent.Result
		text, _ := json.Marshal(res.StructuredContent)
		if err := json.Unmarshal(text, &got); err != nil || got.Ended == "" {
			all, _ := json.Marshal(res)
			return answerOf(answeredOther, string(all))
		}
		return ofResult(got)
	}, func() { s.Close(); close() }, nil
}

// sshConn logs in as user.
func (m *machine) sshConn(user string) (*ssh.Client, error) {
	key, err := os.ReadFile(m.at.Identity)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return nil, err
	}
	known, err := knownhosts.New(m.at.KnownHosts)
	if err != nil {
		return nil, err
	}
	return ssh.Dial("tcp", m.at.SSH, &ssh.ClientConfig{User: user,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: known, HostKeyAlgorithms: []string{ssh.KeyAlgoED25519}})
}

// byLibrary calls Shell.Run.
func byLibrary(ctx context.Context, r *faultRound) (func(context.Context) answer, func(), error) {
	c, err := r.f.m.client(ctx, r.sandbox)
	if err != nil {
		return nil, nil, err
	}
	sh, err := c.Shell(ctx, "library")
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return func(ctx context.Context) answer {
		res, err := sh.Run(ctx, r.command("library"))
		known, _ := errors.AsType[*wire.Error](err)
		switch {
		case res.Ended != "":
			return ofResult(res)
		case known != nil:
			return ofError(known)
		}
		return ofConnection(err)
	}, func() { sh.Close(); c.Close() }, nil
}

// byE2B starts a command as E2B's SDKs do, and reads its end.
func byE2B(ctx context.Context, r *faultRound) (func(context.Context) answer, func(), error) {
	secret, err := os.ReadFile(*r.f.m.at.TokenFile)
	if err != nil {
		return nil, nil, err
	}
	base := *r.f.m.at.HTTP + "/e2b"
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(ctx context.Context, path, contents string, body []byte,
		headers ...string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path,
			bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", contents)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		return client.Do(req)
	}
	res, err := post(ctx, "/sandboxes/"+r.sandbox+"/connect", "application/json",
		[]byte(`{"timeout":600}`), "X-API-Key", strings.TrimSpace(string(secret)))
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	var made struct {
		Access string `json:"envdAccessToken"`
	}
	if err := json.NewDecoder(res.Body).Decode(&made); err != nil || made.Access == "" {
		return nil, nil, fmt.Errorf("connect by E2B's API: %w", cmp.Or(err, errors.New(res.Status)))
	}
	start := func(ctx context.Context, command string) (*http.Response, error) {
		message, err := json.Marshal(map[string]any{"process": map[string]any{"cmd": "/bin/bash",
			"args": []string{"-c", command}}, "stdin": false})
		if err != nil {
			return nil, err
		}
		body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
		return post(ctx, "/process.Process/Start", "application/connect+json", body,
			"Connect-Protocol-Version", "1", "E2b-Sandbox-Id", r.sandbox, "X-Access-Token",
			made.Access)
	}
	// from now on it has a connection to the sandbox
	if res, err := start(ctx, "true"); err != nil {
		return nil, nil, err
	} else if a := ofE2B(res); a.class != answeredDone {
		return nil, nil, fmt.Errorf("a command by E2B's API: %s", a.text)
	}
	return func(ctx context.Context) answer {
		res, err := start(ctx, r.command("e2b"))
		if err != nil {
			return ofConnection(err)
		}
		return ofE2B(res)
	}, client.CloseIdleConnections, nil
}

// ofE2B reads the answer to Start: an error, or events until the process ends.
func ofE2B(res *http.Response) answer {
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		class := answeredRefused
		if res.StatusCode == http.StatusInternalServerError {
			class = answeredOther
		}
		return answerOf(class, fmt.Sprintf("%s %s", res.Status, text))
	}
	begun := false
	var end *answer
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, head); err != nil {
			return ofConnection(err)
		}
		text := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(res.Body, text); err != nil {
			return ofConnection(err)
		}
		if head[0]&2 == 0 {
			var m struct {
				Event struct {
					Start *struct{}
					End   *struct {
						ExitCode int
						Exited   bool
						Status   string
					}
				}
			}
			if err := json.Unmarshal(text, &m); err != nil {
				return answerOf(answeredOther, string(text))
			}
			begun = begun || m.Event.Start != nil
			if e := m.Event.End; e != nil {
				a := answerOf(answeredOther, string(text))
				switch {
				case e.Exited && e.ExitCode == 0:
					a.class = answeredDone
				case e.Status == "lost":
					a.class = answeredLost
				}
				end = &a
			}
			continue
		}
		if end != nil {
			return *end
		}
		var m struct {
			Error struct{ Code, Message string }
		}
		_ = json.Unmarshal(text, &m) // the text has the answer
		a := answerOf(answeredRefused, string(text))
		switch {
		case m.Error.Code == "aborted", begun:
			a.class = answeredLost
		case m.Error.Code == "internal", m.Error.Code == "":
			a.class = answeredOther
		}
		return a
	}
}
