package authority

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// asker answers a Holder's requests as the test sets, after a delay.
type asker struct {
	mu         sync.Mutex // guards the fields below
	start      time.Time
	generation int64
	there      time.Duration // delay until the leader gets the request
	back       time.Duration // delay until the reply arrives
	reply      Reply
	err        error
	hang       bool
	got        []Request
	under      int
	most       int
	changes    int
}

func (a *asker) ask(ctx context.Context, r Request) (Reply, error) {
	a.mu.Lock()
	a.got = append(a.got, r)
	a.under++
	a.most = max(a.most, a.under)
	wait, reply, err, hang := a.there+a.back, a.reply, a.err, a.hang
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.under--
		a.mu.Unlock()
	}()
	if hang {
		<-ctx.Done()
		return Reply{}, ctx.Err()
	}
	select {
	case <-ctx.Done():
		return Reply{}, ctx.Err()
	case <-time.After(wait):
		return reply, err
	}
}

func (a *asker) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// seen returns the requests so far, the most at once, and the number of changes reported.
func (a *asker) seen() (got []Request, most, changes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got), a.most, a.changes
}

func (a *asker) open(t *testing.T) *Holder {
	t.Helper()
	a.start = time.Now()
	a.reply = Reply{Granted: true}
	h := newTestHolder(HolderConfig{
		Self: id(1), Boot: 101, Ask: a.ask,
		Boottime: func() time.Duration { return time.Hour + time.Since(a.start) },
		Status: func() Request {
			a.mu.Lock()
			defer a.mu.Unlock()
			return Request{Generation: a.generation}
		},
		OnChange: func() { a.set(func() { a.changes++ }) },
	})
	h.Start()
	t.Cleanup(func() { h.Close() })
	return h
}

func TestTheTermCountsFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{there: 300 * time.Millisecond, back: 400 * time.Millisecond}
		h := a.open(t)
		synctest.Wait()
		a.set(func() { a.err = errors.New("no leader") }) // only the first request is answered
		if h.Valid() || h.EverValid() {
			t.Error("valid before the answer")
		}
		time.Sleep(700*time.Millisecond + 1)
		synctest.Wait()
		if !h.Valid() || !h.EverValid() || h.Until() != time.Hour+Validity-ClockSlack {
			t.Errorf("valid: %v until %v", h.Valid(), h.Until())
		}
		time.Sleep(Validity - ClockSlack - 700*time.Millisecond - 2)
		if !h.Valid() {
			t.Error("not valid just before its end")
		}
		time.Sleep(time.Nanosecond)
		if h.Valid() {
			t.Error("valid at its end")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if _, _, changes := a.seen(); changes != 2 {
			t.Errorf("%d changes were reported, want 2", changes)
		}
	})
}

func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{there: time.Millisecond}
		h := a.open(t)
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			if !h.Valid() {
				t.Fatal("not valid")
			}
		}
		time.Sleep(5 * time.Millisecond) // away from the tick
		synctest.Wait()
		got, _, _ := a.seen()
		if n := len(got); n < 40 || n > 42 {
			t.Errorf("%d requests in ten seconds, want one each 250 ms", n)
		}
		if r := got[0]; r.Node != id(1) || r.Boot != 101 {
			t.Errorf("have %+v", r)
		}
		h.AskNow()
		synctest.Wait()
		if again, _, _ := a.seen(); len(again) != len(got)+1 {
			t.Error("a poke did not ask")
		}
	})
}

func TestHangingAsksStopNoLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{}
		h := a.open(t)
		time.Sleep(1100 * time.Millisecond)
		a.set(func() { a.hang = true })
		time.Sleep(200 * time.Millisecond) // one request hangs
		a.set(func() { a.hang = false })
		time.Sleep(300 * time.Millisecond)
		if left := h.Until() - time.Hour - time.Since(a.start); left < Validity-2*askInterval-ClockSlack {
			t.Errorf("a hanging request blocked the next one: %v left", left)
		}
		a.set(func() { a.hang = true })
		time.Sleep(time.Minute)
		a.set(func() { a.hang = false })
		if h.Valid() {
			t.Error("valid without an answer")
		}
		if _, most, _ := a.seen(); most != maxAsks {
			t.Errorf("%d requests at once, want %d", most, maxAsks)
		}
		time.Sleep(1300 * time.Millisecond)
		if !h.Valid() {
			t.Error("not valid again")
		}
	})
}

func TestAPokeMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{hang: true}
		h := a.open(t)
		time.Sleep(600 * time.Millisecond) // both attempts are under way, the first for 600 ms
		a.set(func() { a.hang = false })
		h.AskNow()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if !h.Valid() {
			t.Error("not valid")
		}
	})
}

func TestRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{back: 100 * time.Millisecond}
		h := a.open(t)
		time.Sleep(150 * time.Millisecond)
		if !h.Valid() {
			t.Fatal("not valid")
		}
		time.Sleep(150 * time.Millisecond) // the next request was sent at 250 ms; its answer is on its way
		h.Revoke()
		if h.Valid() || h.Until() != 0 {
			t.Error("valid after Revoke")
		}
		a.set(func() { a.reply = Reply{Reason: "no"} })
		time.Sleep(200 * time.Millisecond)
		if h.Valid() {
			t.Error("an answer to an earlier request made it valid")
		}
	})
}

func TestAuthorityIsForOneGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{back: 100 * time.Millisecond}
		h := a.open(t)
		time.Sleep(50 * time.Millisecond)
		a.set(func() { a.generation = 1; a.reply = Reply{Reason: "no"} })
		time.Sleep(100 * time.Millisecond) // the answer for generation 0 has arrived
		if h.Valid() || h.EverValid() {
			t.Error("valid for another generation")
		}
		a.set(func() { a.reply = Reply{Granted: true} })
		time.Sleep(time.Second)
		if !h.Valid() {
			t.Error("not valid for the new generation")
		}
		time.Sleep(5 * time.Millisecond)                                    // away from the tick
		a.set(func() { a.generation = 2; a.err = errors.New("no leader") }) // and Revoke is not called
		time.Sleep(2 * askInterval)
		if h.Valid() {
			t.Error("valid for an old generation")
		}
	})
}

func TestGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{back: 30 * time.Millisecond}
		h := a.open(t)
		time.Sleep(260 * time.Millisecond) // one request is under way
		a.set(func() { a.err = errors.New("no leader") })
		var told atomic.Bool
		var group sync.WaitGroup
		group.Go(func() {
			if err := h.GiveUp(t.Context()); err != nil {
				t.Error(err)
			}
			told.Store(true)
		})
		synctest.Wait()
		if h.Valid() {
			t.Error("valid after GiveUp")
		}
		time.Sleep(time.Second)
		if told.Load() {
			t.Error("GiveUp returned although the leader did not answer")
		}
		a.set(func() { a.err = nil })
		group.Wait()
		time.Sleep(time.Minute)
		if h.Valid() {
			t.Error("valid after GiveUp")
		}
		synctest.Wait()
		if got, _, _ := a.seen(); !got[len(got)-1].GivingUp {
			t.Errorf("the last request is %+v", got[len(got)-1])
		}
		a.set(func() { a.err = errors.New("no leader") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.ErrorIs(t, h.GiveUp(ctx), context.DeadlineExceeded, "h.GiveUp(ctx)")
	})
}

// An answer that does not show that a leader has recorded the end does not
// count: the node's next process would have to wait.
func TestGiveUpUntilRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{back: time.Millisecond}
		h := a.open(t)
		time.Sleep(time.Second)

		var told atomic.Bool
		a.set(func() { a.reply = Reply{Reason: reasonNotLeading} })
		var group sync.WaitGroup
		group.Go(func() {
			expect.NoError(t, h.GiveUp(t.Context()))
			told.Store(true)
		})

		for _, reply := range []Reply{{Reason: reasonNotLeading}, {Reason: reasonBusy}, {Reason: "differs", Differs: true}} {
			a.set(func() { a.reply = reply })
			time.Sleep(time.Second)
			if told.Load() {
				t.Errorf("GiveUp returned after the reply %+v", reply)
			}
		}

		a.set(func() { a.reply = Reply{Reason: reasonGaveUp} })
		group.Wait()

		a.set(func() { a.reply = Reply{Reason: reasonNotLeading} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.ErrorIs(t, h.GiveUp(ctx), context.DeadlineExceeded, "h.GiveUp(ctx)")
	})
}

// A node that was ended and has authority again can tell it from the authority
// that it had before.
func TestReadTellsGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{back: time.Millisecond}
		h := a.open(t)
		time.Sleep(time.Second)
		before, valid := h.Read()
		if !valid || before != 0 {
			t.Errorf("at first: got %d, %t; want 0, true", before, valid)
		}

		a.set(func() { a.generation = 3 })
		h.Revoke()
		if _, valid := h.Read(); valid {
			t.Error("valid after Revoke")
		}
		time.Sleep(time.Second)
		after, valid := h.Read()
		if !valid || after != 3 {
			t.Errorf("after the end was applied: got %d, %t; want 3, true", after, valid)
		}
	})
}

// A reply that is handled late, after a later request was granted for a new
// generation, does not bring the old generation back.
func TestLateReplyKeepsTheGeneration(t *testing.T) {
	var generation, calls atomic.Int64
	late := make(chan struct{})
	isLate := make(chan struct{})
	start := time.Now()
	h := newTestHolder(HolderConfig{
		Self: id(1), Boot: 101,
		Ask:      func(context.Context, Request) (Reply, error) { return Reply{Granted: true}, nil },
		Boottime: func() time.Duration { return time.Hour + time.Since(start) },
		Status: func() Request {
			now := generation.Load()
			if calls.Add(1) == 2 { // the first request compares generations
				close(isLate)
				<-late
			}
			return Request{Generation: now}
		},
	})

	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ask(t.Context())
	}()
	<-isLate
	generation.Store(2)
	time.Sleep(time.Millisecond)
	h.ask(t.Context())
	close(late)
	<-done

	got, valid := h.Read()
	if got != 2 || !valid {
		t.Errorf("got %d, %t; want 2, true", got, valid)
	}
}
