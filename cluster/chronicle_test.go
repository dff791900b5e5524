package cluster

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// A node that was ended and comes back takes partitions over: they are counted,
// although the ring is then the one from before its end.
func TestAMoveAfterAnEndIsCounted(t *testing.T) {
	with, err := ring.New([]ring.NodeID{id(1), id(2), id(3)}, ring.DefaultSettings())
	expect.NoError(t, err)
	without, err := ring.New([]ring.NodeID{id(1), id(2)}, ring.DefaultSettings())
	expect.NoError(t, err)

	var log bytes.Buffer
	ch := chronicle{core: &core{config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}, led: true}
	for _, s := range []*agreement.State{
		{Epoch: 1, From: with, To: with, Settled: true},
		{Epoch: 1, From: without, To: without, Settled: true}, // an end raises no epoch
		{Epoch: 2, From: with, To: with, Settled: true},
	} {
		ch.logMove(s)
	}

	want := fmt.Sprintf("partitions=%d ", movedPartitions(without, with))
	if strings.Count(log.String(), "partitions have moved") != 1 || !strings.Contains(log.String(), want) {
		t.Errorf("log: got %q, want one move with %s", log.String(), want)
	}
}

// A node that begins to lead during a move logs how many partitions this move
// concerns, whether it has seen an earlier ring or was just started.
func TestALeaderElectedDuringAMoveCountsIt(t *testing.T) {
	var rings []*ring.Table
	for n := byte(2); n <= 4; n++ {
		var ids []ring.NodeID
		for i := byte(1); i <= n; i++ {
			ids = append(ids, id(i))
		}
		table, err := ring.New(ids, ring.DefaultSettings())
		expect.NoError(t, err)
		rings = append(rings, table)
	}
	states := []*agreement.State{
		{Epoch: 1, From: rings[0], To: rings[0], Settled: true},
		{Epoch: 2, From: rings[0], To: rings[1], Settled: true},
		{Epoch: 3, From: rings[1], To: rings[2]},
	}
	settled := *states[2]
	settled.From, settled.Settled = settled.To, true

	want := fmt.Sprintf("partitions=%d", movedPartitions(rings[1], rings[2]))
	for name, seen := range map[string][]*agreement.State{
		"a node that follows": states, "a node just started": states[2:],
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			ch := chronicle{core: &core{config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}}
			for _, s := range seen {
				ch.logMove(s)
			}
			expect.Equal(t, log.Len(), 0, "bytes logged by a follower")

			ch.led = true
			ch.logMove(states[2])
			ch.logMove(&settled)
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 2 || !strings.Contains(lines[0], "partitions move") ||
				!strings.Contains(lines[1], "partitions have moved") || strings.Count(log.String(), want) != 2 {
				t.Errorf("have %q, want a beginning and an end with %s", lines, want)
			}
		})
	}
}
