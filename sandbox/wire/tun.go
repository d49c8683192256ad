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

// ProxyAddress is where, inside, programs of a sandbox that has no such device find a proxy, HTTP and SOCKS5 alike: the daemon listens there by
// tcpip-forward on a connection of its own.
const ProxyAddress = "127.0.0.1:3128"

// ProxyEnv are the variables that tell programs of it. Some heed the upper case, some the lower, node only with one of its own.
func ProxyEnv() []string {
	var env []string
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} {
		env = append(env, name+"=http://"+ProxyAddress)
	}
	for _, name := range []string{"all_proxy", "ALL_PROXY"} {
		env = append(env, name+"=socks5h://"+ProxyAddress)
	}
	for _, name := range []string{"no_proxy", "NO_PROXY"} {
		env = append(env, name+"=localhost,127.0.0.1,::1")
	}
	return append(env, "NODE_USE_ENV_PROXY=1")
}
