package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// procFacts is what /proc says of a process group of the sandbox, thread by thread: in which system
// call each is, and of what descriptors. pid is the group's leader as the sandbox numbers it. It is
// read on this machine: to ask the sandbox takes longer than many a wrong verdict lasts.
func procFacts(guest, pid int) string {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", guest))
	if err != nil {
		return err.Error()
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, dir := range dirs {
		if its, err := os.Readlink(dir + "/ns/pid"); err != nil || its != namespace {
			continue
		}
		// As the sandbox numbers them, innermost last (proc_pid_status(5)).
		status := read(dir + "/status")
		if inner(status, "NSpgid:") != strconv.Itoa(pid) {
			continue
		}
		fmt.Fprintf(&out, "process %s: %q, stat %s\n", inner(status, "NSpid:"),
			read(dir+"/cmdline"), read(dir+"/stat"))
		threads, _ := filepath.Glob(dir + "/task/*") // the pattern is well formed
		for _, t := range threads {
			fmt.Fprintf(&out, "  thread %s %s: syscall %s, wchan %s, schedstat %s, switches %s\n",
				inner(read(t+"/status"), "NSpid:"), read(t+"/comm"), read(t+"/syscall"),
				read(t+"/wchan"), read(t+"/schedstat"),
				inner(read(t+"/status"), "voluntary_ctxt_switches:"))
		}
		files, _ := filepath.Glob(dir + "/fd/*")
		for _, f := range files {
			to, err := os.Readlink(f)
			if err != nil {
				continue // closed since
			}
			fmt.Fprintf(&out, "  %s -> %s", filepath.Base(f), to)
			for line := range strings.Lines(read(filepath.Join(dir, "fdinfo", filepath.Base(f)))) {
				if strings.HasPrefix(line, "tfd:") || strings.HasPrefix(line, "tty-index:") ||
					strings.HasPrefix(line, "it_value:") {
					out.WriteString("; " + strings.TrimSpace(line))
				}
			}
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// inner is the last number of a line of a status file.
func inner(status, name string) string {
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return f[len(f)-1]
		}
	}
	return ""
}

// read is a file's text, or why there is none.
func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
