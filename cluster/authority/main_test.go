package authority

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTestGranter fills in defaults that a test doesn't care about.
func newTestGranter(c GranterConfig) *Granter {
	if c.Now == nil {
		start := time.Now()
		c.Now = func() time.Duration { return time.Since(start) }
	}
	if c.RulesIndex == nil {
		c.RulesIndex = func() uint64 { return 0 }
	}
	c.TransferLead, c.Logger = func() {}, slog.New(slog.DiscardHandler)
	return NewGranter(c)
}

// newTestHolder fills in defaults that a test doesn't care about.
func newTestHolder(c HolderConfig) *Holder {
	if c.OnChange == nil {
		c.OnChange = func() {}
	}
	c.Logger = slog.New(slog.DiscardHandler)
	return NewHolder(c)
}
