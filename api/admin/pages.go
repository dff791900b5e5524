package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/api"
)

// pages keeps pages of other sites away from the admin plane.
type pages struct {
	origin *http.CrossOriginProtection
	// named means that only hosts that are addresses, localhost or in hosts are answered. A page can make its own name lead
	// to this machine. The browser then takes this node for part of that site, and only the name in Host gives it away.
	named bool
	hosts map[string]bool // in lower case
}

// newPages makes the protection for the plane that listens at addr. On loopback names are always checked, because there
// is usually no token. Elsewhere they are checked only if some are listed.
func newPages(addr net.Addr, hosts []string) *pages {
	p := &pages{origin: http.NewCrossOriginProtection(), hosts: map[string]bool{"localhost": true}}
	tcp, ok := addr.(*net.TCPAddr)
	p.named = len(hosts) > 0 || ok && tcp.IP.IsLoopback()
	for _, name := range hosts {
		p.hosts[hostName(name)] = true
	}
	return p
}

// refuse returns why r is not answered, nil if it is.
func (p *pages) refuse(r *http.Request) *api.Error {
	// An HTTP/1.0 client need not send a Host; browsers do.
	if p.named && r.Host != "" {
		host := hostName(r.Host)
		if _, err := netip.ParseAddr(host); err != nil && !p.hosts[host] {
			return api.Errorf(api.WrongHost, "the admin plane is asked for as %s, and answers to addresses and to localhost; a name of this node's is told to it by --admin-host", api.Excerpt(strings.ToValidUTF8(host, "�")))
		}
	}
	if p.origin.Check(r) != nil {
		return api.Errorf(api.CrossOrigin, "a write from a page of another origin is refused")
	}
	return nil
}

// refuseCostly refuses even reads from pages of other sites: a page can't see the result, but the work slows the node
// down.
func (p *pages) refuseCostly(r *http.Request) *api.Error {
	write := r.WithContext(r.Context()) // a copy
	write.Method = http.MethodPost
	if p.origin.Check(write) != nil {
		return api.Errorf(api.CrossOrigin, "a profile for a page of another origin is refused")
	}
	return nil
}

// hostName returns the name or address in a Host header, without port, brackets and the trailing dot, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
