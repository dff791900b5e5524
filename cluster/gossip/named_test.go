package gossip

import (
	"net/netip"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestHowManyNodesSeedsName(t *testing.T) {
	t.Parallel()
	at := func(list ...string) (out []netip.AddrPort) {
		for _, s := range list {
			out = append(out, netip.MustParseAddrPort(s))
		}
		return out
	}
	const self = "10.0.0.1:7946"
	for _, test := range []struct {
		name  string
		seeds [][]netip.AddrPort
		want  int
	}{
		{"none", nil, 1},
		{"two others", [][]netip.AddrPort{at("10.0.0.2:7946"), at("10.0.0.3:7946")}, 3},
		{"this node as well", [][]netip.AddrPort{at(self), at("10.0.0.2:7946")}, 2},
		{"one twice", [][]netip.AddrPort{at("10.0.0.2:7946"), at("10.0.0.2:7946")}, 2},
		{"one address, several ports", [][]netip.AddrPort{at("10.0.0.1:7001"), at("10.0.0.1:7002")}, 3},
		{"a name of all", [][]netip.AddrPort{at(self, "10.0.0.2:7946", "10.0.0.3:7946")}, 3},
		{"names with an address of each family",
			[][]netip.AddrPort{at("10.0.0.2:7946", "[fd00::2]:7946"), at("10.0.0.3:7946", "[fd00::3]:7946")},
			3},
		{"a name that can't be resolved", [][]netip.AddrPort{nil, at("10.0.0.2:7946")}, 3},
	} {
		expect.Equal(t, countNamed(test.seeds, netip.MustParseAddrPort(self)), test.want, "%s", test.name)
	}
}
