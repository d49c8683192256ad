package gateway

import (
	"context"
	"crypto/rand"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// linkPrefix begins the name of a principal that a link stands for, which is linkPrefix, random
// letters, "@" and the owner of the sandbox. It has no key: it logs in only with the token in the
// link.
const linkPrefix = "link-"

// Link shares one of p's sandboxes with a new principal, who may watch its sessions and read its
// records. It is for a token in a link that people pass on. Unshare ends it.
func (s *Sessions) Link(ctx context.Context, p Principal, name string) (principal string,
	err error) {
	sb, err := s.hub.mine(p, name, "sharing")
	if err != nil {
		return "", err
	}
	principal = linkPrefix + strings.ToLower(rand.Text()[:8]) + "@" + p.Name
	if !validPrincipal(principal) {
		return "", wire.Errorf(wire.CodeUsage, "the name %s is too long for a link", p.Name)
	}
	_, err = sb.Share(ctx, p.Name, principal, wire.RightWatch)
	return principal, err
}

// LinkOf returns the principal who made a link, if principal is that of a link.
func LinkOf(principal string) (maker string, ok bool) {
	if m := linkName.FindStringSubmatch(principal); m != nil {
		return m[1], true
	}
	return "", false
}

// linkName matches what Link makes, and hardly another name.
var linkName = regexp.MustCompile(`^` + linkPrefix + `[a-z2-7]{8}@(.+)$`)
