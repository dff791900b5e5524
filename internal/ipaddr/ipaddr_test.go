package ipaddr

import (
	"net/netip"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestCanonical(t *testing.T) {
	for _, test := range []struct{ address, want string }{
		{"198.51.100.7", "198.51.100.7"},
		{"::ffff:198.51.100.7", "198.51.100.7"},
		{"::ffff:198.51.100.7%eth0", "198.51.100.7"},
		{"64:ff9b::198.51.100.7", "198.51.100.7"},
		{"64:ff9b::c633:6407%eth0", "198.51.100.7"},
		{"64:ff9b::", "0.0.0.0"},
		{"2002:c633:6407::", "198.51.100.7"},
		{"2002:c633:6407:ffff:1:2:3:4", "198.51.100.7"},

		{"::", "::"},
		{"::1", "::1"},
		{"::198.51.100.7", "::c633:6407"}, // IPv4-compatible: deprecated, and ::1 has this form, too
		{"::ffff:0:198.51.100.7", "::ffff:0:c633:6407"}, // the stateless translation of RFC 2765, which is obsolete
		{"64:ff9b::1:198.51.100.7", "64:ff9b::1:c633:6407"},
		// a network's own prefix, whose length only the network knows
		{"64:ff9b:1::198.51.100.7", "64:ff9b:1::c633:6407"},
		{"2001:db8::1%eth0", "2001:db8::1"},
		{"2003::1", "2003::1"},
	} {
		expect.Equal(t, Canonical(netip.MustParseAddr(test.address)).String(), test.want, "Canonical(%s)", test.address)
	}
	if got := Canonical(netip.Addr{}); got.IsValid() {
		t.Errorf("Canonical of no address: got %s", got)
	}
}

func TestCanonicalPrefix(t *testing.T) {
	for _, test := range []struct{ prefix, want string }{
		{"198.51.100.0/24", "198.51.100.0/24"},
		{"::ffff:0:0/96", "0.0.0.0/0"},
		{"::ffff:198.51.100.0/120", "198.51.100.0/24"},
		{"::ffff:198.51.100.0/95", "::ffff:198.51.100.0/95"},
		{"64:ff9b::198.51.100.0/120", "198.51.100.0/24"},
		{"64:ff9b::198.51.100.7/128", "198.51.100.7/32"},
		{"64:ff9b::/96", "64:ff9b::/96"},
		{"64:ff9b::/97", "0.0.0.0/1"},
		{"2002::/16", "2002::/16"},
		{"2002:c633:6400::/40", "198.51.100.0/24"},
		{"2002:c633:6407::/48", "198.51.100.7/32"},
		{"2002:c633:6407:1::/64", "198.51.100.7/32"},
		{"::/0", "::/0"},
		{"2001:db8::/32", "2001:db8::/32"},
	} {
		expect.Equal(t, CanonicalPrefix(netip.MustParsePrefix(test.prefix)).String(), test.want,
			"CanonicalPrefix(%s)", test.prefix)
	}
	if got := CanonicalPrefix(netip.Prefix{}); got.IsValid() {
		t.Errorf("CanonicalPrefix of no prefix: got %s", got)
	}
}
