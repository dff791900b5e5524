package cluster

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// A node that is away for so long that the leader removes it joins again as it
// is, with its data: first as it was, then with rules that were written
// meanwhile. The log says why it went, and that it is there again.
func TestANodeThatWasForgottenJoinsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var log process.Output
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		nodes := w.several(3, 3)
		for _, n := range nodes {
			n.adjust = func(c *Config) { c.Timings.ForgetAfter = 3 * time.Minute }
			n.run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
		away := nodes[2]
		if w.leader() == away {
			away = nodes[1]
		}
		var rest []*node
		for _, n := range nodes {
			if n != away {
				rest = append(rest, n)
			}
		}

		away.crash()
		w.inRing(rest...)
		time.Sleep(2 * time.Minute)
		if !known(rest[0], away) {
			t.Fatal("it is forgotten after two minutes, want three")
		}
		w.until(5*time.Minute, "removal of a node that is away", func() bool {
			for _, n := range rest {
				if known(n, away) {
					return false
				}
			}
			return true
		})
		if d := rest[0].c.Load().State().Departure(away.id); d != nil {
			t.Errorf("it was not removed by an operator: got %s", d)
		}
		version := rest[0].mustWrite(77)
		begins := len(log.String())

		away.run()
		w.inRing(nodes...)
		w.ready(nodes...)
		expect.Equal(t, away.c.Load().State().History.Versions()[0].Number, version, "rules of the node that is back")
		w.until(time.Minute, "vote of the node that is back",
			func() bool { return len(w.leader().c.Load().voterIDs()) == 3 })

		before, after := log.String()[:begins], log.String()[begins:]
		for text, want := range map[string]string{
			before: fmt.Sprintf(`msg="removing a node" at=\S+ name=%s .*because="it was away for too long"`, away.name),
			after:  fmt.Sprintf(`(?s)%s has joined.*adding a node" at=\S+ name=%[1]s .*making a node a voter" at=\S+ name=%[1]s `, away.name),
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("the log does not say %s:\n%s", want, text)
			}
		}
		if strings.Contains(after, "level=WARN") || strings.Contains(after, "level=ERROR") {
			t.Errorf("the return is no trouble:\n%s", after)
		}
	})
}

// known reports whether a node knows another one as a member, or lists it, in whatever state.
func known(n, other *node) bool {
	c := n.c.Load()
	_, member := c.State().Members[other.id]
	return member || slices.ContainsFunc(c.View().Members, func(m Member) bool { return m.ID == other.id })
}
