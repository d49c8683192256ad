package e2b

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

type startRequest struct {
	Process processConfig `json:"process"`
	PTY     *ptyConfig    `json:"pty"`
	Tag     *string       `json:"tag"`
	Stdin   *bool         `json:"stdin"`
}

type ptyConfig struct {
	Size struct {
		Cols uint32 `json:"cols"`
		Rows uint32 `json:"rows"`
	} `json:"size"`
}

// selector names a process by number or tag.
type selector struct {
	PID uint32  `json:"pid"`
	Tag *string `json:"tag"`
}

type selected struct {
	Process selector `json:"process"`
}

type input struct {
	Stdin []byte `json:"stdin"`
	PTY   []byte `json:"pty"`
}

// processAPI is envd's service Process. It handles commands and terminals.
type processAPI struct{ terminals *terminals }

// find returns the process that sel names.
func (pl *place) find(sel selector) (*process, error) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if p := pl.processes[sel.PID]; p != nil {
		return p, nil
	}
	if sel.Tag != nil {
		for _, p := range pl.processes {
			if p.tag != nil && *p.tag == *sel.Tag {
				return p, nil
			}
		}
	}
	return nil, noProcess(sel)
}

func noProcess(sel selector) error {
	return &apiError{http.StatusNotFound, fmt.Sprintf("process with pid %d not found", sel.PID)}
}

// startProcess starts a command and streams its output until it ends. The command keeps running
// when the client disconnects. The deadline of the call kills it, with or without a client.
func (pa *processAPI) startProcess(ctx context.Context, v *visit, req *startRequest,
	say *sender[said]) error {
	if req.PTY != nil {
		return pa.terminals.startTerminal(ctx, v, req, say)
	}
	p, l, err := v.begin(ctx, req.Process, req.Tag, req.Stdin == nil || *req.Stdin)
	if err != nil {
		return err
	}
	defer p.leave(l)
	if err := say.out.Send(&said{event{Start: &startEvent{p.pid}}}); err != nil {
		return err
	}
	return say.each(ctx, l.events, keepalive, isEnd)
}

// connectProcess streams the output of a process from now on.
func (pa *processAPI) connectProcess(ctx context.Context, v *visit, req *selected,
	say *sender[said]) error {
	if isTerminal(req.Process) {
		return pa.terminals.connectTerminal(ctx, v, req.Process, say)
	}
	p, err := v.find(req.Process)
	if err != nil {
		return err
	}
	l := p.listen()
	if l == nil {
		return noProcess(req.Process)
	}
	defer p.leave(l)
	if err := say.out.Send(&said{event{Start: &startEvent{p.pid}}}); err != nil {
		return err
	}
	return say.each(ctx, l.events, keepalive, isEnd)
}

type processInfo struct {
	Config processConfig `json:"config"`
	PID    uint32        `json:"pid"`
	Tag    *string       `json:"tag,omitzero"`
}

type processes struct {
	All []processInfo `json:"processes"`
}

// listProcesses lists commands started through this API, and terminals.
func (pa *processAPI) listProcesses(ctx context.Context, v *visit, _ *empty) (*processes, error) {
	all, err := pa.terminals.list(ctx, v)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	for _, p := range v.processes {
		all = append(all, processInfo{Config: p.config, PID: p.pid, Tag: p.tag})
	}
	v.mu.Unlock()
	slices.SortFunc(all, func(a, b processInfo) int { return cmp.Compare(a.PID, b.PID) })
	return &processes{all}, nil
}

type updateRequest struct {
	selected
	PTY *ptyConfig `json:"pty"`
}

func (pa *processAPI) update(ctx context.Context, v *visit, req *updateRequest) (*empty, error) {
	if req.PTY == nil {
		return &empty{}, nil
	}
	if !isTerminal(req.Process) {
		if _, err := v.find(req.Process); err != nil {
			return nil, err
		}
		return nil, invalid("process %d has no terminal", req.Process.PID)
	}
	return &empty{}, pa.terminals.resize(ctx, v, req.Process, int(req.PTY.Size.Cols),
		int(req.PTY.Size.Rows))
}

type inputRequest struct {
	selected
	Input input `json:"input"`
}

func (pa *processAPI) sendInput(ctx context.Context, v *visit, req *inputRequest) (*empty, error) {
	return &empty{}, pa.input(ctx, v, req.Process, req.Input)
}

func (pa *processAPI) input(ctx context.Context, v *visit, sel selector, in input) error {
	if isTerminal(sel) {
		return pa.terminals.typeInto(ctx, v, sel, append(in.PTY, in.Stdin...))
	}
	p, err := v.find(sel)
	if err != nil {
		return err
	}
	if len(in.PTY) > 0 {
		return invalid("process %d has no terminal", p.pid)
	}
	return p.write(ctx, in.Stdin)
}

// inputEvent is a message of streamed input.
type inputEvent struct {
	Start *selected `json:"start"`
	Data  *struct {
		Input input `json:"input"`
	} `json:"data"`
	Keepalive *empty `json:"keepalive"`
}

func (pa *processAPI) streamInput(ctx context.Context, v *visit,
	in *connect.ClientStream[inputEvent]) error {
	leave, err := v.stream()
	if err != nil {
		return err
	}
	defer leave()
	var to *selector
	for in.Receive() {
		switch m := in.Msg(); {
		case m.Start != nil:
			to = &m.Start.Process
			if !isTerminal(*to) {
				if _, err := v.find(*to); err != nil {
					return err
				}
			}
		case m.Data != nil && to == nil:
			return invalid("input without a process: the first message must name one")
		case m.Data != nil:
			if err := pa.input(ctx, v, *to, m.Data.Input); err != nil {
				return err
			}
		}
	}
	return in.Err()
}

type signalRequest struct {
	selected
	Signal string `json:"signal"`
}

func (pa *processAPI) sendSignal(ctx context.Context, v *visit, req *signalRequest) (*empty,
	error) {
	name, ok := map[string]string{"SIGNAL_SIGKILL": "KILL", "SIGNAL_SIGTERM": "TERM"}[req.Signal]
	if !ok {
		return nil, invalid("signal must be SIGNAL_SIGKILL or SIGNAL_SIGTERM")
	}
	if isTerminal(req.Process) {
		return &empty{}, pa.terminals.endTerminal(ctx, v, req.Process)
	}
	p, err := v.find(req.Process)
	if err != nil {
		return nil, err
	}
	if err := p.signal(name); err != nil {
		return nil, noProcess(req.Process)
	}
	return &empty{}, nil
}

func (pa *processAPI) closeStdin(ctx context.Context, v *visit, req *selected) (*empty, error) {
	if isTerminal(req.Process) {
		return nil, invalid("a terminal's input cannot be closed: send ^D")
	}
	p, err := v.find(req.Process)
	if err != nil {
		return nil, err
	}
	select {
	case p.typing <- struct{}{}: // after earlier input
		defer func() { <-p.typing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := p.ch.CloseWrite(); err != nil {
		return nil, &wire.Error{Code: wire.CodeNotFound,
			Message: fmt.Sprintf("the input of process %d is closed", p.pid)}
	}
	return &empty{}, nil
}
