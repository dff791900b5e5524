package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of a Config. A node's name, region and zone are in its gossip
// metadata, which has at most 512 bytes.
const (
	maxName          = 128     // bytes
	maxRegion        = 64      // bytes of a region's name and of a zone's
	maxJoin          = 64      // addresses
	maxExpect        = 5       // a cluster has at most five voters
	maxToken         = 4096    // bytes
	maxHost          = 253     // bytes
	MaxCounters      = 1 << 33 // counters in memory; their records alone take half a terabyte
	maxConnections   = 1 << 20 // each takes a file
	minReservations  = 1 << 20 // bytes
	maxReservations  = 1 << 40 // bytes
	maxUsageMonths   = 1200
	maxUsageSubjects = 30_000_000

	defaultCounters      = 10_000_000
	defaultUsageSubjects = 1_000_000
	defaultRegion        = "default"
)

// settings are a complete Config.
type settings struct {
	Config
	initialRules       *document.Document
	initialRulesAuthor string
}

// Validate returns all mistakes in c, each with the name of its field.
func (c Config) Validate() error {
	_, err := c.complete()
	return err
}

// complete fills in defaults and derived fields, and returns all mistakes.
func (c Config) complete() (*settings, error) {
	if c.FieldName == nil {
		c.FieldName = func(field string) string { return field }
	}

	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Name = cmp.Or(c.Name, DefaultName())
	c.MaxCounters = cmp.Or(c.MaxCounters, defaultCounters)
	c.ReservationBytes = cmp.Or(c.ReservationBytes, counters.DefaultReservationBytes)
	c.UsageSubjects = cmp.Or(c.UsageSubjects, defaultUsageSubjects)
	c.Region = cmp.Or(c.Region, defaultRegion)
	c.PrimaryRegion = cmp.Or(c.PrimaryRegion, c.Region)

	if c.FreeMemory == nil {
		c.FreeMemory = func() {}
	}

	s := &settings{Config: c}
	m := &mistakes{name: c.FieldName}
	s.checkNode(m)
	s.checkPlanes(m)
	s.checkCluster(m)
	s.checkSecrets(m)

	if !(c.TraceRatio >= 0 && c.TraceRatio <= 1) { // also not NaN
		m.add("TraceRatio", "%v is not in 0…1", c.TraceRatio)
		s.TraceRatio = 0 // so that the check of tracing does not report it again
	}

	if c.OTLPEndpoint != "" {
		if err := s.tracing().Validate(); err != nil {
			m.add("OTLPEndpoint", "%w", err)
		}
	}

	return s, errors.Join(m.list...)
}

// mistakes collects the mistakes in a Config.
type mistakes struct {
	name func(field string) string
	list []error
}

// add records a mistake in a field.
func (m *mistakes) add(field, format string, args ...any) {
	m.list = append(m.list, fmt.Errorf("%s: %w", m.name(field), fmt.Errorf(format, args...)))
}

// checkRange records a mistake if n is out of bounds.
func (m *mistakes) checkRange(field string, n, least, most int64) {
	if n < least || n > most {
		m.add(field, "%d is not in %d…%d", n, least, most)
	}
}

// checkNode checks the settings that don't depend on other nodes or planes.
func (s *settings) checkNode(m *mistakes) {
	if len(s.Name) > maxName || !isPrintable(s.Name) {
		m.add("Name", "%.140q is not 1 to %d bytes of printable text", s.Name, maxName)
	}

	if s.DataDir != "" {
		dir, err := filepath.Abs(s.DataDir)
		if err != nil {
			m.add("DataDir", "%w", err)
		}
		s.DataDir = dir
	}

	s.initialRules = document.Starter()
	s.initialRulesAuthor = "starter rules"
	if len(s.Rules) > 0 {
		s.initialRulesAuthor = strings.TrimSpace(m.name("Rules") + " " + s.RulesFrom)
		doc, err := document.Parse(s.Rules)
		if err != nil {
			m.add("Rules", "%w", err)
		}
		s.initialRules = doc
	}

	m.checkRange("MaxCounters", s.MaxCounters, 1, MaxCounters)
	m.checkRange("MaxConnections", int64(s.MaxConnections), 0, maxConnections)
	m.checkRange("MaxMatched", int64(s.MaxMatched), 0, math.MaxInt32)
	m.checkRange("MemoryLimit", s.MemoryLimit, 0, math.MaxInt64)
	m.checkRange("ReservationBytes", s.ReservationBytes, minReservations, maxReservations)

	if s.OnError != client.Open && s.OnError != client.Closed {
		m.add("OnError", "%d is neither client.Open nor client.Closed", s.OnError)
	}

	m.checkRange("UsageMonths", int64(s.UsageMonths), 0, maxUsageMonths)
	if s.UsageMonths > 0 && s.DataDir == "" {
		m.add("UsageMonths", "usage is kept in a file: set %s", m.name("DataDir"))
	}

	m.checkRange("UsageSubjects", int64(s.UsageSubjects), 1, maxUsageSubjects)
}

