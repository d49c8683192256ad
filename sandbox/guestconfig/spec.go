package guestconfig

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ValidID matches the ID of an instance: a DNS label of at most 32 characters.
var ValidID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

var validUser = regexp.MustCompile(
	`^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_.][A-Za-z0-9_.-]{0,31})?$`)

// Bounds of a spec.
const (
	maxEnv    = 256       // variables
	maxEnvLen = 256 << 10 // bytes, in total: they reach the guest in one line
)

// Check checks spec as far as that needs no engine, but for its image, and returns it with the
// defaults that need none.
func Check(spec sandbox.Spec) (sandbox.Spec, error) {
	if !ValidID.MatchString(spec.ID) {
		return spec, fmt.Errorf("id %q is not a DNS label of at most 32 characters", spec.ID)
	}
	switch spec.Network {
	case "":
		spec.Network = sandbox.NetworkNone
	case sandbox.NetworkNone, sandbox.NetworkBridge, sandbox.NetworkFiltered,
		sandbox.NetworkAllowlist:
	default:
		return spec, fmt.Errorf("network %q: must be none, filtered, allowlist or bridge",
			spec.Network)
	}
	switch {
	case spec.Via == "":
	case !spec.Network.Carried():
		return spec, fmt.Errorf("network %s: the daemon does not carry it, so it cannot use %s",
			spec.Network, spec.Via)
	case spec.Via != sandbox.ViaTUN && spec.Via != sandbox.ViaProxy:
		return spec, fmt.Errorf("network %s=%s: must be tun or proxy", spec.Network, spec.Via)
	}
	switch spec.Entrypoint {
	case sandbox.EntrypointSession, sandbox.EntrypointOff:
	default:
		return spec, fmt.Errorf("entrypoint %q: must be empty or off", spec.Entrypoint)
	}
	switch spec.Trust {
	case "", sandbox.TrustHost, sandbox.TrustImage:
	default:
		return spec, fmt.Errorf("trust %q: must be host or image", spec.Trust)
	}
	if spec.User != "" && !validUser.MatchString(spec.User) {
		return spec, fmt.Errorf("user %q: must be a name or uid[:gid]", spec.User)
	}
	if err := CheckEnv(spec.Env); err != nil {
		return spec, err
	}
	if err := checkVolume(spec.Volume); err != nil {
		return spec, err
	}
	return spec, spec.Limits.Check()
}

// minVolume is the least size of a volume, in bytes.
const minVolume = 1 << 20

// checkVolume checks a volume. Its directory must not hide what the guest needs.
func checkVolume(v sandbox.Volume) error {
	if v == (sandbox.Volume{}) || v.Size >= minVolume && v.Path == "" {
		return nil
	}
	if v.Size < minVolume {
		return fmt.Errorf("volume of %s: must be at least %s", sandbox.FormatSize(v.Size),
			sandbox.FormatSize(minVolume))
	}
	if !path.IsAbs(v.Path) || path.Clean(v.Path) != v.Path || strings.ContainsAny(v.Path, ":\x00") {
		return fmt.Errorf("volume at %q: not a clean absolute path", v.Path)
	}
	for _, dir := range []string{"/", "/dev", "/etc", "/proc", "/run", "/sys"} {
		if v.Path == dir || dir != "/" && strings.HasPrefix(v.Path, dir+"/") {
			return fmt.Errorf("volume at %s: not below %s", v.Path, dir)
		}
	}
	return nil
}

// CheckEnv checks variables, each K=V.
func CheckEnv(env []string) error {
	if len(env) > maxEnv {
		return fmt.Errorf("%d variables; at most %d are allowed", len(env), maxEnv)
	}
	size := 0
	for _, kv := range env {
		size += len(kv)
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "":
			return fmt.Errorf("variable %.40q is not NAME=VALUE", kv)
		case strings.ContainsRune(kv, 0):
			return fmt.Errorf("variable %.40q contains a NUL byte", name)
		case size > maxEnvLen:
			return fmt.Errorf("variables: more than %d bytes in total", maxEnvLen)
		}
	}
	return nil
}

// DefaultPath is the PATH that engines give a container whose image has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// TrustVariables point common programs to the certificate authorities: pip, for one, ignores
// SSL_CERT_FILE.
var TrustVariables = []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT",
	"NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
	"CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO"}

// MergeEnv returns base with the variables of more, which override those of the same name.
func MergeEnv(base, more []string) []string {
	out := slices.Clone(base)
	for _, kv := range more {
		name, _, _ := strings.Cut(kv, "=")
		at := slices.IndexFunc(out, func(have string) bool {
			return strings.HasPrefix(have, name+"=")
		})
		if at < 0 {
			out = append(out, kv)
		} else {
			out[at] = kv
		}
	}
	return out
}

// bundles are the usual paths of trusted certificate authorities as one PEM file.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Arch, Gentoo
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/ssl/cert.pem",                                 // Alpine
}

// FindBundle returns the file with the certificate authorities of this machine: configured, or the
// first of the usual ones; "" if there is none.
func FindBundle(configured string) (string, error) {
	if configured != "" {
		if _, err := os.Stat(configured); err != nil {
			return "", fmt.Errorf("certificate bundle: %w", err)
		}
		return configured, nil
	}
	for _, path := range bundles {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			return path, nil
		}
	}
	return "", nil
}

// ReadBundle returns the certificate authorities in a file of FindBundle, for a guest that writes
// them itself.
func ReadBundle(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("certificate bundle: %w", err)
	}
	if !strings.HasSuffix(string(text), "\n") {
		text = append(text, '\n')
	}
	return string(text), nil
}
