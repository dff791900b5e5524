package api

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

// unruled is a decider without rules.
type unruled struct{ Decider }

func (unruled) Rules() *rules.Set { return nil }

// However many probes arrive at once, what they are answered is found out once.
func TestHealthReport_IsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var meanwhile func()
		d := &Doors{Config: Config{Decider: unruled{}, Logger: slog.Default(), Health: func() ClusterHealth {
			asked++
			meanwhile()
			return ClusterHealth{Connected: true, LeaderKnown: true}
		}}}
		meanwhile = func() {}
		first := string(d.HealthReport())
		for range 1000 {
			expect.Equal(t, string(d.HealthReport()), first, "the report")
		}
		expect.Equal(t, asked, 1, "reports made")

		time.Sleep(reportFor)
		meanwhile = func() { expect.Equal(t, string(d.HealthReport()), first, "the report while the next one is made") }
		d.HealthReport()
		expect.Equal(t, asked, 2, "reports made")
	})
}
