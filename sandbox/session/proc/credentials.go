//go:build linux

package proc

import "golang.org/x/sys/unix"

// credentials are the current thread's credentials for file access. The kernel checks them before
// it lets a thread inspect a process. With the target's own credentials, no capability is needed to
// inspect a program that has not changed its user.
type credentials struct {
	known    bool
	uid, gid int // of this process
	as       bool
}

// become takes the file access credentials of uid and gid, if this process is root.
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
	// Set the group while the user is root: any other user may not change it.
	_ = unix.Setfsuid(c.uid) // these calls return no errors; restore checks the result
	_ = unix.Setfsgid(gid)
	_ = unix.Setfsuid(uid)
	c.as = uid != c.uid || gid != c.gid
}

// restore takes our own credentials back and reports whether that worked.
func (c *credentials) restore() bool {
	if !c.as {
		return true
	}
	_ = unix.Setfsuid(c.uid)
	_ = unix.Setfsgid(c.gid)
	c.as = false
	// A call with an invalid ID returns the current ID.
	uid, _ := unix.SetfsuidRetUid(-1)
	gid, _ := unix.SetfsgidRetGid(-1)
	return uid == c.uid && gid == c.gid
}
