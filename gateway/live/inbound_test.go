package live

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestInboundBounds gives what a hostile guest may say in one frame: little of it is kept.
func TestInboundBounds(t *testing.T) {
	long := strings.Repeat("é", wire.MaxFrame/2)
	argv := make([]string, 1<<16)
	for i := range argv {
		argv[i] = "xx"
	}
	basis := make([]wire.Basis, 1<<16)
	st := wire.State{Phase: wire.Phase(long), Want: wire.Want(long), Signal: long, Reason: long,
		Cwd: long, Foreground: &wire.Process{Argv: argv},
		Prompt: long, Attention: long, Basis: basis, Disputed: []wire.Basis{wire.Basis(long)},
		LastLine: long}
	for name, v := range map[string]any{
		"state": inboundState(st),
		"event": inboundEvent(wire.Event{Kind: wire.EventKind(long), State: &st, By: long, Keyboard: long, ID: long, Text: long, Op: long, Why: wire.Ended(long)}),
		"info":  inboundInfo(wire.SessionInfo{Name: long, State: st, Keyboard: long, Parties: make([]wire.Party, 1<<12), Argv: []string{long, long}, Private: long}),
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 64<<10 {
			t.Errorf("%s: %d bytes are kept", name, len(b))
		}
		if !utf8.Valid(b) || strings.ContainsRune(string(b), utf8.RuneError) {
			t.Errorf("%s: half a character is kept", name)
		}
	}
}

// TestInboundHonest leaves what an honest guest says as it is.
func TestInboundHonest(t *testing.T) {
	code := 3
	e := wire.Event{Seq: 7, Kind: wire.EventState, Offset: 9, By: "agent:alice",
		Op: strings.Repeat("a", 32), Text: strings.Repeat("x", 4<<10) + "…", ExitCode: &code,
		State: &wire.State{Phase: wire.PhaseWaiting, Foreground: &wire.Process{Pid: 4,
			Argv: []string{"apt-get", "install", "toilet"}}, Prompt: "[Y/n] ",
			Basis: []wire.Basis{wire.BasisProcess, wire.BasisMark}, Cwd: "/root"}}
	want, _ := json.Marshal(e)
	if got, _ := json.Marshal(inboundEvent(e)); string(got) != string(want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The daemon alone knows what became of a sandbox: a guest's word for it is not believed.
func TestGuestGivesNoReason(t *testing.T) {
	at := wire.Target{Sandbox: "demo", Session: "main"}
	for _, reason := range daemonReasons {
		r := wire.Reply{Error: wire.LostError(reason, "forged"),
			Result: wire.LostResult(at, wire.LostError(reason, "forged"))}
		if changed := InboundReply(&r); !changed || r.Error.Reason != "" ||
			r.Result.Error.Reason != "" || slices.Contains(r.Result.Notes, reason) {
			t.Errorf("%s: error %+v, result %+v", reason, r.Error, r.Result)
		}
	}
	for _, reason := range inboundReasons {
		r := wire.Reply{Error: wire.LostError(reason, "")}
		if InboundReply(&r) || r.Error.Reason != reason {
			t.Errorf("%s: %+v", reason, r.Error)
		}
	}
}
