package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/rlnode/rlnode/node"
	"github.com/rlnode/rlnode/persist"
)

// serveCmd runs a node. Each flag has an environment variable and a key in the
// --config file; a test checks that their names match.
type serveCmd struct {
	Config string `type:"path" env:"RLNODE_CONFIG" placeholder:"FILE" help:"YAML file with any of these settings, as name: value. Flags take precedence over the environment, and that over the file."`

	Name    string `default:"${host}" env:"RLNODE_NAME" help:"The node's name: unique and stable (default: the host's)."`
	DataDir string `type:"path" default:"./rlnode-data" env:"RLNODE_DATA_DIR" placeholder:"DIR" help:"Where counters, rules and identity are kept (default ${default})."`

	Bind      string `default:"127.0.0.1" env:"RLNODE_BIND" placeholder:"IP" help:"Address of the data plane, of Envoy's rate limit service and of the Redis protocol, and of the ports between nodes unless --cluster-bind says otherwise (default ${default})."`
	AdminBind string `env:"RLNODE_ADMIN_BIND" placeholder:"IP" help:"Address of the admin listener (default: --bind if that is a loopback address, else 127.0.0.1)."`
	HTTPPort  int    `name:"http-port" default:"8080" env:"RLNODE_HTTP_PORT" placeholder:"PORT" help:"Port of the data plane; 0 takes a free one (default ${default})."`
	GRPCPort  int    `name:"grpc-port" default:"8082" env:"RLNODE_GRPC_PORT" placeholder:"PORT" help:"Port of Envoy's rate limit service over gRPC, which the envoy section of the rules configures; 0 turns it off (default ${default})."`
	RedisPort int    `default:"0" env:"RLNODE_REDIS_PORT" placeholder:"PORT" help:"Port for clients of Redis: CL.THROTTLE and other commands that limit rates, usually 6379; 0 turns it off (default ${default})."`
	AdminPort int    `default:"8081" env:"RLNODE_ADMIN_PORT" placeholder:"PORT" help:"Port of the admin plane; 0 takes a free one (default ${default})."`

	ClusterBind string   `env:"RLNODE_CLUSTER_BIND" placeholder:"IP" help:"Address of the ports between nodes: gossip, calls, gossip between regions (default: --bind). One that is not loopback needs --cluster-secret-file."`
	Advertise   string   `env:"RLNODE_ADVERTISE" placeholder:"IP" help:"Address at which other nodes reach this one (default: --cluster-bind, or else the machine's first address)."`
	GossipPort  int      `default:"7946" env:"RLNODE_GOSSIP_PORT" placeholder:"PORT" help:"Port of gossip, TCP and UDP (default ${default})."`
	PeerPort    int      `default:"7947" env:"RLNODE_PEER_PORT" placeholder:"PORT" help:"Port of calls between nodes and of Raft (default ${default})."`
	Join        []string `sep:"," env:"RLNODE_JOIN" placeholder:"HOST[:PORT]" help:"Nodes of the cluster to join, with their gossip port; repeat the flag or separate with commas. Names are resolved again on each attempt."`

	BootstrapExpect int `env:"RLNODE_BOOTSTRAP_EXPECT" placeholder:"N" help:"Number of voters that found a new cluster: 1, 3 or 5. It must be more than half of all nodes that start: otherwise a split network could found two clusters, so none is founded (default: 1 without --join; with it, the node joins an existing cluster)."`

	Region string `default:"default" env:"RLNODE_REGION" help:"The node's region (default ${default})."`
	Zone   string `env:"RLNODE_ZONE" help:"The node's zone: voters are spread over zones."`

	WANPort       int      `name:"wan-port" default:"7948" env:"RLNODE_WAN_PORT" placeholder:"PORT" help:"Port of gossip between regions, TCP and UDP, on nodes that vote (default ${default})."`
	WANJoin       []string `name:"wan-join" sep:"," env:"RLNODE_WAN_JOIN" placeholder:"HOST[:PORT]" help:"Nodes of other regions to join, with their WAN port; repeat the flag or separate with commas. Names are resolved again on each attempt."`
	PrimaryRegion string   `env:"RLNODE_PRIMARY_REGION" placeholder:"REGION" help:"The region where rules are written, the same for all nodes of all regions; the others follow its rules (default: --region)."`

	ClusterSecretFile string `type:"path" env:"RLNODE_CLUSTER_SECRET_FILE" placeholder:"FILE" help:"File with the secret that all nodes of all regions share, as rlnode secret prints it. It encrypts all traffic between nodes and keeps others out; anyone who has it can be a node. To replace the secret, keep two lines in the file for a while. Read again when it changes."`
	InsecureCluster   bool   `env:"RLNODE_INSECURE_CLUSTER" help:"Open the ports between nodes to a network without a secret: anyone who reaches them can take over the cluster. For networks that are protected otherwise."`

	GossipKey     string `env:"RLNODE_GOSSIP_KEY" placeholder:"BASE64" help:"Instead of --cluster-secret-file, together with --tls-…: key of 16, 24 or 32 bytes that encrypts gossip."`
	GossipKeyFile string `type:"path" env:"RLNODE_GOSSIP_KEY_FILE" placeholder:"FILE" help:"The same, from a file."`
	TLSCert       string `name:"tls-cert" type:"path" env:"RLNODE_TLS_CERT" placeholder:"FILE" help:"In place of --cluster-secret-file, together with --gossip-key: certificate for mutual TLS between nodes, PEM; read again when it changes."`
	TLSKey        string `name:"tls-key" type:"path" env:"RLNODE_TLS_KEY" placeholder:"FILE" help:"The certificate's key, PEM."`
	TLSCA         string `name:"tls-ca" type:"path" env:"RLNODE_TLS_CA" placeholder:"FILE" help:"Certificate authority that must have issued other nodes' certificates, PEM."`
	Rejoin        bool   `env:"RLNODE_REJOIN" help:"If this node left or was removed: take a new identity, and keep bills and known addresses. The rest of --data-dir is set aside."`
	LeaveOnTerm   bool   `env:"RLNODE_LEAVE_ON_TERM" help:"On SIGTERM leave the cluster for good, rather than until the next start."`

	Rules       string `type:"path" env:"RLNODE_RULES" placeholder:"FILE" help:"Rules for a new cluster (default: built-in starter rules). Ignored once the cluster has rules: use apply to change them."`
	MaxCounters int64  `default:"10000000" env:"RLNODE_MAX_COUNTERS" placeholder:"N" help:"Bound on counters in memory (default ${default})."`

	Reservations   size `default:"224MiB" env:"RLNODE_RESERVATIONS" placeholder:"SIZE" help:"Room for reservations, at most 256 bytes each until they are over. One subject may have two thirds of it; further ones are answered 503 too-many-reservations (default ${default})."`
	MaxConnections int  `env:"RLNODE_MAX_CONNECTIONS" placeholder:"N" help:"Bound on connections to the data plane (default: what an eighth of the memory is enough for, by GOMEMLIMIT and the control group, and half of the limit on open files, at most 32768)."`
	MaxMatched     int  `default:"100000" env:"RLNODE_MAX_MATCHED" placeholder:"N" help:"Bound on the limits that the checks of one batch match together; the rest of it is not decided (default ${default})."`

	UsageMonths   int `default:"13" env:"RLNODE_USAGE_MONTHS" placeholder:"N" help:"Months of usage to keep, for rules with usage: monthly; 0 counts none (default ${default})."`
	UsageSubjects int `default:"1000000" env:"RLNODE_USAGE_SUBJECTS" placeholder:"N" help:"Bound on rows of usage per month, each for a rule, a subject and a unit. Beyond it, subjects are counted together (default ${default})."`

	HTTPCert string `name:"http-cert" type:"path" env:"RLNODE_HTTP_CERT" placeholder:"FILE" help:"Certificate for HTTPS on both planes, for gRPC and for the Redis protocol, PEM; read again when it changes."`
	HTTPKey  string `name:"http-key" type:"path" env:"RLNODE_HTTP_KEY" placeholder:"FILE" help:"The certificate's key, PEM."`

	tokenSettings

	StrictFiles bool `env:"RLNODE_STRICT_FILES" help:"Refuse to start, rather than warn, if other users of the machine may read or write a secret, or write to the data directory."`

	OTLPEndpoint string  `name:"otlp-endpoint" env:"RLNODE_OTLP_ENDPOINT" placeholder:"URL" help:"OpenTelemetry collector for spans of checks, OTLP over HTTP, such as http://127.0.0.1:4318 (default: none, no traces)."`
	TraceRatio   float64 `default:"0.01" env:"RLNODE_TRACE_RATIO" placeholder:"N" help:"Fraction of the checks, 0 to 1, to trace where the caller's traceparent does not decide it (default ${default})."`

	LogLevel   string     `default:"info" enum:"debug,info,warn,error" env:"RLNODE_LOG_LEVEL" help:"debug, info, warn or error (default ${default})."`
	RefusalLog refusalLog `env:"RLNODE_REFUSAL_LOG" placeholder:"all" help:"Log refused checks with their subjects, at level info: one for each rule and minute or, with =all, every one (default: none)."`
	LogFormat  string     `default:"text" enum:"text,json" env:"RLNODE_LOG_FORMAT" help:"text or json (default ${default})."`

	alone     bool   // set by complete: no other node can join this one
	gossipKey []byte // read by complete
}