// checkPlanes checks the settings of the planes: addresses, certificates, tokens and host names.
func (s *settings) checkPlanes(m *mistakes) {
	for _, plane := range []struct{ field, addr string }{{"DataAddr", s.DataAddr},
		{"GRPCAddr", s.GRPCAddr}, {"RedisAddr", s.RedisAddr}, {"AdminAddr", s.AdminAddr}} {
		_, _, err := net.SplitHostPort(plane.addr)
		if plane.addr != "" && err != nil {
			m.add(plane.field, "%q is not host:port", plane.addr)
		}
	}

	if (s.CertFile == "") != (s.KeyFile == "") {
		m.add("CertFile", "set it together with %s, or neither", m.name("KeyFile"))
	}

	isInvisible := func(r rune) bool { return r <= ' ' || r > '~' }
	for _, t := range []struct{ field, token string }{{"APIToken", s.APIToken}, {"AdminToken", s.AdminToken}} {
		if len(t.token) > maxToken || strings.ContainsFunc(t.token, isInvisible) {
			m.add(t.field, "a token is at most %d visible ASCII characters without spaces", maxToken)
		}
	}

	err := api.CheckTokens(&api.Config{TokensFile: s.TokensFile, APIToken: s.APIToken, AdminToken: s.AdminToken})
	if err != nil {
		m.add("TokensFile", "%w", err)
	}

	for _, name := range s.AdminHosts {
		if name == "" || len(name) > maxHost || strings.ContainsAny(name, " /:[]@") || !isPrintable(name) {
			m.add("AdminHosts", "%.80q is not a name of 1 to %d bytes, without scheme and port", name, maxHost)
		}
	}
}

// checkCluster checks the settings for nodes to find and reach each other.
func (s *settings) checkCluster(m *mistakes) {
	m.checkRange("GossipPort", int64(s.GossipPort), 0, 65535)
	m.checkRange("PeerPort", int64(s.PeerPort), 0, 65535)
	m.checkRange("WANPort", int64(s.WANPort), 0, 65535)

	for _, place := range []struct{ field, name string }{{"Region", s.Region},
		{"PrimaryRegion", s.PrimaryRegion}, {"Zone", s.Zone}} {
		if len(place.name) > maxRegion || !isPrintable(place.name) {
			m.add(place.field, "%.80q is not a name of at most %d bytes", place.name, maxRegion)
		}
	}

	checkSeeds(m, "Join", s.Join)
	checkSeeds(m, "WANJoin", s.WANJoin)

	if s.BootstrapExpect == 0 && len(s.Join) == 0 {
		s.BootstrapExpect = 1
	}

	m.checkRange("BootstrapExpect", int64(s.BootstrapExpect), 0, maxExpect)

	clusterField := "" // the first field that implies other nodes
	switch {
	case len(s.Join) > 0:
		clusterField = "Join"
	case len(s.WANJoin) > 0:
		clusterField = "WANJoin"
	case s.BootstrapExpect > 1:
		clusterField = "BootstrapExpect"
	}

	if s.ClusterBind == "" {
		if clusterField != "" {
			m.add(clusterField, "it needs open ports between nodes: set %s", m.name("ClusterBind"))
		}
		s.Advertise = aloneIP
		s.GossipPort = alonePort
		s.WANPort = alonePort
		return
	}

	bind, err := netip.ParseAddr(s.ClusterBind)
	if err != nil {
		m.add("ClusterBind", "%q is not an IP address", s.ClusterBind)
		return
	}

	s.Advertise = cmp.Or(s.Advertise, defaultAdvertise(bind))
	ip, err := netip.ParseAddr(s.Advertise)
	if err != nil || ip.IsUnspecified() {
		m.add("Advertise", "%q is not an IP address that other nodes can reach", s.Advertise)
	}

	if bind.IsLoopback() {
		checkReach(m, "Join", s.Join, s.ClusterBind)
		checkReach(m, "WANJoin", s.WANJoin, s.ClusterBind)
	} else if !s.InsecureCluster && s.ClusterSecretFile == "" && s.TLSCert == "" {
		m.add(cmp.Or(clusterField, "ClusterBind"),
			"the ports between nodes would be open on %s to anyone: %s", s.ClusterBind,
			protectionAdvice(m))
	}
}

