package client

import (
	"net/http"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// Address returns a function that returns the address of a request's client.
//
// hops is the number of proxies in front of this server. Each appends the
// address of its peer to X-Forwarded-For. The function takes the hops-th
// element from the right, because the client controls those further left; if
// there are fewer, it takes the leftmost. If hops is 0, the header is missing,
// or the element is not an address, it returns the address of the peer.
//
// The address has no port and no zone. An address that embeds an IPv4 address,
// as in NAT64, becomes the IPv4 address.
func Address(hops int) func(*http.Request) string {
	return func(r *http.Request) string {
		if hops > 0 {
			if a, ok := ipaddr.Parse(fromRight(r.Header.Values("X-Forwarded-For"), hops)); ok {
				return a.String()
			}
		}
		if a, ok := ipaddr.Parse(r.RemoteAddr); ok {
			return a.String()
		}
		return r.RemoteAddr // r does not come from net/http's server
	}
}

// fromRight returns the n-th element from the right of a list that may span
// several header lines. If there are fewer, it returns the leftmost.
func fromRight(lines []string, n int) (found string) {
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; n-- {
			comma := strings.LastIndexByte(rest, ',')
			found = strings.TrimSpace(rest[comma+1:])
			if n == 1 {
				return found
			}
			more = comma >= 0
			if more {
				rest = rest[:comma]
			}
		}
	}

	return found
}
