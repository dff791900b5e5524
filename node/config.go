package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/rules"
)

// Config says what a node is. The zero Config is a node by itself: it keeps all in memory, opens no port, and goes by the
// starter rules. With Rules it goes by those.
type Config struct {
	// Name is the node's name in answers, logs and lists of members: 1 to 128 bytes of printable text, another one for each node
	// of a cluster, and the same after a restart. Empty: the host's name.
	Name string
	// DataDir is the folder where counters, rules and identity are kept; it is made if it is missing. One process has it at a
	// time. Empty: all is in memory. A node without a folder is a new node each time that it is started, so a cluster of such
	// nodes forgets what it knows when all of them are stopped.
	DataDir string

	// Rules is the document, YAML of at most 8 MiB, that a new cluster begins with. It is not used once the cluster has rules:
	// those are changed at any node's admin plane. All nodes of a new cluster should have the same one. Empty: the starter rules.
	Rules []byte
	// RulesFrom says where Rules come from, such as a file's name, for the list of versions and the log.
	RulesFrom string
	// MaxCounters bounds the counters in memory: 1 to 2³³. A counter takes about 60 bytes; the table grows as it is used.
	// 0: 10,000,000.
	MaxCounters int64
	// OnError is what Check decides while the node can't: before it is ready, and after Close.
	OnError client.OnError

	// DataAddr is where the data plane listens, for those who ask over HTTP: host:port, such as "127.0.0.1:8080"; port 0 takes a
	// free one. Empty: there is no data plane.
	DataAddr string
	// AdminAddr is where the admin plane listens, for rules, members, metrics and the dashboard: as DataAddr. Empty: there is none,
	// and the rules can be changed only at other nodes.
	AdminAddr string
	// CertFile and KeyFile are certificate and key, PEM, for HTTPS on both planes. They are read again when they change. Empty: HTTP.
	CertFile, KeyFile string
	// APIToken has the scopes check and adjust, AdminToken all; TokensFile has more tokens, and is read again when it changes. As
	// soon as there is one, both planes ask for one, but for probes and metrics. Tokens are at most 4,096 visible ASCII characters.
	APIToken, AdminToken, TokensFile string
	// AdminHosts are names by which the admin plane is asked for, beside addresses and localhost: 1 to 253 bytes each. On loopback it
	// answers to no other name.
	AdminHosts []string

	// ClusterBind is the IP of the ports between nodes. Other than loopback it needs ClusterSecretFile, or GossipKey and TLS…, or
	// InsecureCluster. Empty: the node is by itself and opens none of these ports; then Join, WANJoin and BootstrapExpect above 1
	// are mistakes.
	ClusterBind string
	// Advertise is the IP that other nodes reach this one at. Empty: ClusterBind, or, if that is all of the machine's, the first
	// of them that is not loopback.
	Advertise string
	// GossipPort (TCP and UDP), PeerPort (TCP), and WANPort (TCP and UDP, of nodes that vote) are the ports between nodes: 0 to 65535.
	// Those of rlnode serve are 7946, 7947 and 7948. 0 takes a free one.
	GossipPort, PeerPort, WANPort int
	// AnyPort takes free ports where these are in use: for a node that nobody has to find by them.
	AnyPort bool
	// Join are nodes to find the cluster by, host[:gossip port], at most 64. The port is 7946 if it is left out. Names are resolved
	// again at each try.
	Join []string
	// BootstrapExpect is of how many voters a new cluster is founded, 1 to 5: more than half of all nodes that start. The nodes wait
	// until so many have found each other. 0: 1 without Join; with it, a cluster that exists is joined and none is founded.
	BootstrapExpect int
	// LeaveOnClose has Close leave the cluster for good, and not only until the next start. For a node without a DataDir it is the
	// way to go: nobody waits for it.
	LeaveOnClose bool

	// Region and Zone are where the node is: at most 64 bytes of printable text. Voters are spread over zones. Region is
	// "default" if it is empty.
	Region, Zone string
	// PrimaryRegion is the region where rules are written, the same for all nodes of all regions. Empty: Region.
	PrimaryRegion string
	// WANJoin are nodes of other regions to find those by, host[:WAN port], at most 64. The port is 7948 if it is left out.
	WANJoin []string

	// ClusterSecretFile names a file with what all nodes of all regions share, as rlnode secret prints it. It encrypts all between
	// nodes, and keeps others out. It is read again when it changes.
	ClusterSecretFile string
	// GossipKey (16, 24 or 32 bytes) and TLSCert, TLSKey and TLSCA (files, PEM) take its place, all together.
	GossipKey              []byte
	TLSCert, TLSKey, TLSCA string
	// InsecureCluster opens the ports between nodes to a network without a secret: anyone who reaches them can take the cluster over.
	InsecureCluster bool

	// UsageMonths is how many months are kept of what rules with `usage: monthly` count: 0 to 1,200. 0 counts none; more need DataDir.
	UsageMonths int
	// UsageSubjects bounds the rows of usage a month, 1 to 30,000,000: a rule, a subject and a unit. Beyond it subjects are counted
	// together. 0: 1,000,000.
	UsageSubjects int

	// OTLPEndpoint is the URL of an OpenTelemetry collector, OTLP over HTTP, that spans of checks over HTTP are sent to. Empty: none.
	OTLPEndpoint string
	// TraceRatio is the part of these checks, 0 to 1, that is traced where the caller does not say it by a traceparent.
	TraceRatio float64

	// Logger gets what an operator should know. Nil: nobody does.
	Logger *slog.Logger
	// FreeMemory is called when much memory has become garbage at once. rlnode serve has debug.FreeOSMemory here, which stops the
	// whole process for a moment. Nil: it is left to the collector.
	FreeMemory func()
	// FieldName is what users of this program know a field by, such as "--join" for Join. Errors and log lines say that. Nil: the
	// field's name.
	FieldName func(field string) string

	world world // replaced by tests
}

