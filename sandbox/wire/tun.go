package wire

// The network device of a sandbox whose packets the daemon carries. The guest creates it with these
// addresses. It passes the file descriptor with one byte to the daemon (SCM_RIGHTS, unix(7)), on a
// connection that it keeps open. The device has the flags IFF_TUN, IFF_NO_PI and IFF_VNET_HDR, with
// a header of ten bytes.
const (
	TunName = "tun0"
	TunMTU  = 1500
)

// Addresses of the device, in network byte order.
var (
	TunGuest = [4]byte{100, 64, 0, 2} // the sandbox's own address
	TunDNS   = [4]byte{100, 64, 0, 1} // the DNS server
	TunMask  = [4]byte{255, 255, 255, 252}
)

// ProxyAddress is the address of an HTTP and SOCKS5 proxy in sandboxes without the device. The
// daemon listens there with tcpip-forward on a separate connection.
const ProxyAddress = "127.0.0.1:3128"

// ProxyEnv returns the environment variables for the proxy. Programs read upper or lower case
// names, and node needs another variable.
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
