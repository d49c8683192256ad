package page

import (
	"bufio"
	"context"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

const (
	maxTable  = 4 << 20 // bytes of a table of connections that are read
	listenTCP = "0A"    // TCP_LISTEN (Linux, include/net/tcp_states.h)
)

// listPorts answers with the ports on which programs of a running sandbox listen.
func (h *Handler) listPorts(w http.ResponseWriter, r *http.Request) {
	conn, err := h.connect(r)
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })() // a guest may never answer
	files, err := connect.OpenFiles(conn.Client())
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	defer files.Close()
	found := make(map[int]bool)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		// Without one of them, such as on macOS, people type the port.
		if f, err := files.Open(table); err == nil {
			listening(f, found)
			_ = f.Close()
		}
	}
	rest.WriteJSON(w, http.StatusOK, map[string]any{"ports": slices.Sorted(maps.Keys(found))})
}

// listening adds the ports in a table of Linux's connections that a client on the loopback
// interface can reach. The table is /proc/net/tcp or tcp6 (proc(5)), which a hostile sandbox may
// have replaced.
func listening(table io.Reader, to map[int]bool) {
	// The size of files in /proc is 0: this reads to the end.
	for lines := bufio.NewScanner(io.LimitReader(table, maxTable)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != listenTCP {
			continue
		}
		address, port, _ := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if addr, ok := tableAddr(address); ok && err == nil && n > 0 &&
			(addr.IsUnspecified() || addr.IsLoopback()) {
			to[int(n)] = true
		}
	}
}

// tableAddr parses an address of the table: words of 32 bits, of which each has its bytes in the
// order of the machine. Those that a sandbox runs on are little-endian.
func tableAddr(text string) (netip.Addr, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b)%4 != 0 {
		return netip.Addr{}, false
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr.Unmap(), ok
}
