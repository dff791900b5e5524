package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what a node tells others about itself: gossip carries at most 512 bytes of it.
const (
	maxRegion = 64 // bytes of a region's and of a zone's name
	maxJoin   = 64 // addresses in --join, and in --wan-join
	// maxExpect bounds --bootstrap-expect: a cluster has at most five voters.
	maxExpect = 5
)

// completeCluster checks the settings of the cluster, and fills in those that follow from others.
func (c *serveCmd) completeCluster() []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, checkSeeds("--join", c.Join)...)
	if c.BootstrapExpect == 0 && len(c.Join) == 0 {
		c.BootstrapExpect = 1
	}
	if c.BootstrapExpect < 0 || c.BootstrapExpect > maxExpect {
		wrong("--bootstrap-expect: %d is not in 1…%d", c.BootstrapExpect, maxExpect)
	}
	errs = append(errs, c.completeRegions()...)
	errs = append(errs, c.completeProtection()...)
	if c.Advertise == "" {
		bind, _ := netip.ParseAddr(c.ClusterBind) // completeProtection has complained
		c.Advertise = advertised(bind)
	}
	if ip, err := netip.ParseAddr(c.Advertise); err != nil || ip.IsUnspecified() {
		wrong("--advertise: %q is not an IP address that others could reach", c.Advertise)
	}
	return errs
}

// completeRegions checks what is said of regions and zones. Rules are written in this region if nothing else is said.
func (c *serveCmd) completeRegions() []error {
	if c.PrimaryRegion == "" {
		c.PrimaryRegion = c.Region
	}
	errs := checkSeeds("--wan-join", c.WANJoin)
	for flag, name := range map[string]string{"--region": c.Region, "--primary-region": c.PrimaryRegion, "--zone": c.Zone} {
		if len(name) > maxRegion || !utf8.ValidString(name) || strings.ContainsFunc(name, unprintable) || flag != "--zone" && name == "" {
			errs = append(errs, fmt.Errorf("%s: %.80q is not a name of at most %d bytes", flag, name, maxRegion))
		}
	}
	return errs
}

// checkSeeds checks the addresses of a flag.
func checkSeeds(flag string, seeds []string) (errs []error) {
	if len(seeds) > maxJoin {
		errs = append(errs, fmt.Errorf("%s: more than %d addresses", flag, maxJoin))
	}
	for _, seed := range seeds {
		if err := checkSeed(seed); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		}
	}
	return errs
}

// checkSeed checks host[:port].
func checkSeed(seed string) error {
	host, port := seed, ""
	if _, err := netip.ParseAddr(seed); err != nil && strings.Contains(seed, ":") {
		if host, port, err = net.SplitHostPort(seed); err != nil {
			return fmt.Errorf("%q is not host[:port]", seed)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("%q has the port %q, which is not in 1…65535", seed, port)
		}
	}
	if host == "" || strings.ContainsAny(host, " /") {
		return fmt.Errorf("%q names no host", seed)
	}
	return nil
}

// advertised is the address that others would reach a listener at: the one it is bound to, or, bound to all, the
// first of the machine's that is not its own affair.
func advertised(bind netip.Addr) string {
	if bind.IsValid() && !bind.IsUnspecified() {
		return bind.String()
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() && p.Addr().Is4() {
			return p.Addr().String()
		}
	}
	return "127.0.0.1"
}
