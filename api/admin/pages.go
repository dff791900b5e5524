package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/api"
)

// pageGuard protects the admin plane from web pages of other sites.
type pageGuard struct {
	origin *http.CrossOriginProtection
	// checkHosts means that Host must be an address, localhost or in hosts. A page can make its own host name resolve to this
	// machine (DNS rebinding). The browser then treats this node as part of that site, and only Host reveals it.
	checkHosts bool
	hosts      map[string]bool // in lower case
}

// newPageGuard returns the protection for a plane that listens on addr. On loopback it always checks host names, because there is
// usually no token. Elsewhere it checks them only if some are listed.
func newPageGuard(addr net.Addr, hosts []string) *pageGuard {
	p := &pageGuard{origin: http.NewCrossOriginProtection(), hosts: map[string]bool{"localhost": true}}
	tcp, ok := addr.(*net.TCPAddr)
	p.checkHosts = len(hosts) > 0 || ok && tcp.IP.IsLoopback()
	for _, name := range hosts {
		p.hosts[hostName(name)] = true
	}
	return p
}

// check returns the error if r must be refused, else nil.
func (p *pageGuard) check(r *http.Request) *api.Error {
	// An HTTP/1.0 client need not send a Host; browsers do.
	if p.checkHosts && r.Host != "" {
		host := hostName(r.Host)
		if _, err := netip.ParseAddr(host); err != nil && !p.hosts[host] {
			return api.Errorf(api.WrongHost, "the admin plane does not accept the host name %s, only addresses, localhost and the names given by --admin-host", api.Excerpt(strings.ToValidUTF8(host, "�")))
		}
	}
	if isDashboard(r.Pattern) {
		return nil // other sites may link to it
	}
	// What a page of another site only reads it can't see, but it learns how long that takes, and the work slows the node
	// down. The library lets reads pass, so it is asked about a write.
	write := r.WithContext(r.Context()) // a copy of r
	write.Method = http.MethodPost
	if p.origin.Check(write) != nil {
		return api.Errorf(api.CrossOrigin, "requests from pages of other origins are refused")
	}
	return nil
}

// isDashboard reports whether a route's pattern leads to the files of the dashboard.
func isDashboard(pattern string) bool { return pattern == "/" || pattern == "/ui" || pattern == "/ui/" }

// hostName returns the name or address in a Host header, in lower case, without port, brackets and trailing dot.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
