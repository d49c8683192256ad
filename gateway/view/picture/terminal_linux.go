package picture

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long a terminal may take to answer: one of this machine, and one at the other end of an ssh connection.
const (
	near = 200 * time.Millisecond
	far  = time.Second
)

// usualCell is the width of a character, in pixels, where the terminal does not say how wide it is.
const usualCell = 10

// Terminal is the terminal of a person who sits at this program.
type Terminal struct {
	In, Out *os.File
	Env     func(string) string // os.Getenv

	patience time.Duration // 0 is near or far
}

// Ask finds out by which protocol the terminal draws. It asks only a terminal at which this program is in the foreground, waits no longer than
// 200 ms, or a second where SSH_CONNECTION or SSH_TTY says that the terminal is elsewhere, and leaves its modes as they were. A terminal
// that has not answered by then draws nothing. Nobody else may read In meanwhile.
//
// typed is what a person typed meanwhile. keep says that the caller has use for it. If it does not, a terminal at which something has been
// typed before is not asked: it would be lost.
func (t Terminal) Ask(keep bool) (p Protocol, typed []byte) {
	in := int(t.In.Fd())
	before, err := unix.IoctlGetTermios(in, unix.TCGETS)
	if _, noOut := unix.IoctlGetTermios(int(t.Out.Fd()), unix.TCGETS); err != nil || noOut != nil || silent(t.Env) || !foreground(in) {
		return None, nil
	}
	// Each byte as it comes, and none of the answers shown. ^C and line ends work as ever. TCSETS, not TCSETSF, which would throw away what
	// was typed.
	asking := *before
	asking.Lflag &^= unix.ICANON | unix.ECHO
	asking.Cc[unix.VMIN], asking.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(in, unix.TCSETS, &asking); err != nil {
		return None, nil
	}
	defer func() { _ = unix.IoctlSetTermios(in, unix.TCSETS, before) }() // nobody is left to be told
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

// Width is how many pixels wide the terminal is, or may be taken to be; 0 where nobody knows.
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

// foreground says whether this program may read the terminal, and change its modes: one in the background is stopped for that.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// readable waits until there is something to read.
func readable(fd int, within time.Duration) bool {
	for end := time.Now().Add(within); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, max(0, int((time.Until(end)+time.Millisecond-1)/time.Millisecond)))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n > 0 && poll[0].Revents&unix.POLLIN != 0
	}
}
