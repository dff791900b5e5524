package document

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Settings may be given in the defaults and in rules; a rule's take precedence.
type Settings struct {
	Consistency string // exact, hybrid or local
	OnPartition string // share, full, allow or deny
	OnLimit     string // refuse or delay
	MaxDelay    Span
	Lease       LeaseSpec
	IPv4Prefix  int // bits
	IPv6Prefix  int // bits
	TZ          string
}

// The prefixes where neither the rule nor the defaults give any: they tell all
// IPv4 addresses apart, and group IPv6 addresses by /64, because a customer
// usually has a whole /64.
const (
	DefaultIPv4Prefix = 32
	DefaultIPv6Prefix = 64
)

// Defaults apply to every limit and rule that doesn't override them.
type Defaults struct {
	Algorithm string
	Settings
}

// LeaseSpec says how a hybrid rule's leases work.
type LeaseSpec struct {
	Threshold float64 // 0.5…0.95: once more than this fraction of the limit is used, checks go to the owner
	TTL       Span    // 50ms…5s
	AutoTTL   bool    // ttl: auto, a twentieth of the window
	Idle      float64 // above 0, at most 0.5
}

// Headers says which families of response headers to send.
type Headers struct {
	IETF       bool
	XRateLimit bool
	ResetDelta bool // X-RateLimit-Reset as seconds from now instead of Unix seconds
}

// PartitionWords are the values of `on_partition`.
var PartitionWords = [...]string{"share", "full", "allow", "deny"}

// settingFields are the keys that defaults and rules share.
func settingFields[T any](at func(*T) *Settings) map[string]field[T] {
	out := map[string]field[T]{}
	for _, f := range []field[T]{
		of("consistency", wordCodec("exact", "hybrid", "local"), func(t *T) *string { return &at(t).Consistency }),
		of("on_partition", wordCodec(PartitionWords[:]...), func(t *T) *string { return &at(t).OnPartition }),
		of("lease", leaseCodec, func(t *T) *LeaseSpec { return &at(t).Lease }),
		of("on_limit", wordCodec("refuse", "delay"), func(t *T) *string { return &at(t).OnLimit }),
		of("max_delay", spanCodec(time.Millisecond, algorithms.LongestDelay),
			func(t *T) *Span { return &at(t).MaxDelay }),
		of("ipv4_prefix", integerCodec(1, 32), func(t *T) *int { return &at(t).IPv4Prefix }),
		of("ipv6_prefix", integerCodec(1, 128), func(t *T) *int { return &at(t).IPv6Prefix }),
		of("tz", zoneCodec, func(t *T) *string { return &at(t).TZ }),
	} {
		out[f.key] = f
	}

	return out
}

var (
	algorithmCodec = codec[string]{(*decoder).algorithm, text}
	zoneCodec      = codec[string]{(*decoder).zone, text}
	leaseCodec     = codec[LeaseSpec]{(*decoder).lease, unlessZero(leaseNode)}
)

func (dec *decoder) zone(n *yaml.Node) string {
	s, ok := dec.text(n)
	if !ok {
		return ""
	}

	// Each name is looked up once. Beyond maxZones names, many must be mistakes:
	// any further one counts as a mistake, too, and is not looked up.
	valid, known := dec.zones[s]
	if !known && len(dec.zones) < maxZones {
		_, err := algorithms.Zone(s)
		valid = err == nil
		if dec.zones == nil {
			dec.zones = map[string]bool{}
		}
		dec.zones[s] = valid
	}

	if !valid {
		dec.fail(n, "%q is not a time zone such as UTC or Europe/Berlin", Shorten(s))
		return ""
	}

	return s
}

// windowAlgorithms are the algorithms that count what happens over time.
var windowAlgorithms = [...]string{
	algorithms.TokenBucket.String(), algorithms.LeakyBucket.String(), algorithms.FixedWindow.String(),
	algorithms.SlidingLog.String(), algorithms.SlidingWindow.String(),
}

func (dec *decoder) algorithm(n *yaml.Node) string {
	return dec.word(n, windowAlgorithms[:]...)
}

var leaseFields = fieldsOf(
	of("threshold", fractionCodec(0.5, 0.95), func(l *LeaseSpec) *float64 { return &l.Threshold }),
	field[LeaseSpec]{"ttl", func(d *decoder, n *yaml.Node, l *LeaseSpec) {
		d.alsoWords(n, "auto")
		l.AutoTTL = n.Kind == yaml.String && n.Text == "auto"
		if !l.AutoTTL {
			l.TTL = d.span(n, 50*time.Millisecond, 5*time.Second)
		}
	}, func(l *LeaseSpec) *yaml.Node {
		if l.AutoTTL {
			return text("auto")
		}
		return text(l.TTL.Text)
	}},
	of("idle", positiveCodec(0.5, "idle"), func(l *LeaseSpec) *float64 { return &l.Idle }),
)

func (dec *decoder) lease(n *yaml.Node) (out LeaseSpec) {
	leaseFields.read(dec, n, &out, nil)
	return out
}

func leaseNode(l LeaseSpec) *yaml.Node { return leaseFields.node(&l).OnOneLine() }

var (
	defaults = settingFields(func(f *Defaults) *Settings { return &f.Settings })

	defaultsFields = fieldsOf(
		of("algorithm", algorithmCodec, func(f *Defaults) *string { return &f.Algorithm }),
		defaults["consistency"], defaults["on_partition"], defaults["lease"], defaults["on_limit"],
		defaults["max_delay"],
		defaults["ipv4_prefix"], defaults["ipv6_prefix"], defaults["tz"],
	)

	headerFields = fieldsOf(
		of("ietf", booleanCodec, func(h *Headers) *bool { return &h.IETF }),
		of("x_ratelimit", booleanCodec, func(h *Headers) *bool { return &h.XRateLimit }),
		of("reset", codec[bool]{
			func(d *decoder, n *yaml.Node) bool { return d.word(n, resetWords[:]...) == resetWords[1] },
			func(delta bool) *yaml.Node {
				if delta {
					return text(resetWords[1])
				}
				return text(resetWords[0])
			},
		}, func(h *Headers) *bool { return &h.ResetDelta }),
	)
)

// resetWords are the values of `headers.reset`.
var resetWords = [...]string{"unix", "delta"}
