package sshd

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// spareFor is how long a spare is kept.
const spareFor = time.Minute

// spare is a session channel at a sandbox, and what a program without a terminal runs on there. A client that gives a second command may give a third:
// its spare is made while the second runs, and the third has to wait for neither.
type spare struct {
	channel  ssh.Channel
	requests <-chan *ssh.Request
	program  *connect.Program // of channel
	timer    *time.Timer
	spoiled  bool // after watched: the sandbox has closed it, or wanted something where nothing was started

	taken, watched chan struct{} // closed when it has been taken, and when nobody receives from requests any more
}

// prepare makes a spare, if there is none. It holds six descriptors: none is made where programs have half of what they may have.
func (u *upstream) prepare() {
	u.mu.Lock()
	wanted := u.spare == nil && !u.sparing && !connect.Crowded()
	u.sparing = u.sparing || wanted
	u.mu.Unlock()
	if !wanted {
		return
	}
	go func() { // ends with the connection
		channel, requests, err := u.openChannel(wire.ChannelSession, nil)
		if err != nil {
			u.spared(nil)
			return
		}
		program, _ := u.conn.Program(context.Background(), channel, false)
		s := &spare{channel: channel, requests: requests, program: program, taken: make(chan struct{}), watched: make(chan struct{})}
		if program == nil || !u.spared(s) {
			u.drop(s)
		}
	}()
}

// spared ends what is being done about a spare: with one, if s is not nil and the connection has not ended.
func (u *upstream) spared(s *spare) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s != nil {
		if u.over() || u.spare != nil {
			return false
		}
		u.spare = s
		s.timer = time.AfterFunc(spareFor, func() { u.lose(s) })
		go func() { // ends when s is taken
			defer close(s.watched)
			select {
			case <-s.requests:
				s.spoiled = true
				go u.lose(s)
			case <-s.taken:
			}
		}()
	}
	u.sparing = false
	return true
}

// lose drops s, unless it has been taken.
func (u *upstream) lose(s *spare) {
	u.mu.Lock()
	mine := u.spare == s
	if mine {
		u.spare, u.sparing = nil, true
	}
	u.mu.Unlock()
	if mine {
		s.take()
		u.drop(s)
	}
}

// hasSpare reports whether there is one, for whoever takes it first.
func (u *upstream) hasSpare() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.spare != nil
}

// takeSpare returns the spare, whose program its caller has to release; nil if there is none that can be used.
func (u *upstream) takeSpare() *spare {
	u.mu.Lock()
	s := u.spare
	if s != nil {
		u.spare, u.sparing = nil, true
	}
	u.mu.Unlock()
	if s == nil {
		return nil
	}
	s.take()
	select {
	case <-s.requests:
		s.spoiled = true
	default:
	}
	if !s.spoiled && s.program.Able() && !u.over() {
		u.spared(nil)
		return s
	}
	u.drop(s)
	return nil
}

// take ends what watches s.
func (s *spare) take() {
	s.timer.Stop()
	close(s.taken)
	<-s.watched
}

// drop closes s. Until the sandbox has closed it, too, there will be no other: the library keeps what it sent there, and it need never close it.
func (u *upstream) drop(s *spare) {
	if s.program != nil {
		s.program.Release()
	}
	go func() { // ends with the connection
		_ = s.channel.Close()
		ssh.DiscardRequests(s.requests)
		u.spared(nil)
	}()
}
