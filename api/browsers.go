package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// fromPage reports whether a page in a browser sent a request to the data plane, which serves no pages. Browsers reveal
// that in two headers that pages can't change. Every POST of a page has an Origin. That alone keeps pages from spending
// quota, even pages whose name leads to this node by DNS rebinding. Sec-Fetch-Site marks requests without an Origin,
// such as those of links and images. Two of its values pass: none is a person who typed the address, and same-origin
// needs a page from this node.
func fromPage(h headerLines) bool {
	if len(h.PeekAll("Origin")) > 0 {
		return true
	}
	for _, value := range h.PeekAll("Sec-Fetch-Site") {
		if site := view(value); site != "none" && site != "same-origin" {
			return true
		}
	}
	return false
}

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
func (p *pages) refuse(r *http.Request) *Error {
	// An HTTP/1.0 client need not send a Host; browsers do.
	if p.named && r.Host != "" {
		host := hostName(r.Host)
		if _, err := netip.ParseAddr(host); err != nil && !p.hosts[host] {
			return errorf(WrongHost, "the admin plane is asked for as %s, and answers to addresses and to localhost; a name of this node's is told to it by --admin-host", excerpt(strings.ToValidUTF8(host, "�")))
		}
	}
	if p.origin.Check(r) != nil {
		return errorf(CrossOrigin, "a write from a page of another origin is refused")
	}
	return nil
}

// refuseCostly refuses even reads from pages of other sites: a page can't see the result, but the work slows the node
// down.
func (p *pages) refuseCostly(r *http.Request) *Error {
	write := r.WithContext(r.Context()) // a copy
	write.Method = http.MethodPost
	if p.origin.Check(write) != nil {
		return errorf(CrossOrigin, "a profile for a page of another origin is refused")
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
