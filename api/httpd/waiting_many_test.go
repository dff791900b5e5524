package httpd

import (
	"bufio"
	"flag"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// pipes is a listener with in-memory connections, so that the bound on open files does not matter.
type pipes struct {
	ends chan net.Conn
	once sync.Once
	over chan struct{}
}

func newPipes() *pipes { return &pipes{ends: make(chan net.Conn), over: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.ends:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.over) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// crowdRules allow 10,000 per second; the 20,000th check waits two seconds.
const crowdRules = `version: 1
rules:
  - {name: crowd, key: [q], max_delay: 1m, limits: [{limit: 10000, per: 1s, algorithm: leaky-bucket, burst: 100000}]}
`

// Twenty thousand checks wait at once. Each is answered when it is due, and costs only memory.
func TestTwentyThousandWait(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty thousand connections")
	}
	if *realTime {
		waitInACrowd(t)
		return
	}
	// The library starts its clock once, and it must not belong to the bubble.
	if with, _, _ := serveBothWays(t, startData(t, newFixed()), opening); with == "" {
		t.Fatal("no answer")
	}
	synctest.Test(t, waitInACrowd)
}

// realTime is for the measurement in docs/operations.md.
var realTime = flag.Bool("real-time", false,
	"let the twenty thousand wait in real time, and print how late they were answered")

func waitInACrowd(t *testing.T) {
	const crowd = 20_000
	table, clock := counters.New(1000), limiter.NewClock()
	t.Cleanup(func() { clock.Close(); table.Close() })
	l := limiter.New(table, clock)
	doc, err := document.Parse([]byte(crowdRules))
	expect.NoError(t, err)
	set, err := rules.Compile(doc, 1)
	expect.NoError(t, err)
	l.SetRules(set)
	handlers := handlersOf(l)
	ln := newPipes()
	s := start(handlers, ln, 0)
	s.held.capacity = crowd
	var mu sync.Mutex // guards due
	due := map[net.Conn]time.Time{}
	inner := s.held.answer
	s.held.answer = func(w *heldAnswer, left time.Duration) {
		mu.Lock()
		due[api.Unwrap[*api.Connection](w.conn).Conn] = w.due
		mu.Unlock()
		inner(w, left)
	}
	// Start with a queue seven seconds long, so that no check is answered before all of them wait.
	if _, err := l.Adjust(&limiter.Query{Rule: "crowd", Key: []string{"x"},
		Costs: []limiter.UnitCost{{Unit: document.Requests, Cost: 7 * 10_000}}}); err != nil {
		t.Fatal(err)
	}
	before := memoryInUse()
	type end struct {
		ours, theirs net.Conn
		came         time.Time
	}
	ends := make([]end, crowd)
	body := post("/v1/check", `{"rule":"crowd","key":"x","wait":true}`)
	for i := range ends {
		ours, theirs := net.Pipe()
		ends[i] = end{ours: ours, theirs: theirs}
		ln.ends <- theirs
		if _, err := io.WriteString(ours, body); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Until(t, "all answers are held", func() bool { return s.held.count() == crowd })
	each := (memoryInUse() - before) / crowd
	var readers sync.WaitGroup
	for i := range ends {
		readers.Go(func() {
			r := bufio.NewReaderSize(ends[i].ours, 1024)
			_, err := r.ReadByte()
			if ends[i].came = time.Now(); err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
			for r.Buffered() > 0 {
				_, _ = r.Discard(r.Buffered())
			}
		})
	}
	readers.Wait()
	late := make([]time.Duration, 0, crowd)
	for i := range ends {
		d := ends[i].came.Sub(due[ends[i].theirs])
		if d < 0 {
			t.Errorf("answer %d came %v early", i, -d)
		}
		late = append(late, d)
	}
	slices.Sort(late)
	t.Logf("%d waited: late p50 %v, p99 %v, most %v; %d bytes each", crowd, late[crowd/2],
		late[crowd*99/100], late[crowd-1], each)
	if each > 16<<10 {
		t.Errorf("%d bytes for each held answer, want at most 16 KiB", each)
	}
	for i := range ends {
		_ = ends[i].ours.Close()
	}
	ctx := t.Context()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if !*realTime {
		time.Sleep(time.Minute) // virtual: the library notices only now and then that its pool was stopped
	}
}

// memoryInUse returns the size of heap and stacks, in bytes.
func memoryInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
