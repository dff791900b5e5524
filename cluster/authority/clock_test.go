package authority

import (
	"context"
	"testing"
	"time"
)

func TestClockIsNeverAheadAndBarelyBehind(t *testing.T) {
	if _, ok := boottime(); !ok {
		t.Skip("no such clock here")
	}
	c := NewClock()
	for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); {
		before, _ := boottime()
		have := c.Boottime()
		after, _ := boottime()
		if have > after {
			t.Fatalf("the clock is %v ahead", have-after)
		}
		if have < before-ClockSlack {
			t.Fatalf("the clock is %v behind", before-have)
		}
		time.Sleep(20 * time.Microsecond) // leave the processor to others
	}
}

// TestClockSeesASuspend simulates the effect of a suspend: only the wall clock advances.
func TestClockSeesASuspend(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name  string
		alone time.Duration // how much more the wall clock advanced than the monotonic one
		want  bool
	}{
		{"nothing", 0, true},
		{"what slewing makes", 2 * time.Millisecond, true},
		{"a suspend", time.Second, false},
		{"a clock set back", -time.Second, false},
		{"just too much", maxDrift + time.Millisecond, false},
	}
	for _, tt := range tests {
		a := anchor{at: now}
		later := now.Add(500 * time.Millisecond)
		if _, have := a.agrees(later, later.UnixNano()+int64(tt.alone)); have != tt.want {
			t.Errorf("%s: have %v, want %v", tt.name, have, tt.want)
		}
	}
	if _, ok := (&anchor{at: now}).agrees(now.Add(-time.Second), now.Add(-time.Second).UnixNano()); ok {
		t.Error("a reading before the anchor is trusted")
	}
}

func TestClockWithoutAnAnchorAsksTheKernel(t *testing.T) {
	want, ok := boottime()
	if !ok {
		t.Skip("no such clock here")
	}
	c := NewClock()
	c.anchor.Store(&anchor{at: time.Now().Add(-2 * anchorLife), reading: time.Second})
	if have := c.Boottime(); have < want {
		t.Errorf("have %v by an anchor that is too old, want %v", have, want)
	}
}

func BenchmarkBoottime(b *testing.B) {
	c := NewClock()
	for b.Loop() {
		c.Boottime()
	}
}

func BenchmarkKernel(b *testing.B) {
	for b.Loop() {
		boottime()
	}
}

func BenchmarkValid(b *testing.B) {
	h := newTestHolder(HolderConfig{
		Self: id(1), Boot: 1, Boottime: NewClock().Boottime,
		Ask:    func(context.Context, Request) (Reply, error) { return Reply{Granted: true}, nil },
		Status: func() Request { return Request{} },
	})
	h.Start()
	defer h.Close()
	for !h.Valid() {
		time.Sleep(time.Millisecond)
	}
	for b.Loop() {
		if !h.Valid() {
			b.Fatal("not valid")
		}
	}
}
