package client

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Address returns a function that finds the caller's address.
//
// hops is the number of proxies in front of this server, each of which appends the address of its peer to
// X-Forwarded-For. The function takes the hops-th address from the right, because the client controls those further
// left. If there are fewer, it takes the leftmost. With hops 0, without the header, or if the element is not an
// address, it returns the peer's address.
//
// The address has no port and no zone. An IPv4-mapped address becomes IPv4.
func Address(hops int) func(*http.Request) string {
	return func(r *http.Request) string {
		peer, ok := parseAddress(r.RemoteAddr)
		if !ok {
			peer = r.RemoteAddr // not from net/http's server
		}
		if hops <= 0 {
			return peer
		}
		if a, ok := parseAddress(fromRight(r.Header.Values("X-Forwarded-For"), hops)); ok {
			return a
		}
		return peer
	}
}

// fromRight returns the n-th element from the right of a list that may span several header lines, or the leftmost if
// there are fewer.
func fromRight(lines []string, n int) (found string) {
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; n-- {
			comma := strings.LastIndexByte(rest, ',')
			found = strings.TrimSpace(rest[comma+1:])
			if n == 1 {
				return found
			}
			if more = comma >= 0; more {
				rest = rest[:comma]
			}
		}
	}
	return found
}

// parseAddress parses an address with or without a port, and with or without brackets.
func parseAddress(s string) (string, bool) {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err != nil {
		host, _, splitErr := net.SplitHostPort(s)
		if splitErr != nil {
			return "", false
		}
		if a, err = netip.ParseAddr(host); err != nil {
			return "", false
		}
	}
	return a.Unmap().WithZone("").String(), true
}
