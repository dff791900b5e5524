package client

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Address returns a function that finds out who asks.
//
// hops is how many proxies stand between the world and this server, each of which appends the address it was asked from
// to X-Forwarded-For: the hops-th address from the right is taken, since those further left are whatever the client
// wrote. If there are fewer, the leftmost is taken. With 0 hops, without the header, and where what it has is no address,
// it is the peer's address.
//
// The address has no port and no zone, and an IPv4-mapped one is IPv4.
func Address(hops int) func(*http.Request) string {
	return func(r *http.Request) string {
		peer, ok := parseAddress(r.RemoteAddr)
		if !ok {
			peer = r.RemoteAddr // of a server that isn't net/http's
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

// fromRight returns the n-th element from the right of a list that stands in several header lines, the leftmost if there
// are fewer.
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

// parseAddress reads an address with or without a port, and with or without brackets.
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
