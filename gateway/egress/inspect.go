package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// inspection holds back the first data of a program on a connection to a listed name, until it is
// clear that it is for that name. One goroutine writes, another one hears.
type inspection struct {
	gate  *gate
	flow  *flow
	ended <-chan struct{} // closed when the flow has ended
	over  atomic.Bool

	// Owned by the writer.
	stage stage
	held  []byte
	said  string // server name in the first ClientHello
	sent  bool   // data was sent
	late  patience

	mu       sync.Mutex
	heard    []byte        // guarded by mu; first data of the server
	preludes int           // guarded by mu; each has an answer of one byte
	again    bool          // guarded by mu; the server asks for another ClientHello
	answered chan struct{} // closed when that is known
	known    bool          // guarded by mu; answered is closed
}

// stage is the next part to inspect.
type stage int

const (
	stageOpening stage = iota
	stageAnswer        // the server's, to a ClientHello
	stageAgain         // another ClientHello
)

const maxPreludes = 2 // PostgreSQL's two kinds of encryption

// whyUnknown is why a listed name does not allow a protocol that otherProtocol does not know.
const whyUnknown = "neither TLS nor HTTP, nor known by its first bytes: " +
	"a listed address opens it, a name does not"

// inspect starts the inspection of f, which is dialled and ends with ended. The caller closes it.
func (g *gate) inspect(f *flow, ended <-chan struct{}) *inspection {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := &inspection{gate: g, flow: f, ended: ended, answered: make(chan struct{})}
	i.over.Store(f.brokered || !g.policy.comparesNames(f.name, f.addr))
	return i
}

// write takes data of the program, and writes to the server what is allowed so far. An error is the
// server's, or says why the connection must end.
func (i *inspection) write(to io.Writer, b []byte) error {
	if i.over.Load() {
		return i.send(to, b)
	}
	if i.stage == stageOpening {
		i.late.begin(func() {
			i.flow.end(i.refuse(fmt.Sprintf("sent nothing readable in %v", openingTimeout), ""))
		})
	}
	i.held = append(i.held, b...)
	for len(i.held) > 0 {
		n, err := i.judge()
		if err != nil || n == 0 {
			return err
		}
		if err := i.send(to, i.held[:n]); err != nil {
			return err
		}
		i.held, i.sent = i.held[n:], true
	}
	i.held = nil
	return nil
}

func (i *inspection) send(to io.Writer, b []byte) error {
	n, err := to.Write(b)
	i.flow.sent.Add(int64(n))
	return err
}

// judge returns how many of the held bytes may be sent.
func (i *inspection) judge() (int, error) {
	switch i.stage {
	case stageOpening:
		return i.judgeOpening()
	case stageAnswer:
		// A server that asks for another ClientHello (RFC 8446, section 4.1.4) uses the name in
		// that one. A program may also send one unasked.
		select {
		case <-i.answered:
		case <-i.ended:
			return 0, errors.New("the connection has ended")
		case <-time.After(openingTimeout):
			return 0, fmt.Errorf("the server did not answer a ClientHello in %v", openingTimeout)
		}
		if i.mu.Lock(); !i.again {
			i.mu.Unlock()
			return i.pass(), nil
		}
		i.mu.Unlock()
		i.stage = stageAgain
	}
	return i.judgeAgain()
}

func (i *inspection) judgeOpening() (int, error) {
	if i.greeted() {
		return i.pass(), nil
	}
	what, said, size := readOpening(i.held)
	switch what {
	case openingPartial:
		return 0, nil
	case openingNamed:
		if !i.gate.says(i.flow, said) && i.gate.current().isBound(said, i.flow.port) {
			return 0, i.refuse("it is for "+said+", which a secret binds: connect to that name", "")
		}
		if !i.gate.says(i.flow, said) {
			return 0, i.refuse("it is for "+said+", which is "+notListed,
				entryText(said, i.flow.port))
		}
		if size > 0 {
			i.late.stop()
			i.stage, i.said = stageAnswer, said
			return size, nil
		}
		return i.pass(), nil
	case openingPrelude:
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.preludes++; i.preludes > maxPreludes {
			return 0, i.unnamed()
		}
		i.late.anew() // what follows has its own timeout
		return size, nil
	case openingOther:
		return i.pass(), nil
	case openingUnknown:
		return 0, i.refuse(whyUnknown, entryText(i.flow.addr.Addr().Unmap().String(), i.flow.port))
	}
	return 0, i.unnamed()
}

