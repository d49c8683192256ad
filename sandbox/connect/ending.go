package connect

import "net"

// ending closes a connection before it tells its reader that it has ended. x/crypto gives up its channels when reading
// fails and closes the connection only then; a channel that is opened in between is sent, never answered, and waited for
// for ever. With the connection closed first, sending it fails.
type ending struct{ net.Conn }

func (c ending) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.Conn.Close()
	}
	return n, err
}
