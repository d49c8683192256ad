// Package attack has attacks by root in a sandbox, with the tools of a complete Debian, against its
// PID 1 and against this machine. [Suite] runs them on a backend, with real commands over SSH. Only
// tests import it, on Linux.
package attack
