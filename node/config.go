package node

import (
	"log/slog"
	"os"

	"github.com/rlnode/rlnode/client"
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
	// OnError says whether Check allows or refuses what the node can't decide, such
	// as before it is ready, and after Close. It does not apply to requests that
	// are at fault: these are refused.
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

// DefaultName returns the default name of a node: its host's, or rlnode if that is unknown.
func DefaultName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "rlnode"
	}
	return name
}