const defaultGRPCPort = 8082

// complete checks the settings and fills in derived ones. It reports all mistakes.
func (c *serveCmd) complete() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	// node.Config would replace empty values with defaults.
	for _, set := range []struct{ flag, text string }{
		{"--name", c.Name}, {"--data-dir", c.DataDir}, {"--region", c.Region},
	} {
		if set.text == "" {
			wrong("%s: it must not be empty", set.flag)
		}
	}

	for _, set := range []struct {
		flag string
		n    int64
	}{
		{"--max-counters", c.MaxCounters}, {"--reservations", int64(c.Reservations)},
		{"--usage-subjects", int64(c.UsageSubjects)},
	} {
		if set.n == 0 {
			wrong("%s: it must not be 0", set.flag)
		}
	}

	bind, err := netip.ParseAddr(c.Bind)
	if err != nil {
		wrong("--bind: %q is not an IP address", c.Bind)
		// Any valid address will do: mistakes that follow from this one are not
		// reported.
		c.ClusterBind = cmp.Or(c.ClusterBind, "127.0.0.1")
	}

	if c.AdminBind == "" {
		c.AdminBind = "127.0.0.1"
		if bind.IsLoopback() {
			c.AdminBind = c.Bind
		}
	}
	if _, err := netip.ParseAddr(c.AdminBind); err != nil {
		wrong("--admin-bind: %q is not an IP address", c.AdminBind)
	}

	for _, set := range []struct {
		flag string
		port int
	}{
		{"--http-port", c.HTTPPort}, {"--grpc-port", c.GRPCPort},
		{"--redis-port", c.RedisPort}, {"--admin-port", c.AdminPort},
	} {
		if set.port < 0 || set.port > 65535 {
			wrong("%s: %d is not in 0…65535", set.flag, set.port)
		}
	}

	c.chooseClusterBind()
	errs = append(errs, c.tokenSettings.complete()...)
	c.gossipKey, err = c.readGossipKey()
	if err != nil {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, c.config().Validate())...)
}

