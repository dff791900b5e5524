package main

import (
	"strings"
	"testing"
	"time"
)

const gossipKey = "c2l4dGVlbiBieXRlcyEhIQ==" // 16 bytes

// With TLS and a gossip key, a node without them can neither join nor read.
func TestStrangersStayOutside(t *testing.T) {
	cert, key := certificate(t)
	otherCert, otherKey := certificate(t)
	secure := []string{"--gossip-key", gossipKey, "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert}
	f := newFleet(t, 3, secure...)
	strangers := map[string][]string{
		"without anything":       nil,
		"with the key only":      {"--gossip-key", gossipKey},
		"with TLS only":          {"--tls-cert", cert, "--tls-key", key, "--tls-ca", cert},
		"with another key":       {"--gossip-key", "YW5vdGhlciBzaXh0ZWVuIQ==", "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert},
		"with another authority": {"--gossip-key", gossipKey, "--tls-cert", otherCert, "--tls-key", otherKey, "--tls-ca", otherCert},
	}
	i := 10
	var outside []*mate
	for what, args := range strangers {
		i++
		m := f.mate(i, 0, args...)
		seeds := []string{f.nodes[0].ip, f.nodes[1].ip}
		m.args = append(m.args, "--join", strings.Join(seeds, ","))
		m.name += " " + what
		m.up()
		outside = append(outside, m)
	}
	time.Sleep(5 * time.Second) // they try the whole time; there is nothing to wait for
	for _, m := range outside {
		if status, _, err := m.call("GET", m.data+"/readyz", "", ""); err != nil || status != 503 {
			t.Errorf("%s: have %d, %v, want 503", m.name, status, err)
		}
		if status, text, err := m.call("GET", m.admin+"/v1/rules", "", ""); err != nil || status == 200 {
			t.Errorf("%s reads the rules: %d, %v, %s", m.name, status, err, text)
		}
	}
	for _, m := range f.nodes {
		c, err := m.cluster()
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range c.Members {
			known := one.Name == "n1" || one.Name == "n2" || one.Name == "n3"
			if !known && (one.InRing || one.Voter || one.Partitions > 0) {
				t.Errorf("%s has let the stranger %s in: %+v", m.name, one.Name, one)
			}
		}
	}
}