// checkSeeds checks the number and the form of the addresses in a field.
func checkSeeds(m *mistakes, field string, seeds []string) {
	if len(seeds) > maxJoin {
		m.add(field, "more than %d addresses", maxJoin)
	}
	for _, seed := range seeds {
		if err := checkSeed(seed); err != nil {
			m.add(field, "%w", err)
		}
	}
}

// checkSeed checks host[:port].
func checkSeed(seed string) error {
	host := seed
	port := ""
	_, err := netip.ParseAddr(seed)
	if err != nil && strings.Contains(seed, ":") {
		host, port, err = net.SplitHostPort(seed)
		if err != nil {
			return fmt.Errorf("%q is not host[:port]", seed)
		}

		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("%q has the port %q, which is not in 1…65535", seed, port)
		}
	}

	if host == "" || strings.ContainsAny(host, " /") {
		return fmt.Errorf("%q has no valid host", seed)
	}

	return nil
}

// checkReach checks that a node bound to loopback only joins nodes on loopback.
func checkReach(m *mistakes, field string, seeds []string, bind string) {
	for _, seed := range seeds {
		host := seed
		if _, err := netip.ParseAddr(seed); err != nil {
			if h, _, err := net.SplitHostPort(seed); err == nil {
				host = h
			}
		}

		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost") {
			continue
		}

		m.add(field,
			"%s can't be reached from %s, which is loopback: set %s to an address that other machines reach, and %s",
			seed, bind, m.name("ClusterBind"), protectionAdvice(m))
	}
}

// defaultAdvertise returns the address at which other nodes reach a listener:
// the one it is bound to or, if bound to all, the machine's first global
// unicast IPv4 address. Without one, it returns 127.0.0.1.
func defaultAdvertise(bind netip.Addr) string {
	if !bind.IsUnspecified() {
		return bind.String()
	}

	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}

	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().IsGlobalUnicast() && p.Addr().Is4() {
			return p.Addr().String()
		}
	}

	return "127.0.0.1"
}

// isPrintable reports whether name is UTF-8 without control characters. An empty name is printable.
func isPrintable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// protectionAdvice tells the operator how to protect the ports between nodes.
// It ends every refusal to open them unprotected.
func protectionAdvice(m *mistakes) string {
	return fmt.Sprintf("set %s (rlnode secret prints a secret), or %s if that network is protected otherwise",
		m.name("ClusterSecretFile"), m.name("InsecureCluster"))
}

// checkSecrets checks the protection of the ports between nodes. All of them
// must be protected: anyone who gets in through one port can take over the
// cluster.
func (s *settings) checkSecrets(m *mistakes) {
	keyBytes := len(s.GossipKey)
	hasKey := keyBytes > 0
	if hasKey && keyBytes != 16 && keyBytes != 24 && keyBytes != 32 {
		m.add("GossipKey", "it has %d bytes; it must have 16, 24 or 32", keyBytes)
	}

	hasCertificates := anySet(s.TLSCert, s.TLSKey, s.TLSCA)
	if hasCertificates && (s.TLSCert == "" || s.TLSKey == "" || s.TLSCA == "") {
		m.add("TLSCert", "set %s, %s and %s together", m.name("TLSCert"), m.name("TLSKey"), m.name("TLSCA"))
	}
	if hasKey != hasCertificates {
		m.add("GossipKey", "%s and %s protect different ports; set both, or %s instead",
			m.name("GossipKey"), m.name("TLSCert"), m.name("ClusterSecretFile"))
	}

	switch {
	case s.ClusterSecretFile == "":
	case hasKey || hasCertificates:
		m.add("ClusterSecretFile", "it replaces %s and %s; don't set both", m.name("GossipKey"), m.name("TLSCert"))
	default:
		if _, err := secret.Read(s.ClusterSecretFile); err != nil {
			m.add("ClusterSecretFile", "%w", err)
		}
	}

	if s.InsecureCluster && (s.ClusterSecretFile != "" || hasKey || hasCertificates) {
		m.add("InsecureCluster", "it contradicts the secret that is set; leave out one of them")
	}
}

// anySet reports whether at least one of the fields is set.
func anySet(fields ...string) bool {
	return slices.ContainsFunc(fields, func(s string) bool { return s != "" })
}

// isAlone reports whether the node has no ports between nodes.
func (s *settings) isAlone() bool { return s.ClusterBind == "" }

// bindIP is the address that the ports between nodes are bound to.
func (s *settings) bindIP() string {
	if s.isAlone() {
		return aloneIP
	}
	return s.ClusterBind
}