// refusalLog is the value of --refusal-log, which may stand alone.
type refusalLog node.RefusalLog

// IsBool makes kong take the flag without a value.
func (*refusalLog) IsBool() bool { return true }

// Decode reads the value, if there is one, for kong.
func (r *refusalLog) Decode(ctx *kong.DecodeContext) error {
	value := "sampled"
	if ctx.Scan.Peek().Type == kong.FlagValueToken {
		value = fmt.Sprint(ctx.Scan.Pop().Value)
	}

	switch value {
	case "sampled", "true":
		*r = refusalLog(node.RefusalsSampled)
	case "all":
		*r = refusalLog(node.RefusalsAll)
	case "off", "false", "":
		*r = refusalLog(node.RefusalsOff)
	default:
		return fmt.Errorf("%.40q is not sampled, all or off", value)
	}

	return nil
}

// flagNames maps the fields of a node.Config to their flags.
var flagNames = map[string]string{
	"Name": "--name", "DataDir": "--data-dir", "Rules": "--rules", "MaxCounters": "--max-counters",
	"MaxConnections": "--max-connections", "MaxMatched": "--max-matched",
	"ReservationBytes": "--reservations", "RefusalLog": "--refusal-log", "DataAddr": "--http-port",
	"GRPCAddr": "--grpc-port", "RedisAddr": "--redis-port", "AdminAddr": "--admin-port",
	"CertFile": "--http-cert", "KeyFile": "--http-key",
	"APIToken": "--api-token", "AdminToken": "--admin-token", "TokensFile": "--tokens-file",
	"AdminHosts":  "--admin-host",
	"ClusterBind": "--cluster-bind", "Advertise": "--advertise", "GossipPort": "--gossip-port",
	"PeerPort": "--peer-port",
	"WANPort":  "--wan-port", "Rejoin": "--rejoin", "Join": "--join", "BootstrapExpect": "--bootstrap-expect",
	"Region": "--region", "Zone": "--zone", "PrimaryRegion": "--primary-region", "WANJoin": "--wan-join",
	"ClusterSecretFile": "--cluster-secret-file", "GossipKey": "--gossip-key",
	"TLSCert": "--tls-cert", "TLSKey": "--tls-key",
	"TLSCA": "--tls-ca", "InsecureCluster": "--insecure-cluster",
	"UsageMonths": "--usage-months", "UsageSubjects": "--usage-subjects",
	"OTLPEndpoint": "--otlp-endpoint", "TraceRatio": "--trace-ratio",
}

