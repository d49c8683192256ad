//go:build unix

package picture

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long a terminal may take to answer: on this machine, and at the other end of an ssh
// connection.
const (
	near = 200 * time.Millisecond
	far  = time.Second
)

// usualCell is the width of a character, in pixels, if the terminal does not report it.
const usualCell = 10

// Terminal is the terminal of the person who uses this program.
type Terminal struct {
	In, Out *os.File
	Env     func(string) string // os.Getenv

	patience time.Duration // 0 is the default
}

// Ask returns the protocol of the terminal. It asks only if this program is in the foreground of
// the terminal. It waits at most 200 ms, or a second if SSH_CONNECTION or SSH_TTY says that the
// terminal is remote, and leaves its modes unchanged. A terminal that has not answered by then
// draws nothing. No other code may read In meanwhile.
//
// typed is the input that a person typed meanwhile. keep says that the caller can use it. Otherwise
// a terminal with pending input is not asked, because the input would be lost.
func (t Terminal) Ask(keep bool) (p Protocol, typed []byte) {
	in := int(t.In.Fd())
	before, err := unix.IoctlGetTermios(in, getTermios)
	if _, noOut := unix.IoctlGetTermios(int(t.Out.Fd()), getTermios); err != nil || noOut != nil ||
		silent(t.Env) || !foreground(in) {
		return None, nil
	}
	// Read each byte immediately, and do not echo the answers. ^C and line ends work as usual.
	// TCSETS, not TCSETSF, which would discard typed input.
	asking := *before
	asking.Lflag &^= unix.ICANON | unix.ECHO
	asking.Cc[unix.VMIN], asking.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(in, setTermios, &asking); err != nil {
		return None, nil
	}
	// An error cannot be reported.
	defer func() { _ = unix.IoctlSetTermios(in, setTermios, before) }()
	if !keep && readable(in, 0) {
		return None, nil
	}
	if _, err := t.Out.WriteString(questions(t.Env)); err != nil {
		return None, nil
	}
	var came []byte
	for end := time.Now().Add(t.wait()); readable(in, time.Until(end)); {
		buf := make([]byte, 1024)
		n, err := unix.Read(in, buf)
		if n <= 0 || err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		came = append(came, buf[:n]...)
		if a, typed := read(came); a.device != nil {
			return a.protocol(t.Env), typed
		}
	}
	_, typed = read(came)
	return None, typed
}

func (t Terminal) wait() time.Duration {
	switch {
	case t.patience > 0:
		return t.patience
	case t.Env("SSH_CONNECTION") != "" || t.Env("SSH_TTY") != "":
		return far
	}
	return near
}

// Width returns the terminal's width in pixels, reported or estimated; 0 if unknown.
func (t Terminal) Width() int {
	size, err := unix.IoctlGetWinsize(int(t.Out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Xpixel > 0 {
		return int(size.Xpixel)
	}
	return int(size.Col) * usualCell
}

// foreground reports whether this program may read the terminal and change its modes: a background
// process would be stopped.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// readable waits until there is input.
func readable(fd int, within time.Duration) bool {
	for end := time.Now().Add(within); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, max(0,
			int((time.Until(end)+time.Millisecond-1)/time.Millisecond)))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n > 0 && poll[0].Revents&unix.POLLIN != 0
	}
}