// The bounds of a Config. Gossip carries at most 512 bytes of what a node says about itself.
const (
	maxName          = 128     // bytes
	maxRegion        = 64      // bytes of a region's and of a zone's name
	maxJoin          = 64      // addresses
	maxExpect        = 5       // a cluster has at most five voters
	maxToken         = 4096    // bytes
	maxHost          = 253     // bytes
	MaxCounters      = 1 << 33 // in memory; their records alone are half a terabyte then
	maxUsageMonths   = 1200
	maxUsageSubjects = 30_000_000

	defaultCounters      = 10_000_000
	defaultUsageSubjects = 1_000_000
	defaultRegion        = "default"
)

// Validate says what is wrong with c: every mistake, each with the name of its field.
func (c Config) Validate() error {
	_, err := c.complete()
	return err
}

// mistakes collects what is wrong with a Config.
type mistakes struct {
	name func(field string) string
	list []error
}

// note notes a mistake in a field.
func (m *mistakes) note(field, format string, args ...any) {
	m.list = append(m.list, fmt.Errorf("%s: %w", m.name(field), fmt.Errorf(format, args...)))
}

// within notes a number that is out of bounds.
func (m *mistakes) within(field string, n, least, most int64) {
	if n < least || n > most {
		m.note(field, "%d is not in %d…%d", n, least, most)
	}
}

