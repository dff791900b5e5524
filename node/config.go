package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// RefusalLog says which refused checks a node logs.
type RefusalLog string

// What a node logs of refused checks: nothing, one for each rule and minute, or
// every one. If they come faster than the log can be written, some are left
// out; each line counts those.
const (
	RefusalsOff     RefusalLog = ""
	RefusalsSampled RefusalLog = "sampled"
	RefusalsAll     RefusalLog = "all"
)

// Config configures a node. The zero Config is a node alone: it keeps
// everything in memory, opens no port, and uses the starter rules. Set Rules to
// use others.
type Config struct {
	// Name is the node's name in answers, logs and lists of members: 1 to 128 bytes
	// of printable text. It must be unique in the cluster and stay the same across
	// restarts. Empty: the host's name.
	Name string
	// DataDir is the folder for counters, rules and the node's identity; it is
	// created if missing. Only one process can use it at a time. Empty: everything
	// is in memory, and the node has a new identity after each start. A cluster of
	// such nodes loses everything when all of them are stopped.
	DataDir string

	// Rules is the document that a new cluster starts with: YAML of at most 8 MiB.
	// It is ignored once the cluster has rules; change those at any node's admin
	// plane. All nodes of a new cluster should have the same one. Empty: the
	// starter rules.
	Rules []byte
	// RulesFrom says where Rules came from, such as a file's name, for the list of
	// versions and the log.
	RulesFrom string
	// MaxCounters bounds the counters in memory: 1 to 2³³. A counter takes about 60
	// bytes; the table grows with use. 0: 10,000,000.
	MaxCounters int64
	// MemoryLimit is how many bytes the process may use; 0 if unknown. It bounds
	// the connections that the planes serve, which may take a part of it. rlnode
	// serve sets it to the smaller of GOMEMLIMIT and the limit of its control
	// group.
	MemoryLimit int64
	// MaxConnections bounds the connections of the data plane. 0: as MemoryLimit
	// and half of the files that the process may open allow, at most 32,768.
	MaxConnections int
	// MaxMatched bounds the limits that the checks of one batch match together;
	// the rest of the batch is not decided. 0: 100,000.
	MaxMatched int
	// ReservationBytes is the room for reservations, in bytes: 1 MiB to 1 TiB. A
	// reservation takes 256 bytes until it is over. One subject may take two
	// thirds of the room. The rates of buckets with reservations have as much room
	// besides, and so have reservations under rules with `consistency: local`. 0:
	// 224 MiB, for 1,000 reservations a second of one subject that each stay open
	// for 10 minutes.
	ReservationBytes int64
	// OnError says whether Check allows or refuses while the node can't decide:
	// before it is ready, and after Close.
	OnError client.OnError

	// RefusalLog says which refused checks this node logs, with their subjects.
	RefusalLog RefusalLog

	// DataAddr is where the data plane listens for clients over HTTP: host:port,
	// such as "127.0.0.1:8080"; port 0 takes a free one. Empty: no data plane.
	DataAddr string
	// GRPCAddr is where the node serves Envoy's rate limit service over gRPC,
	// configured by the envoy section of the rules; host:port as in DataAddr.
	// Empty: no Envoy service.
	GRPCAddr string
	// AnyGRPCPort takes a free port, and logs it, if the port of GRPCAddr is in
	// use. Set it if that port is only a default.
	AnyGRPCPort bool
	// RedisAddr is where the node serves the commands of Redis that limit rates;
	// host:port as in DataAddr. Empty: it does not.
	RedisAddr string
	// AdminAddr is where the admin plane listens, for rules, members, metrics and
	// the dashboard; host:port as in DataAddr. Empty: no admin plane, and the rules
	// can be changed only at other nodes.
	AdminAddr string
	// CertFile and KeyFile are the certificate and key, PEM, for HTTPS on both
	// planes, and for TLS at GRPCAddr and RedisAddr. They are read again when they
	// change. Empty: plain text.
	CertFile, KeyFile string
	// APIToken has the scopes check and adjust; AdminToken has all scopes.
	// TokensFile has more tokens and is read again when it changes. If any token is
	// set, all of these require one, except for probes and metrics. A token is at
	// most 4,096 visible ASCII characters.
	APIToken, AdminToken, TokensFile string
	// AdminHosts are the host names that the admin plane accepts besides addresses
	// and localhost: 1 to 253 bytes each. On loopback it refuses all other names.
	AdminHosts []string

	// ClusterBind is the IP address of the ports between nodes. Unless it is
	// loopback, it needs ClusterSecretFile, or GossipKey and TLS…, or
	// InsecureCluster. Empty: the node is alone and opens none of these ports;
	// Join, WANJoin and BootstrapExpect above 1 are then mistakes.
	ClusterBind string
	// Advertise is the IP address at which other nodes reach this one. Empty:
	// ClusterBind, or, if that is the unspecified address, the machine's first
	// global unicast IPv4 address.
	Advertise string
	// GossipPort (TCP and UDP), PeerPort (TCP) and WANPort (TCP and UDP, used by
	// voters) are the ports between nodes: 0 to 65535. rlnode serve uses 7946, 7947
	// and 7948. 0 takes a free one.
	GossipPort, PeerPort, WANPort int
	// AnyPort takes free ports if these are in use. Use it only if no other node
	// has to find this one by its ports.
	AnyPort bool
	// Join lists nodes of the cluster to join, as host[:gossip port], at most 64.
	// The port defaults to 7946. Names are resolved again on each attempt.
	Join []string
	// BootstrapExpect is the number of voters that a new cluster is founded with, 1
	// to 5. It must be more than half of all nodes that start. The nodes wait until
	// this many have found each other. 0: with Join, the node joins an existing
	// cluster and founds none; without Join, 1.
	BootstrapExpect int
	// Rejoin gives a node that left by command, or that an operator removed, a new
	// identity: what belonged to the old one is set aside, and bills and the
	// addresses of other nodes stay. Once it has done so, it has no effect until
	// the cluster refuses the new identity, too.
	Rejoin bool
	// LeaveOnClose makes Close leave the cluster for good rather than until the
	// next start. Set it for a node without a DataDir, so that the cluster doesn't
	// wait for its return.
	LeaveOnClose bool

	// Region and Zone are the node's location: at most 64 bytes of printable text
	// each. Voters are spread over zones. An empty Region is "default".
	Region, Zone string
	// PrimaryRegion is the region where rules are written. It must be the same for
	// all nodes of all regions. Empty: Region.
	PrimaryRegion string
	// WANJoin lists nodes of other regions to join, as host[:WAN port], at most 64.
	// The port defaults to 7948.
	WANJoin []string

	// ClusterSecretFile names a file with the secret that all nodes of all regions
	// share, as rlnode secret prints it. It encrypts all traffic between nodes and
	// keeps others out. The file is read again when it changes.
	ClusterSecretFile string
	// GossipKey (16, 24 or 32 bytes) and TLSCert, TLSKey and TLSCA (files, PEM)
	// replace ClusterSecretFile. All of them must be set.
	GossipKey              []byte
	TLSCert, TLSKey, TLSCA string
	// InsecureCluster opens the ports between nodes without a secret: anyone who
	// can reach them can take over the cluster.
	InsecureCluster bool

	// UsageMonths is how many months of usage to keep for rules with `usage:
	// monthly`: 0 to 1,200. 0 counts none; any other value needs DataDir.
	UsageMonths int
	// UsageSubjects bounds the rows of usage in a month, 1 to 30,000,000. A row is
	// a rule, a subject and a unit. Beyond the bound, subjects are counted
	// together. 0: 1,000,000.
	UsageSubjects int

	// OTLPEndpoint is the URL of an OpenTelemetry collector (OTLP over HTTP) that
	// receives spans of checks made over HTTP and by Envoy's rate limit service.
	// Empty: no spans.
	OTLPEndpoint string
	// TraceRatio is the fraction of these checks to trace, 0 to 1, where the
	// caller's traceparent doesn't decide it.
	TraceRatio float64

	// Logger receives events that an operator should know about. Nil: nothing is logged.
	Logger *slog.Logger
	// FreeMemory is called when much memory has become garbage at once. rlnode
	// serve sets it to debug.FreeOSMemory, which stops the whole process for a
	// moment. Nil: left to the garbage collector.
	FreeMemory func()
	// Ready is called once, when /readyz would report the node ready. It must
	// return soon and must not call Close. Nil: no call.
	Ready func(*Node)
	// FieldName maps a field to the name that users of this program know, such as
	// "--join" for Join. Errors and log lines use it. Nil: the field's own name.
	FieldName func(field string) string

	env environment // set by tests only
}