// judgeAgain allows what servers skip before the second ClientHello, and that one if it has the
// name of the first.
func (i *inspection) judgeAgain() (int, error) {
	switch i.held[0] {
	case recordHandshake:
		what, said, _ := readHello(i.held)
		switch {
		case what == openingPartial:
			return 0, nil
		case what != openingNamed:
			return 0, i.unnamed()
		case said != i.said:
			return 0, i.refuse("its second ClientHello is for "+said+", and not for "+i.said, "")
		}
		return i.pass(), nil
	case recordChange, recordAlert, recordApplication:
		// the last is early data, which the server drops
		const head = 5
		if len(i.held) < head {
			return 0, nil
		}
		size := head + int(binary.BigEndian.Uint16(i.held[3:]))
		if size > maxOpening {
			return 0, i.unnamed()
		}
		if len(i.held) < size {
			return 0, nil
		}
		return size, nil
	}
	return 0, i.unnamed()
}

// pass ends the inspection: all held bytes may be sent.
func (i *inspection) pass() int {
	i.late.stop()
	i.over.Store(true)
	return len(i.held)
}

// hear takes data of the server. No bytes mean its end.
func (i *inspection) hear(b []byte) {
	if i.over.Load() {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.heard = append(i.heard, b[:min(len(b), maxServerHello-len(i.heard))]...)
	if i.known {
		return
	}
	again, known := readAnswer(i.heard[min(i.preludes, len(i.heard)):])
	if known || len(b) == 0 || len(i.heard) == maxServerHello {
		i.again, i.known = again, true
		close(i.answered)
	}
}

// greeted reports whether the server spoke first, as servers of TLS and HTTP/1 do not. Those of
// HTTP/2 may send SETTINGS first (RFC 9113, section 3.4), and some answer a request that did not
// arrive in time.
func (i *inspection) greeted() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	const settings = 4 // the frame type, after the length
	switch {
	case i.sent || len(i.heard) < 5:
		return false
	case i.heard[0] == 0 && i.heard[3] == settings, string(i.heard[:5]) == "HTTP/":
		return false
	}
	return i.heard[0] < recordFirst || i.heard[0] > recordLast
}

// atEnd returns why the connection must end with an error: it ended before it named a server.
func (i *inspection) atEnd() error {
	if len(i.held) == 0 {
		return nil
	}
	return i.unnamed()
}

// close stops the timeout. write may run at the same time, or later.
func (i *inspection) close() { i.late.close() }

// patience is the timeout for a program to name the server of its connection. The zero value is
// ready to use. It may be closed while another goroutine begins it.
type patience struct {
	mu     sync.Mutex
	timer  *time.Timer // guarded by mu
	closed bool        // guarded by mu
}

// begin calls over after openingTimeout, unless it was begun before.
func (p *patience) begin(over func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil && !p.closed {
		p.timer = time.AfterFunc(openingTimeout, over)
	}
}

func (p *patience) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// anew stops it so that it can begin again.
func (p *patience) anew() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
}

// close stops it permanently.
func (p *patience) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
}

func (i *inspection) unnamed() error {
	return i.refuse("TLS or HTTP without a readable name of the server", "")
}

// refuse reports that the flow's data names another server. opens is the entry that would allow it.
func (i *inspection) refuse(why, opens string) error {
	r := refusal{why: why, opens: opens}
	i.gate.event(Event{Kind: KindRefused, Proto: i.flow.proto, Host: i.flow.name, Addr: i.flow.addr,
		Why: r.why, Opens: r.opens})
	return r
}

// says records the server name in f's data, and reports whether the policy allows it: the requested
// name, or another listed one.
func (g *gate) says(f *flow, said string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.said = said
	return said == f.name || g.policy.mayMean(said, f.port)
}
