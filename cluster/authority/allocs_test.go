package authority

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Every decision calls Valid twice.
func TestValidAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		h := newTestHolder(HolderConfig{
			Self: id(1), Boot: 1, Boottime: func() time.Duration { return time.Since(began) + time.Second },
			Ask:    func(context.Context, Request) (Reply, error) { return Reply{Granted: true}, nil },
			Status: func() Request { return Request{} },
		})
		h.Start()
		defer h.Close()
		for !h.Valid() {
			time.Sleep(time.Millisecond)
		}
		synctest.Wait() // nothing else runs while no time passes
		if n := testing.AllocsPerRun(1000, func() {
			if !h.Valid() {
				t.Error("not valid")
			}
		}); n != 0 {
			t.Errorf("have %v allocations, want 0", n)
		}
	})
}

func TestClockAllocatesNothing(t *testing.T) {
	c := NewClock()
	if n := testing.AllocsPerRun(1000, func() { c.Boottime() }); n != 0 {
		t.Errorf("have %v allocations, want 0", n)
	}
}
