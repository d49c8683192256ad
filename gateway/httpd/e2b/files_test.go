package e2b

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// A download whose client does not read keeps only a few pieces of the file in memory.
func TestDownloadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		asked := 0 // of the server's goroutine, until synctest.Wait
		go func() {
			defer theirs.Close()
			asked = serveEndless(theirs)
		}()
		files, err := connect.NewFiles(ours, filesOptions...)
		if err != nil {
			t.Fatal(err)
		}
		f, err := files.Open("/large")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = f.WriteTo(io.Discard) }() // ends with the connection
		synctest.Wait()
		_ = files.Close()
		synctest.Wait()
		// The client requests one piece before that.
		if most := filesAtOnce + 1; asked < 2 || asked > most {
			t.Errorf("%d pieces are asked for at once, want several, and at most %d", asked, most)
		}
	})
}

// serveEndless is an SFTP server (draft-ietf-secsh-filexfer-02) of one endless file, whose data it
// never sends. It counts read requests until the client is gone.
func serveEndless(rw io.ReadWriter) (reads int) {
	const initialize, version, open, read, fstat, stat, handle, attrs = 1, 2, 3, 5, 8, 17, 102, 105
	for {
		var head [5]byte
		if _, err := io.ReadFull(rw, head[:]); err != nil {
			return reads
		}
		rest := make([]byte, binary.BigEndian.Uint32(head[:])-1)
		if _, err := io.ReadFull(rw, rest); err != nil {
			return reads
		}
		var answer []byte
		switch head[4] {
		case initialize:
			answer = []byte{version, 0, 0, 0, 3}
		case open:
			answer = append(append([]byte{handle}, rest[:4]...), 0, 0, 0, 1, 'h')
		case fstat, stat:
			// Size and permissions follow.
			answer = append(append([]byte{attrs}, rest[:4]...), 0, 0, 0, 5)
			answer = binary.BigEndian.AppendUint64(answer, 1<<40)
			answer = binary.BigEndian.AppendUint32(answer, 0o100644)
		case read:
			reads++
			continue
		default:
			continue
		}
		if _, err := rw.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))),
			answer...)); err != nil {
			return reads
		}
	}
}
