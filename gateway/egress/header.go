package egress

import "encoding/binary"

// vnetHeader precedes every packet of a device with IFF_VNET_HDR (struct virtio_net_hdr of
// linux/virtio_net.h), in the machine's byte order.
type vnetHeader struct {
	flags, gsoType                                    uint8
	headerLen, gsoSize, checksumStart, checksumOffset uint16
}

const (
	vnetHeaderLen = 10
	// The checksum at checksumStart + checksumOffset has only the pseudo-header's sum.
	vnetNeedsCsum = 1
	vnetGSOTCPv4  = 1
	maxPacket     = 65535
	queueLen      = 500 // packets that a device queues (TUN_READQ_SIZE of drivers/net/tun.c)
)

func (h vnetHeader) put(b *[vnetHeaderLen]byte) {
	b[0], b[1] = h.flags, h.gsoType
	binary.NativeEndian.PutUint16(b[2:], h.headerLen)
	binary.NativeEndian.PutUint16(b[4:], h.gsoSize)
	binary.NativeEndian.PutUint16(b[6:], h.checksumStart)
	binary.NativeEndian.PutUint16(b[8:], h.checksumOffset)
}