// complete fills in what follows from other fields, and names every mistake.
func (c Config) complete() (*settings, error) {
	if c.FieldName == nil {
		c.FieldName = func(field string) string { return field }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Name = cmp.Or(c.Name, hostName())
	c.MaxCounters = cmp.Or(c.MaxCounters, defaultCounters)
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
	if c.OTLPEndpoint != "" {
		if err := s.tracing().Validate(); err != nil {
			m.note("OTLPEndpoint", "%w", err)
		}
	}
	return s, errors.Join(m.list...)
}

// settings are a Config that is complete.
type settings struct {
	Config
	seed   *rules.Document
	seedBy string
}

// checkNode checks what a node is by itself.
func (c *settings) checkNode(m *mistakes) {
	if len(c.Name) > maxName || !printable(c.Name) {
		m.note("Name", "%.140q is not 1 to %d bytes of printable text", c.Name, maxName)
	}
	if c.DataDir != "" {
		dir, err := filepath.Abs(c.DataDir)
		if err != nil {
			m.note("DataDir", "%w", err)
		}
		c.DataDir = dir
	}
	if c.seed, c.seedBy = rules.Starter(), "starter rules"; len(c.Rules) > 0 {
		c.seedBy = strings.TrimSpace(m.name("Rules") + " " + c.RulesFrom)
		doc, err := rules.Parse(c.Rules)
		if err != nil {
			m.note("Rules", "%w", err)
		}
		c.seed = doc
	}
	m.within("MaxCounters", c.MaxCounters, 1, MaxCounters)
	if c.OnError != client.Open && c.OnError != client.Closed {
		m.note("OnError", "%d is neither client.Open nor client.Closed", c.OnError)
	}
	m.within("UsageMonths", int64(c.UsageMonths), 0, maxUsageMonths)
	if c.UsageMonths > 0 && c.DataDir == "" {
		m.note("UsageMonths", "usage is kept in a file: set %s", m.name("DataDir"))
	}
	m.within("UsageSubjects", int64(c.UsageSubjects), 1, maxUsageSubjects)
}

// checkPlanes checks where and by what the node is asked over HTTP.
func (c *settings) checkPlanes(m *mistakes) {
	for _, plane := range []struct{ field, addr string }{{"DataAddr", c.DataAddr}, {"AdminAddr", c.AdminAddr}} {
		if _, _, err := net.SplitHostPort(plane.addr); plane.addr != "" && err != nil {
			m.note(plane.field, "%q is not host:port", plane.addr)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		m.note("CertFile", "it is of no use without %s, and the other way round", m.name("KeyFile"))
	}
	for _, one := range []struct{ field, token string }{{"APIToken", c.APIToken}, {"AdminToken", c.AdminToken}} {
		if len(one.token) > maxToken || strings.ContainsFunc(one.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			m.note(one.field, "a token is at most %d visible ASCII characters without spaces", maxToken)
		}
	}
	if err := api.CheckTokens(&api.Config{TokensFile: c.TokensFile, APIToken: c.APIToken, AdminToken: c.AdminToken}); err != nil {
		m.note("TokensFile", "%w", err)
	}
	for _, name := range c.AdminHosts {
		if name == "" || len(name) > maxHost || strings.ContainsAny(name, " /:[]@") || !printable(name) {
			m.note("AdminHosts", "%.80q is not a name of 1 to %d bytes, without scheme and port", name, maxHost)
		}
	}
}

// checkCluster checks where the node meets others.
func (c *settings) checkCluster(m *mistakes) {
	m.within("GossipPort", int64(c.GossipPort), 0, 65535)
	m.within("PeerPort", int64(c.PeerPort), 0, 65535)
	m.within("WANPort", int64(c.WANPort), 0, 65535)
	for _, one := range []struct{ field, name string }{{"Region", c.Region}, {"PrimaryRegion", c.PrimaryRegion}, {"Zone", c.Zone}} {
		if len(one.name) > maxRegion || !printable(one.name) {
			m.note(one.field, "%.80q is not a name of at most %d bytes", one.name, maxRegion)
		}
	}
	checkSeeds(m, "Join", c.Join)
	checkSeeds(m, "WANJoin", c.WANJoin)
	if c.BootstrapExpect == 0 && len(c.Join) == 0 {
		c.BootstrapExpect = 1
	}
	m.within("BootstrapExpect", int64(c.BootstrapExpect), 0, maxExpect)
	company := "" // the field that says that there are others
	switch {
	case len(c.Join) > 0:
		company = "Join"
	case len(c.WANJoin) > 0:
		company = "WANJoin"
	case c.BootstrapExpect > 1:
		company = "BootstrapExpect"
	}
	if c.ClusterBind == "" {
		if company != "" {
			m.note(company, "there are no other nodes without a port for them: set %s", m.name("ClusterBind"))
		}
		c.Advertise, c.GossipPort, c.WANPort = aloneIP, alonePort, alonePort
		return
	}
	bind, err := netip.ParseAddr(c.ClusterBind)
	if err != nil {
		m.note("ClusterBind", "%q is not an IP address", c.ClusterBind)
		return
	}
	if c.Advertise == "" {
		c.Advertise = advertised(bind)
	}
	if ip, err := netip.ParseAddr(c.Advertise); err != nil || ip.IsUnspecified() {
		m.note("Advertise", "%q is not an IP address that others could reach", c.Advertise)
	}
	if bind.IsLoopback() {
		checkReach(m, "Join", c.Join, c.ClusterBind)
		checkReach(m, "WANJoin", c.WANJoin, c.ClusterBind)
	} else if !c.InsecureCluster && c.ClusterSecretFile == "" && c.TLSCert == "" {
		m.note(cmp.Or(company, "ClusterBind"), "the ports between nodes would be open on %s to anyone: %s", c.ClusterBind, waysOut(m))
	}
}

// checkSeeds checks the addresses of a field.
func checkSeeds(m *mistakes, field string, seeds []string) {
	if len(seeds) > maxJoin {
		m.note(field, "more than %d addresses", maxJoin)
	}
	for _, seed := range seeds {
		if err := checkSeed(seed); err != nil {
			m.note(field, "%w", err)
		}
	}
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

// checkReach checks that a node on loopback looks for others only there.
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
		m.note(field, "%s can't be reached from %s, which is loopback: set %s to an address that other machines reach, and %s",
			seed, bind, m.name("ClusterBind"), waysOut(m))
	}
}

// advertised is the address that others would reach a listener at: the one it is bound to, or, bound to all, the
// first of the machine's that is not loopback.
func advertised(bind netip.Addr) string {
	if !bind.IsUnspecified() {
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

// printable reports whether a name has no control characters. An empty one has none.
func printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// hostName is the default name of a node.
func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "rlnode"
	}
	return name
}

// alone says that the node has no ports for others.
func (c *settings) alone() bool { return c.ClusterBind == "" }

// several says that one of the fields is set.
func several(fields ...string) bool {
	return slices.ContainsFunc(fields, func(s string) bool { return s != "" })
}
