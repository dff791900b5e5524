package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// texts writes events as "LEVEL text name=value… × count".
func texts(list []Event) (out []string) {
	for _, e := range list {
		var b strings.Builder
		fmt.Fprintf(&b, "%v %s", e.Level, e.Text)
		for _, f := range e.Fields {
			fmt.Fprintf(&b, " %s=%s", f.Name, f.Value)
		}
		fmt.Fprintf(&b, " × %d", e.Count)
		out = append(out, b.String())
	}
	return out
}

// Lines at INFO and above are events, whatever the log shows. Those about
// subjects are not. One that repeats is one event.
func TestEventsAreWhatTheLogSays(t *testing.T) {
	var e Events
	var out strings.Builder
	log := slog.New(e.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	log.Debug("details")
	log.Info("rules are in force", "version", 3, "by", "ann")
	log.With("epoch", 7).WithGroup("g").Warn("partitions move", "error", errors.New("slow"))
	log.Info("refused", "rule", "login", "subject", "198.51.100.7")
	for range 3 {
		log.Info("the disk is slow")
	}
	for range 2 { // when it failed is known of each time
		log.Info("n3 has failed")
		log.Info("n3 is back")
	}
	got := strings.Join(texts(e.since(0)), "\n")
	want := "INFO rules are in force version=3 by=ann × 1\nWARN partitions move epoch=7 g.error=slow × 1\nINFO the disk is slow × 3\n" +
		"INFO n3 has failed × 1\nINFO n3 is back × 1\nINFO n3 has failed × 1\nINFO n3 is back × 1"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "g.error=slow") {
		t.Errorf("the log: got %s", text)
	}
	if log.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("debug lines are enabled")
	}
}

// Events are bounded in number and size, whatever is logged.
func TestEventsAreBounded(t *testing.T) {
	var e Events
	log := slog.New(e.Handler(slog.NewTextHandler(io.Discard, nil)))
	log.Info("n3 has failed")
	for i := range 3 * maxEvents {
		args := []any{"i", i}
		for j := range 20 {
			args = append(args, fmt.Sprint(j), strings.Repeat("é", 5000))
		}
		log.Error(strings.Repeat("x", 5000), args...)
	}
	list := e.since(0)
	if first := list[1]; len(list) != maxEvents || len(first.Text) > maxText ||
		len(first.Fields) != maxFields || len(first.Fields[1].Value) > maxText {
		t.Errorf("got %d events, the first %+v", len(list), first)
	}
	expect.Equal(t, list[0].Text, "n3 has failed", "what is kept of the members")
	b := e.unsaved()
	if len(b) == 0 || len(b) > maxPacked || e.unsaved() != nil {
		t.Errorf("got %d bytes", len(b))
	}
	var again Events
	again.restore(b)
	if list := again.since(0); len(list) < 2 || list[0].Text != "n3 has failed" {
		t.Errorf("%d events were restored, the first %+v", len(list), list[:min(1, len(list))])
	}
	for range 2 * maxEvents { // members that come and go all day don't push out the rest
		log.Info("n3 is back")
	}
	if list := e.since(0); len(list) != maxEvents || list[maxEvents/2-1].Level != slog.LevelError {
		t.Errorf("got %d events, that in the middle %v", len(list), list[maxEvents/2-1].Text)
	}
	again.restore(b[:len(b)/2]) // damaged: no change
}

// Events survive a restart, and are forgotten after a day. Those of the other nodes are asked for.
func TestEventsOverRestarts(t *testing.T) {
	n, other := newNode(1), newNode(2)
	n.others = map[ring.NodeID]*node{{2}: other}
	add := func(n *node, text string) {
		n.config.Events.add(Event{At: n.wall.UnixMilli(), Text: text, Count: 1})
	}
	add(n, "first")
	n.wall = n.wall.Add(23 * time.Hour)
	add(n, "second")
	n.restart(false)
	n.config.Events = &Events{}
	add(n, "third")
	n.History = Open(n.config)
	if got := texts(n.Events()[0].Events); strings.Join(got,
		", ") != "INFO first × 1, INFO second × 1, INFO third × 1" {
		t.Errorf("got %q", got)
	}
	n.wall = n.wall.Add(2 * time.Hour)
	n.lines.at = time.Time{}
	add(other, "elsewhere")
	logs := n.Events()
	if got := texts(logs[0].Events); len(got) != 2 {
		t.Errorf("a day later: got %q", got)
	}
	if len(logs) != 2 || logs[1].Node != other.config.Self || len(logs[1].Events) != 1 ||
		logs[1].Events[0].Text != "elsewhere" {
		t.Errorf("got %+v", logs)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add(wire.Encode(nil, &eventList{{At: 1, Text: "x", Fields: []Field{{"a", "b"}}, Count: 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l eventList
		if wire.Decode(b, &l, "events") == nil && len(l) > maxEvents {
			t.Errorf("got %d events", len(l))
		}
	})
}