// config returns the node's Config.
func (c *serveCmd) config() node.Config {
	grpc := ""
	if c.GRPCPort != 0 {
		grpc = net.JoinHostPort(c.Bind, strconv.Itoa(c.GRPCPort))
	}

	redis := ""
	if c.RedisPort != 0 {
		redis = net.JoinHostPort(c.Bind, strconv.Itoa(c.RedisPort))
	}

	return node.Config{
		Name: c.Name, DataDir: c.DataDir, MaxCounters: c.MaxCounters, ReservationBytes: int64(c.Reservations),
		MaxConnections: c.MaxConnections, MaxMatched: c.MaxMatched, MemoryLimit: memoryLimit(),
		DataAddr: net.JoinHostPort(c.Bind, strconv.Itoa(c.HTTPPort)),
		GRPCAddr: grpc, AnyGRPCPort: c.GRPCPort == defaultGRPCPort, RedisAddr: redis,
		AdminAddr: net.JoinHostPort(c.AdminBind, strconv.Itoa(c.AdminPort)),
		CertFile:  c.HTTPCert, KeyFile: c.HTTPKey,
		APIToken: c.APIToken, AdminToken: c.AdminToken, TokensFile: c.TokensFile, AdminHosts: c.AdminHost,
		ClusterBind: c.ClusterBind, Advertise: c.Advertise, GossipPort: c.GossipPort,
		PeerPort: c.PeerPort, WANPort: c.WANPort,
		AnyPort: c.alone, // no other node needs to know those ports
		Join:    c.Join, BootstrapExpect: c.BootstrapExpect, LeaveOnClose: c.LeaveOnTerm, Rejoin: c.Rejoin,
		Region: c.Region, Zone: c.Zone, PrimaryRegion: c.PrimaryRegion, WANJoin: c.WANJoin,
		ClusterSecretFile: c.ClusterSecretFile, GossipKey: c.gossipKey, TLSCert: c.TLSCert,
		TLSKey: c.TLSKey, TLSCA: c.TLSCA,
		InsecureCluster: c.InsecureCluster,
		RefusalLog:      node.RefusalLog(c.RefusalLog),
		UsageMonths:     c.UsageMonths, UsageSubjects: c.UsageSubjects,
		OTLPEndpoint: c.OTLPEndpoint, TraceRatio: c.TraceRatio,
		FreeMemory: debug.FreeOSMemory,
		FieldName:  func(field string) string { return flagNames[field] },
	}
}

// warn logs what is allowed but seldom intended, such as unknown RLNODE_
// variables in the environment and unprotected planes.
func (c *serveCmd) warn(log *slog.Logger, environ []string) {
	known := map[string]bool{"RLNODE_ADDR": true, "RLNODE_ADMIN": true, "RLNODE_CA": true}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[serveCmd]()) {
		known[field.Tag.Get("env")] = true
	}

	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		// Orchestrators set variables of this form for services and their ports.
		linked := strings.Contains(name, "_SERVICE_") || strings.Contains(name, "_PORT_") &&
			strings.Contains(name, "_TCP")
		if strings.HasPrefix(name, "RLNODE_") && !known[name] && !linked {
			log.Warn("this version has no such setting", "environment", name)
		}
	}

	if c.InsecureCluster {
		log.Warn("--insecure-cluster: anyone who reaches the ports between nodes can take over the cluster", "cluster_bind", c.ClusterBind)
	}

	c.tokenSettings.warn(log, c.Bind, c.AdminBind)
}

// checkFounders refuses a number of founders that survives no more failures
// than one node fewer would. For a node with data, which founds nothing, it
// only warns.
func (c *serveCmd) checkFounders(log *slog.Logger) error {
	if c.BootstrapExpect == 0 || c.BootstrapExpect%2 == 1 {
		return nil
	}
	if persist.HasIdentity(c.DataDir) {
		log.Warn("new clusters are founded by 1, 3 or 5 voters; this node has data, so it founds none", "bootstrap_expect", c.BootstrapExpect)
		return nil
	}
	return usageError("--bootstrap-expect: a cluster is founded by 1, 3 or 5 voters, not by %d: an even number survives no more "+
		"failures than one node fewer would. More nodes than that may start", c.BootstrapExpect)
}

// logger returns a logger that writes to w as the settings say.
func (c *serveCmd) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // kong has checked the value
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if c.LogFormat == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	return slog.New(handler).With("self", c.Name)
}
