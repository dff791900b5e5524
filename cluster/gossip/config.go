package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// ErrConfig means that a Config is invalid. The errors that wrap it name the field.
var ErrConfig = errors.New("invalid gossip configuration")

// Config describes this node, its addresses, and the nodes to join. A duration
// of 0 means its default.
type Config struct {
	Self      Member // Open sets State, Address and GossipPort
	BindAddr  string // IP of the listeners
	Port      int    // TCP and UDP; 0 picks a free one
	AnyPort   bool   // if Port is taken, use another one
	Advertise string // IP at which other nodes reach this one; by default BindAddr, unless that is unspecified
	WAN       bool   // join the pool of entry nodes of all regions; see the package comment
	// Keyring holds the keys: all messages are encrypted with its first key, and
	// accepted with any. It may change at any time. nil: no encryption.
	Keyring *memberlist.Keyring

	Join       []string // seeds: host[:port]; names are resolved before each attempt. At most 64
	Remembered []string // addresses that Addresses returned in an earlier run. At most 1,000 are used

	// Accept may refuse a member. It must not block, because memberlist calls it under a lock.
	Accept func(Member) error
	// News sends and receives the nodes' other messages; nil: none.
	News News
	// Transport replaces the network; Close shuts it down.
	Transport memberlist.Transport
	// Lookup resolves the names of seeds; by default, the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Logger *slog.Logger

	// Defaults; those of a WAN pool are in brackets.
	ProbeInterval  time.Duration // 500 ms (2 s): between two probes, of one member each
	ProbeTimeout   time.Duration // 300 ms (1 s): without an answer by then, other members probe it, too
	GossipInterval time.Duration // 150 ms (300 ms): between two rounds of gossip
	SyncInterval   time.Duration // 15 s (30 s): between two exchanges of the whole list, with one member each
	StreamTimeout  time.Duration // 5 s (10 s): bounds the dial for such an exchange, and again the exchange itself
	ReclaimAfter   time.Duration // 5 s: a failed member may return with another address after this
	RejoinInterval time.Duration // 10 s (5 s): between two rounds of joining seeds and failed members

	seeds []seed // Join, parsed by withDefaults
}

const (
	maxSeeds      = 64
	maxRemembered = 1000

	// A label on packets and streams keeps out other software that uses memberlist
	// on its usual port, and keeps a region's pool apart from the WAN pool.
	label    = "rlnode"
	labelWAN = "rlnode-wan"
)

// Validate returns the error that Open would return for an invalid c. It wraps
// ErrConfig or ErrMetadata.
func (c Config) Validate() error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	_, err = appendMetadata(nil, c.Self)
	return err
}

// withDefaults checks c and fills in defaults.
func (c Config) withDefaults() (Config, error) {
	if c.Self.ID.IsZero() {
		return c, fmt.Errorf("%w: Self.ID is zero", ErrConfig)
	}

	if c.Keyring != nil && len(c.Keyring.GetKeys()) == 0 {
		return c, fmt.Errorf("%w: Keyring has no keys, so nothing would be encrypted", ErrConfig)
	}

	if c.Port < 0 || c.Port > 65535 || (c.Port == 0 && c.Transport != nil) {
		return c, fmt.Errorf("%w: Port is %d, not a port", ErrConfig, c.Port)
	}

	c.BindAddr = cmp.Or(c.BindAddr, "0.0.0.0")
	bind, err := netip.ParseAddr(c.BindAddr)
	if err != nil {
		return c, fmt.Errorf("%w: BindAddr is %q, not an IP", ErrConfig, c.BindAddr)
	}
	if c.Advertise == "" && !bind.IsUnspecified() {
		c.Advertise = c.BindAddr
	}
	// memberlist would guess an address, and in containers guess wrong.
	ip, err := netip.ParseAddr(c.Advertise)
	if err != nil || ip.IsUnspecified() {
		return c, fmt.Errorf("%w: Advertise is %q, not an IP that other nodes could use", ErrConfig, c.Advertise)
	}

	if len(c.Join) > maxSeeds {
		return c, fmt.Errorf("%w: Join has %d seeds, more than %d", ErrConfig, len(c.Join), maxSeeds)
	}

	c.seeds = nil // c is a copy: it must not append to the seeds of another one
	for _, text := range c.Join {
		s, err := parseSeed(text, c.Port)
		if err != nil {
			return c, err
		}
		c.seeds = append(c.seeds, s)
	}

	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}

	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.fillTimes()
	return c, nil
}

func (c *Config) fillTimes() {
	defaults := []struct {
		field    *time.Duration
		lan, wan time.Duration
	}{
		{&c.ProbeInterval, 500 * time.Millisecond, 2 * time.Second},
		{&c.ProbeTimeout, 300 * time.Millisecond, time.Second},
		{&c.GossipInterval, 150 * time.Millisecond, 300 * time.Millisecond},
		{&c.SyncInterval, 15 * time.Second, 30 * time.Second},
		{&c.StreamTimeout, 5 * time.Second, 10 * time.Second},
		{&c.ReclaimAfter, 5 * time.Second, 5 * time.Second},
		{&c.RejoinInterval, 10 * time.Second, 5 * time.Second},
	}

	for _, d := range defaults {
		usual := d.lan
		if c.WAN {
			usual = d.wan
		}
		if *d.field <= 0 {
			*d.field = usual
		}
	}
}

func (c Config) label() string {
	if c.WAN {
		return labelWAN
	}
	return label
}

// memberlist returns the library's configuration for c; the caller sets
// delegates and the transport.
func (c Config) memberlist(logger *log.Logger) *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name = c.Self.ID.String() // memberlist's key of a member: an address may change, or be shared
	m.BindAddr = c.BindAddr
	m.BindPort = c.Port
	m.AdvertiseAddr = c.Advertise
	m.AdvertisePort = c.Port
	m.Label = c.label()
	m.SkipInboundLabelCheck = true // the inspector checks and removes it
	m.Keyring = c.Keyring
	m.GossipVerifyIncoming = false // the inspector verifies and decrypts messages
	m.GossipVerifyOutgoing = true
	// Messages are short and hardly compressible, and the inspector refuses compressed ones.
	m.EnableCompression = false
	m.Logger = logger

	m.ProbeInterval = c.ProbeInterval
	m.ProbeTimeout = c.ProbeTimeout
	m.GossipInterval = c.GossipInterval
	m.PushPullInterval = c.SyncInterval
	m.TCPTimeout = c.StreamTimeout
	m.DeadNodeReclaimTime = c.ReclaimAfter
	// If no other member confirms a suspicion, the suspected one fails after twice
	// the minimum time instead of six times, the default: a node that is cut off
	// must not take half a minute to notice.
	m.SuspicionMaxTimeoutMult = 2
	// For the same reason, this node probes at least every 2 s (WAN: 8 s).
	m.AwarenessMaxMultiplier = 4
	return m
}

// seed is an address of a possible member.
type seed struct {
	host string
	port uint16
}

// parseSeed parses host, host:port, an IPv6 address, or [IPv6]:port.
func parseSeed(s string, defaultPort int) (seed, error) {
	host, port := s, strconv.Itoa(defaultPort)
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		host = ip.String()
	} else if strings.Contains(s, ":") {
		host, port, err = net.SplitHostPort(s)
		if err != nil {
			return seed{}, fmt.Errorf("%w: Join must list host[:port], not %q", ErrConfig, s)
		}
	}

	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil {
		return seed{}, fmt.Errorf("%w: Join must list host[:port], not %q", ErrConfig, s)
	}
	return seed{host: host, port: uint16(n)}, nil
}
