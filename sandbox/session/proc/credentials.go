//go:build linux

package proc

import "golang.org/x/sys/unix"

// credentials are those of this thread for file access, by which the kernel decides who may look
// into a process. With the target's own, no capability is needed to look at a program that has not
// changed its user.
type credentials struct {
	known    bool
	uid, gid int // of this process
	as       bool
}

// become takes the file access credentials of uid and gid, if this process may.
func (c *credentials) become(uid, gid int) {
	if !c.known {
		c.known, c.uid, c.gid = true, unix.Geteuid(), unix.Getegid()
	}
	if c.uid != 0 {
		return
	}
	if !c.as && uid == c.uid && gid == c.gid {
		return
	}
	// The group first: without the user it may be taken no more.
	_ = unix.Setfsuid(c.uid) // these calls report no errors; what comes of them restore finds out
	_ = unix.Setfsgid(gid)
	_ = unix.Setfsuid(uid)
	c.as = uid != c.uid || gid != c.gid
}

// restore gives the credentials back and reports whether that worked.
func (c *credentials) restore() bool {
	if !c.as {
		return true
	}
	_ = unix.Setfsuid(c.uid)
	_ = unix.Setfsgid(c.gid)
	c.as = false
	// A call with an invalid ID reports what is set.
	uid, _ := unix.SetfsuidRetUid(-1)
	gid, _ := unix.SetfsgidRetGid(-1)
	return uid == c.uid && gid == c.gid
}
