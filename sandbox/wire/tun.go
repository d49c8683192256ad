package wire

// The network device of a sandbox whose packets the daemon carries. The guest makes it, with these addresses, and passes its
// descriptor to the daemon (SCM_RIGHTS, unix(7)) beside one byte, on a connection that it then holds for as long as it lives. The device is IFF_TUN, IFF_NO_PI and IFF_VNET_HDR with a header of ten bytes.
const (
	TunName = "tun0"
	TunMTU  = 1500
)

// Its addresses, in network order.
var (
	TunGuest = [4]byte{100, 64, 0, 2} // the sandbox's own address
	TunDNS   = [4]byte{100, 64, 0, 1} // where it finds names
	TunMask  = [4]byte{255, 255, 255, 252}
)