// Bounds of a Config. Gossip carries at most 512 bytes of metadata per node.
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

// Validate returns all mistakes in c, each with the name of its field.
func (c Config) Validate() error {
	_, err := c.complete()
	return err
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

// complete fills in defaults and derived fields, and returns all mistakes.
func (c Config) complete() (*settings, error) {
	if c.FieldName == nil {
		c.FieldName = func(field string) string { return field }
	}

	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Name = cmp.Or(c.Name, DefaultName())
	c.MaxCounters = cmp.Or(c.MaxCounters, defaultCounters)
	c.ReservationBytes = cmp.Or(c.ReservationBytes, counters.DefaultReservations)
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
		s.TraceRatio = 0 // so that tracing does not report it, too
	}

	if c.OTLPEndpoint != "" {
		if err := s.tracing().Validate(); err != nil {
			m.add("OTLPEndpoint", "%w", err)
		}
	}

	return s, errors.Join(m.list...)
}

// settings are a complete Config.
type settings struct {
	Config
	initialRules       *rules.Document
	initialRulesAuthor string
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

	s.initialRules = rules.Starter()
	s.initialRulesAuthor = "starter rules"
	if len(s.Rules) > 0 {
		s.initialRulesAuthor = strings.TrimSpace(m.name("Rules") + " " + s.RulesFrom)
		doc, err := rules.Parse(s.Rules)
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

// DefaultName returns the default name of a node: its host's, or rlnode if that is unknown.
func DefaultName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "rlnode"
	}
	return name
}

// isAlone reports whether the node has no ports between nodes.
func (s *settings) isAlone() bool { return s.ClusterBind == "" }

// anySet reports whether at least one of the fields is set.
func anySet(fields ...string) bool {
	return slices.ContainsFunc(fields, func(s string) bool { return s != "" })
}
