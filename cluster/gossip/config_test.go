package gossip

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

func TestConfig(t *testing.T) {
	ok := Config{Self: Member{ID: id(1), Name: "n"}, BindAddr: "127.0.0.1"}
	for name, test := range map[string]struct {
		change func(*Config)
		bad    bool
	}{
		"plain": {change: func(*Config) {}},
		"a key": {change: func(c *Config) { c.Keyring = keyring(make([]byte, 24)) }},
		"IPv6": {change: func(c *Config) {
			c.BindAddr, c.Join = "::1",
				[]string{"::1", "[::1]:7", "[::1]"}
		}},
		"any address, advertised":   {change: func(c *Config) { c.BindAddr, c.Advertise = "", "10.1.2.3" }},
		"no ID":                     {change: func(c *Config) { c.Self.ID = ring.NodeID{} }, bad: true},
		"no key":                    {change: func(c *Config) { c.Keyring = &memberlist.Keyring{} }, bad: true},
		"a bad port":                {change: func(c *Config) { c.Port = 65536 }, bad: true},
		"a name to bind to":         {change: func(c *Config) { c.BindAddr = "localhost" }, bad: true},
		"any address":               {change: func(c *Config) { c.BindAddr = "0.0.0.0" }, bad: true},
		"any address is advertised": {change: func(c *Config) { c.Advertise = "::" }, bad: true},
		"a name is advertised":      {change: func(c *Config) { c.Advertise = "localhost" }, bad: true},
		"a seed without host":       {change: func(c *Config) { c.Join = []string{":7946"} }, bad: true},
		"a seed with a bad port":    {change: func(c *Config) { c.Join = []string{"a:b"} }, bad: true},
		"an empty seed":             {change: func(c *Config) { c.Join = []string{""} }, bad: true},
		"too many seeds":            {change: func(c *Config) { c.Join = strings.Split(strings.Repeat("a,", 64)+"a", ",") }, bad: true},
	} {
		c := ok
		test.change(&c)
		c, err := c.withDefaults()
		if errors.Is(err, ErrConfig) != test.bad || (err != nil) != test.bad {
			t.Errorf("%s: have error %v, want one: %v", name, err, test.bad)
		}
		if err == nil &&
			(c.Advertise == "" || c.ProbeInterval != 500*time.Millisecond || c.Logger == nil || c.Lookup == nil) {
			t.Errorf("%s: have %+v", name, c)
		}
	}
	if _, err := Open(Config{Self: Member{ID: id(1)}, BindAddr: "127.0.0.1"}); !errors.Is(err, ErrMetadata) {
		t.Errorf("no name: have error %v", err)
	}
}

func TestSeeds(t *testing.T) {
	for have, want := range map[string]seed{
		"n1": {"n1", 1}, "n1.example:2": {"n1.example", 2}, "10.0.0.1": {"10.0.0.1", 1}, "10.0.0.1:2": {"10.0.0.1", 2},
		"::1": {"::1", 1}, "[::1]": {"::1", 1}, "[::1]:2": {"::1", 2}, "fd00::1:2": {"fd00::1:2", 1},
	} {
		if s, err := parseSeed(have, 1); err != nil || s != want {
			t.Errorf("%s: have %v, %v, want %v", have, s, err, want)
		}
	}
}

func TestMemberlistLogsThroughSlog(t *testing.T) {
	j := &journal{}
	l := newAdapter(slog.New(j))
	for range 3 {
		l.Printf("[ERR] memberlist: Failed fallback TCP ping: read tcp 10.0.0.2:%d->10.0.0.1:2: i/o timeout", time.Now().Nanosecond())
		l.Printf("[ERR] memberlist: Push/Pull with a failed: read tcp 10.0.0.2:%d->10.0.0.1:2: i/o timeout", time.Now().Nanosecond())
		l.Printf("[ERR] memberlist: Failed to send ack: %s from=10.0.0.1:%d", "x", time.Now().Nanosecond())
		l.Printf("[WARN] memberlist: Refuting a suspect message (from: a)")
		l.Printf("[INFO] memberlist: Suspect a has failed, no acks received")
		l.Printf("[ERR] memberlist: Conflicting address for a")
		// by this node
		l.Printf("[ERR] memberlist: failed to receive: read tcp 10.0.0.2:1->10.0.0.1:2: %v from=10.0.0.1:2", net.ErrClosed)
		l.Printf("[DEBUG] memberlist: Stream connection")
		l.Printf("no level")
	}
	for _, test := range []struct {
		level slog.Level
		text  string
		want  int
	}{
		{slog.LevelError, "", 0}, {slog.LevelWarn, "Failed to send", 1},
		{slog.LevelWarn, "Failed fallback", 0}, {slog.LevelWarn, "Push/Pull", 1},
		{slog.LevelWarn, "Refuting", 0},
		{slog.LevelInfo, "", 2}, {slog.LevelDebug, "", 27}, {slog.LevelDebug, "] ", 0},
	} {
		expect.Equal(t, j.count(test.level, test.text), test.want, "%v %q, lines", test.level, test.text)
	}
}

func TestSaidIsBounded(t *testing.T) {
	s := logLimiter[int]{every: time.Minute}
	now := time.Now()
	for i := range maxLogged {
		if !s.shouldLog(i, now) {
			t.Fatal("not logged at first")
		}
	}
	if s.shouldLog(-1, now) || s.shouldLog(0, now) {
		t.Error("logged beyond the bound, or again")
	}
	if later := now.Add(time.Minute); !s.shouldLog(-1, later) || len(s.when) != 1 {
		t.Errorf("have %d remembered, want those that are old dropped", len(s.when))
	}
}
