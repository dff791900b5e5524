package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// fromPage reports whether a page in a browser sent a request of the data plane, which serves none. Browsers say so in two
// headers that pages can't change. Every POST of a page has an Origin, so that alone keeps pages from spending quota, also of a
// name that leads to this node by DNS rebinding. Sec-Fetch-Site marks requests that have none, such as those of links and images. Two of
// its values pass: none is a person who typed the address, and same-origin needs a page of this node's.
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

// pages keeps pages of other sites from the admin plane.
type pages struct {
	origin *http.CrossOriginProtection
	// named: only hosts that are addresses, localhost or in hosts are answered. A page can make its own name lead to this
	// machine; the browser takes this node for a part of that site then, and only the name in Host tells.
	named bool
	hosts map[string]bool // in lower case
}

// newPages makes what protects the plane that listens at addr. On loopback there is mostly no token. Elsewhere names are only
// looked at where some are listed.
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
	// A client of HTTP/1.0 need not say a host; browsers do.
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

// refuseCostly refuses also reads of other sites' pages: of what a page can't see, but slows the node down.
func (p *pages) refuseCostly(r *http.Request) *Error {
	write := r.WithContext(r.Context()) // a copy
	write.Method = http.MethodPost
	if p.origin.Check(write) != nil {
		return errorf(CrossOrigin, "a profile for a page of another origin is refused")
	}
	return nil
}

// hostName is the name or address in a Host header, without port, brackets and the last dot, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
