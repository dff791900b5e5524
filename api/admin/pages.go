package admin

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
)

// pageGuard protects the admin plane from web pages of other sites.
type pageGuard struct {
	origin *http.CrossOriginProtection
	// checkHosts means that Host must be an address, localhost or in hosts. A page
	// can make its own host name resolve to this machine (DNS rebinding). The
	// browser then treats this node as part of that site, and only Host reveals it.
	checkHosts bool
	hosts      map[string]bool // in lower case
}

// newPageGuard returns the protection for a plane that listens on addr. On
// loopback it always checks host names, because there is usually no token.
// Elsewhere it checks them only if some are listed.
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
			return api.Errorf(api.WrongHost,
				"the admin plane does not accept the host name %s, only addresses, localhost and the names given by --admin-host",
				api.Excerpt(strings.ToValidUTF8(host, "�")))
		}
	}

	if isDashboard(r.Pattern) {
		return nil // other sites may link to it
	}

	// A page of another site can't see the answer to a read. But it learns how
	// long the read takes, and the work slows the node down. The library lets
	// reads pass, so check asks it about a write.
	write := r.WithContext(r.Context()) // a copy of r
	write.Method = http.MethodPost

	if p.origin.Check(write) != nil {
		return api.Errorf(api.CrossOrigin, "requests from pages of other origins are refused")
	}
	if isFromBrowser(r) && r.Method != http.MethodGet && r.Method != http.MethodHead {
		return checkPageWrite(r)
	}

	return nil
}

// pageHeader is a header that only the dashboard sends. No form and no link can
// add a header, and another page's script may do so only if the node permits
// it, which it never does.
const pageHeader = "Rlnode-Dashboard"

// isFromBrowser reports whether a browser sent r. Browsers add at least one of
// these headers to what is not a plain read, and no page can leave them out.
func isFromBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != ""
}

// checkPageWrite returns the error for a write that a browser sends, unless it
// is one that only the dashboard's page can send: with its header, and with a
// content type that no form has.
func checkPageWrite(r *http.Request) *api.Error {
	if r.Header.Get(pageHeader) == "" {
		return api.Errorf(api.CrossOrigin,
			"a browser may write only from the dashboard's page, which sends the header %s",
			pageHeader)
	}
	name, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || !slices.Contains(pageTypes[:], name) {
		return api.Errorf(api.CrossOrigin,
			"a browser may write only JSON or YAML: Content-Type must be application/json or application/yaml")
	}
	return nil
}

// pageTypes are the content types of what the dashboard writes.
var pageTypes = [...]string{codec.TypeJSON, typeYAML}

// isDashboard reports whether a route's pattern leads to the files of the dashboard.
func isDashboard(pattern string) bool { return pattern == "/" || pattern == "/ui" || pattern == "/ui/" }

// hostName returns the name or address in a Host header, in lower case, without
// port, brackets and trailing dot.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
