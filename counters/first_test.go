package counters

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// firstRun is the history of one counter whose window begins with its first
// hit. The counter moves between processes, each with its own steady clock.
// hits is all that the naive algorithm remembers: the hits of the current
// window.
type firstRun struct {
	t     *rapid.T
	limit algorithms.Limit
	procs []firstProcess
	home  int
	time  int64 // time since the start of the history
	wall  int64 // by how much the wall clock was set
	hits  []algorithms.Entry
	takes []firstTake
}

type firstProcess struct {
	table  *Table
	offset int64 // of its steady clock
}

type firstTake struct {
	home int
	time int64
	from algorithms.TakeRecord
	cost int64
	ends time.Duration
}

var firstKey = Key{Subject: 7 << 52, Counter: 9}

func (r *firstRun) now(home int) algorithms.Instant {
	return algorithms.Instant{Steady: epoch.Steady + r.time + r.procs[home].offset, Wall: epoch.Wall + r.time + r.wall}
}

func (r *firstRun) used() (n int64) {
	for _, e := range r.hits {
		n += e.N
	}
	return n
}

// passed lets go of the window when it is over, or nothing is left in it.
func (r *firstRun) passed() {
	if r.used() == 0 || r.hits[0].At+int64(r.limit.Window) <= r.time {
		r.hits = nil
	}
}

func (r *firstRun) hit(at, n int64) {
	if n > 0 && at+int64(r.limit.Window) > r.time {
		r.hits = append(r.hits, algorithms.Entry{At: at, N: n})
	}
}

func (r *firstRun) back(n int64) {
	for i := range r.hits {
		k := min(n, r.hits[i].N)
		r.hits[i].N -= k
		n -= k
	}
	r.passed()
}

func (r *firstRun) draw(name string, least, most int64) int64 {
	return rapid.Int64Range(least, most).Draw(r.t, name)
}

func (r *firstRun) take() {
	cost := r.draw("cost", 0, 6)
	ops := []Op{{Key: firstKey, Limit: &r.limit, Cost: cost}}
	want := cost == 0 || r.used()+cost <= r.limit.Amount
	now := r.now(r.home)
	if v := r.procs[r.home].table.Take(now, ops); (v == Admitted) != want {
		r.t.Fatalf("a cost of %d is %s, with %d of %d used", cost, v, r.used(), r.limit.Amount)
	}
	if want && cost > 0 {
		r.hit(r.time, cost)
		r.takes = append(r.takes, firstTake{r.home, r.time, ops[0].TakeRecord(), cost, ops[0].Decision.ResetAfter})
	}
	r.judge(ops[0].Decision, cost)
}

// judge compares a decision with the model's hits.
func (r *firstRun) judge(d algorithms.Decision, cost int64) {
	want := algorithms.Decision{Allowed: d.Allowed, Used: r.used(), Remaining: max(0, r.limit.Amount-r.used())}
	if len(r.hits) > 0 {
		want.ResetAfter = time.Duration(r.hits[0].At + int64(r.limit.Window) - r.time)
		want.MoreAfter = want.ResetAfter
	}
	switch {
	case d.Allowed:
	case cost > r.limit.Amount:
		want.RetryAfter = algorithms.Never
	default:
		want.RetryAfter = want.ResetAfter
	}
	if d != want {
		r.t.Fatalf("have %+v, want %+v", d, want)
	}
}

// putBack gives a cost back in the process that took it, or refunds it in any process.
func (r *firstRun) putBack() {
	if len(r.takes) == 0 {
		return
	}
	i := r.draw("which", 0, int64(len(r.takes)-1))
	x := r.takes[i]
	r.takes = append(r.takes[:i], r.takes[i+1:]...)
	now, table := r.now(r.home), r.procs[r.home].table
	var held bool
	var err error
	if x.home != r.home {
		// Another process took it: it can't have been earlier than its age by the clock
		// of this one.
		x.from.Steady = now.Steady - (r.time - x.time)
	}
	held = len(r.hits) > 0 && x.time >= r.hits[0].At
	err = table.give(now, firstKey, &r.limit, x.from, x.cost)
	expect.NoError(r.t, err)
	if held {
		r.back(x.cost)
	}
}

func (r *firstRun) owe() {
	now, table := r.now(r.home), r.procs[r.home].table
	cost, age := r.draw("debt", 1, 9), r.draw("age", 0, int64(r.limit.Window)*5/4)
	var err error
	if rapid.Bool().Draw(r.t, "late") {
		err = table.ForceCapped(now, firstKey, &r.limit, algorithms.TakeRecord{Steady: now.Steady - age}, cost)
	} else {
		age, err = 0, table.penalize(now, firstKey, &r.limit, cost)
	}
	expect.NoError(r.t, err)
	if age < int64(r.limit.Window) {
		r.hit(r.time, cost) // a window that it begins begins now
	}
}

// move hands the counter to another process, as nodes do, or as a process
// passes it on to the next one on disk.
func (r *firstRun) move() {
	from, to := r.home, int(r.draw("to", 0, int64(len(r.procs)-1)))
	if from == to {
		return
	}
	r.home = to
	if err := r.procs[from].table.Copy(firstKey.Partition(), func(records []Record) error {
		for i := range records {
			var rec Record
			d := wire.NewDecoder(AppendRecord(nil, &records[i], r.now(from)))
			if DecodeRecord(d, &rec, r.now(to)); d.Done("record") != nil || !r.procs[to].table.Put(r.now(to), rec) {
				r.t.Fatalf("%+v did not arrive: %v", records[i], d.Err())
			}
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	r.procs[from].table.Drop(firstKey.Partition())
}

func (r *firstRun) pass() {
	w := int64(r.limit.Window)
	r.time += rapid.SampledFrom([]int64{0, 1, w / 7, w / 2, w - 1, w, w + 1, 3 * w}).Draw(r.t, "time")
	r.wall += rapid.SampledFrom([]int64{0, 0, w, -w, int64(24 * time.Hour),
		-int64(24 * time.Hour)}).Draw(r.t, "clock set")
	r.passed()
	if rapid.Bool().Draw(r.t, "sweep") {
		r.procs[r.home].table.Sweep(r.now(r.home), 1)
	}
}

// In every process, the counter decides as the naive algorithm does, whatever
// the processes' clocks read and however the wall clock is set.
func TestFirstWindowMoves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &firstRun{t: rt, limit: algorithms.Limit{Kind: algorithms.FirstWindow, Amount: 10}}
		r.limit.Window = rapid.SampledFrom([]time.Duration{algorithms.MinWindow, 1234567890,
			time.Hour, algorithms.MaxWindow}).Draw(rt, "window")
		for range 3 {
			p := firstProcess{New(100), r.draw("offset", -1e16, 1e16)}
			defer p.table.Close()
			r.procs = append(r.procs, p)
		}
		do := map[string]func(*rapid.T){"": func(t *rapid.T) {
			used, d := r.procs[r.home].table.Usage(r.now(r.home), firstKey, &r.limit)
			r.t = t
			if used != r.used() {
				t.Fatalf("have %d used, want %d", used, r.used())
			}
			r.judge(d, 0)
		}}
		for name, f := range map[string]func(){
			"take": r.take, "take more": r.take, "take still more": r.take, "put back": r.putBack,
			"owe": r.owe, "move": r.move,
			"pass": r.pass, "pass more": r.pass, "amount": func() { r.limit.Amount = r.draw("amount", 1, 20) },
		} {
			do[name] = func(t *rapid.T) { r.t = t; f() }
		}
		rt.Repeat(do)
	})
}
