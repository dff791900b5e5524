package httpd

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/rules"
)

const (
	authPrefix = "/v1/auth/"
	// maxAuthBody bounds how many bytes of an unexpected body are read to keep the connection open.
	maxAuthBody = 32 << 10
	// maxProfileName bounds a profile's name in a path, in bytes: 128, each of
	// which takes three if percent-encoded.
	maxProfileName = 3 * 128
)

// auth answers a proxy that asks whether a request of its own client may pass.
// The answer is a status and headers. If more of a path follows the profile's
// name, that part and the query belong to the request that the proxy asks
// about.
func (h *handlers) auth(x *exchange) *api.Error {
	// Permission is asked first of all, so that a token that may not ask learns
	// no profile's name.
	if e := x.token.NamespaceError(&x.check.Query); e != nil {
		return e
	}

	name, _, below := strings.Cut(x.path[len(authPrefix):], "/")
	deny := 0
	if !below {
		var e *api.Error
		deny, e = denyStatus(x.query)
		if e != nil {
			return e
		}
	}

	profile := h.profile(name)
	if profile == nil {
		return api.Errorf(api.NotFound, "there is no profile %q in the rules",
			api.Excerpt(strings.ToValidUTF8(name, "�")))
	}

	x.readHeaders(profile)
	if err := h.Decider.Check(&x.check.Query, &x.answer); err != nil {
		return h.explain(err)
	}

	x.compose(deny, true, h.node)
	x.observe()
	return nil
}

// profile returns the profile with a percent-encoded name, or nil if there is none.
func (h *handlers) profile(name string) *rules.Profile {
	if len(name) > maxProfileName {
		return nil
	}
	name, err := url.PathUnescape(name)
	if err != nil {
		return nil
	}
	return h.Decider.Rules().Profile(name)
}

// denyStatus returns the status for refusals that the query asks for, 400 to
// 499; 0 if it asks for none. The first one counts, because the rest of the
// query may belong to the request that the proxy asks about.
func denyStatus(query string) (int, *api.Error) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		value, ok := strings.CutPrefix(pair, "deny_status=")
		if !ok {
			continue
		}
		if len(value) != 3 || value[0] != '4' || value[1] < '0' || value[1] > '9' || value[2] < '0' || value[2] > '9' {
			return 0, api.Errorf(api.BadValue, "deny_status must be from 400 to 499")
		}

		return 400 + int(value[1]-'0')*10 + int(value[2]-'0'), nil
	}

	return 0, nil
}

// readHeaders sets the check's attributes from the request's headers, as profile says.
func (x *exchange) readHeaders(profile *rules.Profile) {
	c := &x.check
	for i := range profile.Sources {
		s := &profile.Sources[i]
		x.lines = x.lines[:0]
		for _, line := range x.header.PeekAll(s.Header) {
			x.lines = append(x.lines, codec.UnsafeString(line))
		}

		value, ok := s.Value(x.lines)
		switch {
		case !ok && s.Hops > 0:
			value = x.peerAddress()
			ok = true
		case ok && s.Fingerprint:
			from := len(x.values)
			x.values = rules.AppendFingerprint(x.values, value)
			value = codec.UnsafeString(x.values[from:])
		}

		if ok {
			c.Attributes = append(c.Attributes, rules.Attribute{Name: s.Attribute, Value: truncateValue(value)})
		}
	}
}

// truncateValue turns a header into a valid attribute: its first codec.MaxValue
// bytes, in UTF-8. An error would not help a proxy.
func truncateValue(value string) string {
	value = value[:min(len(value), codec.MaxValue)]
	if utf8.ValidString(value) {
		return value
	}
	return strings.ToValidUTF8(value, "?") // never longer than before
}

// peerAddress returns the address that the request came from.
func (x *exchange) peerAddress() string {
	tcp, ok := x.peer.(*net.TCPAddr)
	if !ok {
		return "unknown"
	}
	var a netip.Addr
	a, ok = netip.AddrFromSlice(tcp.IP)
	if !ok {
		return "unknown"
	}
	from := len(x.values)
	x.values = ipaddr.Canonical(a).AppendTo(x.values)
	return codec.UnsafeString(x.values[from:])
}
