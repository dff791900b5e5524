package gossip

import (
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

// ErrConfig means that a Config can't be used as it is.
var ErrConfig = errors.New("bad gossip settings")

// Config says who this node is, where it gossips and whom it looks for. A duration that is zero has its default.
type Config struct {
	Self      Member // State, Address and GossipPort are set by Open
	BindAddr  string // IP of the listeners
	Port      int    // TCP and UDP; 0 takes a free one
	Advertise string // IP that others use; BindAddr if that is a certain one
	Key       []byte // 16, 24 or 32 bytes: nothing is sent or taken that is not encrypted with it. nil: no encryption

	Join       []string // seeds: host[:port]; names are resolved again at each try. At most 64
	Remembered []string // what Addresses returned in an earlier run. At most 1,000 are used

	// Accept may refuse a member. It must not block: memberlist waits for it under a lock.
	Accept func(Member) error
	// News are told and heard beside; nil: none.
	News News
	// Transport takes the place of the network; Close shuts it down.
	Transport memberlist.Transport
	// Lookup resolves the names of seeds; the system's resolver by default.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Logger *slog.Logger

	ProbeInterval  time.Duration // 500 ms: one other member is probed so often
	ProbeTimeout   time.Duration // 300 ms: without an answer for so long, others are asked to probe too
	GossipInterval time.Duration // 150 ms
	SyncInterval   time.Duration // 15 s: the whole list is exchanged with one member so often
	StreamTimeout  time.Duration // 5 s: to connect for such an exchange, and again to make it
	ReclaimAfter   time.Duration // 5 s: so long after it failed, a member may come back with another address
	RejoinInterval time.Duration // 10 s: seeds and failed members are joined again so often
}

const (
	maxSeeds      = 64
	maxRemembered = 1000

	// label marks our packets, so that other software that uses memberlist on its usual port stays out.
	label = "rlnode"
)

// withDefaults checks c and fills in what is not said.
func (c Config) withDefaults() (Config, error) {
	if c.Self.ID.IsZero() {
		return c, fmt.Errorf("%w: no node ID", ErrConfig)
	}
	if n := len(c.Key); n != 0 && n != 16 && n != 24 && n != 32 {
		return c, fmt.Errorf("%w: a key has 16, 24 or 32 bytes, not %d", ErrConfig, n)
	}
	if c.Port < 0 || c.Port > 65535 || (c.Port == 0 && c.Transport != nil) {
		return c, fmt.Errorf("%w: port %d", ErrConfig, c.Port)
	}
	if c.BindAddr == "" {
		c.BindAddr = "0.0.0.0"
	}
	bind, err := netip.ParseAddr(c.BindAddr)
	if err != nil {
		return c, fmt.Errorf("%w: the bind address %q is no IP", ErrConfig, c.BindAddr)
	}
	if c.Advertise == "" && !bind.IsUnspecified() {
		c.Advertise = c.BindAddr
	}
	// memberlist would guess one, and in containers guess wrong.
	if ip, err := netip.ParseAddr(c.Advertise); err != nil || ip.IsUnspecified() {
		return c, fmt.Errorf("%w: the advertised address %q is no IP that others could use", ErrConfig, c.Advertise)
	}
	if len(c.Join) > maxSeeds {
		return c, fmt.Errorf("%w: %d seeds, at most %d are of use", ErrConfig, len(c.Join), maxSeeds)
	}
	for _, s := range c.Join {
		if _, err := parseSeed(s, c.Port); err != nil {
			return c, err
		}
	}
	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		have *time.Duration
		def  time.Duration
	}{
		{&c.ProbeInterval, 500 * time.Millisecond}, {&c.ProbeTimeout, 300 * time.Millisecond},
		{&c.GossipInterval, 150 * time.Millisecond}, {&c.SyncInterval, 15 * time.Second},
		{&c.StreamTimeout, 5 * time.Second}, {&c.ReclaimAfter, 5 * time.Second}, {&c.RejoinInterval, 10 * time.Second},
	} {
		if *d.have <= 0 {
			*d.have = d.def
		}
	}
	return c, nil
}

// memberlist is the library's configuration for c; delegates and the transport are the caller's.
func (c Config) memberlist(logger *log.Logger) *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name = c.Self.ID.String() // names are keys: an address may change, or be shared
	m.BindAddr, m.BindPort = c.BindAddr, c.Port
	m.AdvertiseAddr, m.AdvertisePort = c.Advertise, c.Port
	m.Label = label
	m.SecretKey = c.Key
	m.GossipVerifyIncoming, m.GossipVerifyOutgoing = true, true
	// What is sent is short and random; and the less there is to unpack, the better.
	m.EnableCompression = false
	m.Logger = logger

	m.ProbeInterval, m.ProbeTimeout = c.ProbeInterval, c.ProbeTimeout
	m.GossipInterval = c.GossipInterval
	m.PushPullInterval = c.SyncInterval
	m.TCPTimeout = c.StreamTimeout
	m.DeadNodeReclaimTime = c.ReclaimAfter
	// A member that nobody confirms to be silent is given twice the time, not six times: a node that is cut off
	// should not take half a minute to see it.
	m.SuspicionMaxTimeoutMult = 2
	m.AwarenessMaxMultiplier = 4 // and probes at least each 2 s, for the same reason
	return m
}

// seed is a place to look for members.
type seed struct {
	host string
	port uint16
}

// parseSeed reads host, host:port, an IPv6 address, or [IPv6]:port.
func parseSeed(s string, defaultPort int) (seed, error) {
	host, port := s, strconv.Itoa(defaultPort)
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		host = ip.String()
	} else if strings.Contains(s, ":") {
		if host, port, err = net.SplitHostPort(s); err != nil {
			return seed{}, fmt.Errorf("%w: %q is no host[:port]", ErrConfig, s)
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil {
		return seed{}, fmt.Errorf("%w: %q is no host[:port]", ErrConfig, s)
	}
	return seed{host: host, port: uint16(n)}, nil
}
