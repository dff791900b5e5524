package resp

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

// watched is a decider that notes how many checks it is asked at once.
type watched struct {
	api.Decider
	mu   sync.Mutex
	runs []int
	hold chan struct{} // if not nil, checks wait until it is closed
}

func (w *watched) note(n int) {
	w.mu.Lock()
	w.runs = append(w.runs, n)
	hold := w.hold
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

func (w *watched) Check(q *limiter.Query, a *limiter.Answer) error {
	w.note(1)
	return w.Decider.Check(q, a)
}

func (w *watched) CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error) {
	w.note(len(queries))
	w.Decider.CheckAll(queries, answers, errs)
}

// taken returns the runs since the last call.
func (w *watched) taken() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprint(w.runs)
	w.runs = nil
	return text
}

// startWatched starts a node whose runs are noted.
func startWatched(t testing.TB, change func(*apitest.Config)) (*node, *watched) {
	t.Helper()
	w := &watched{}
	n := startNode(t, func(c *apitest.Config) {
		if change != nil {
			change(c)
		}
		w.Decider = c.Decider
		c.Decider = w
	})
	return n, w
}

// Checks that arrive together are decided together. Any other command ends the
// run, and all are answered in order.
func TestPipeline(t *testing.T) {
	t.Parallel()
	n, runs := startWatched(t, nil)
	c := dial(t, n)
	c.send(words("CL.THROTTLE k 2 1 3600") + words("THROTTLE k 1 1 3600") + words("RL.CHECK all") +
		words("CL.THROTTLE k x 1 1") +
		words("PING") + words("CL.THROTTLE k 2 1 3600") +
		words("HELLO 3") + words("RL.CHECK all PEEK") + words("CL.THROTTLE k 2 1 3600") +
		words("CL.THROTTLE k 2 1 3600"))
	got := make([]string, 10)
	for i := range got {
		got[i] = c.reply()
	}
	for i, want := range []string{
		"[0 3 2 -1 3600]", "[1 1 0 3600 0]", `["allowed" 1 `, "-Cell error: Store error: Couldn't parse as integer: x",
		"+PONG", "[0 3 1 -1 7200]", `{"server" "redis"`, `{"allowed" true `, "[0 3 0 -1 10800]", "[1 3 0 3600 10800]",
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("reply %d: got %s, want %s", i, got[i], want)
		}
	}
	expect.Equal(t, runs.taken(), "[3 1 3]", "runs")
}

// A run has at most 256 checks, and everything is answered however much arrives at once.
func TestPipeline_IsBounded(t *testing.T) {
	t.Parallel()
	n, runs := startWatched(t, nil)
	c := dial(t, n)
	const calls = 5000
	go func() { _, _ = c.Write([]byte(strings.Repeat(words("CL.THROTTLE k 4999 1 100000"), calls+1))) }()
	for i := range calls {
		if got, want := c.reply(), fmt.Sprintf("[0 5000 %d ", calls-1-i); !strings.HasPrefix(got, want) {
			t.Fatalf("call %d: got %s, want %s", i, got, want)
		}
	}
	if got := c.reply(); !strings.HasPrefix(got, "[1 5000 0 ") {
		t.Errorf("one call more: got %s", got)
	}
	c.askAll(step{"PING", "+PONG"})
	total := 0
	for _, run := range runs.runs {
		total += run
		if run > maxRun {
			t.Errorf("a run of %d", run)
		}
	}
	expect.Equal(t, total, calls+1, "checks were decided")
}

// A run shorter than it could be, because the memory is used up, is only shorter.
func TestPipeline_WithoutRoom(t *testing.T) {
	t.Parallel()
	n, runs := startWatched(t, nil)
	const everything = 20 << 20
	if !n.Budget.Take(everything) {
		t.Fatal("the budget is not empty")
	}
	c := dial(t, n)
	c.send(strings.Repeat(words("CL.THROTTLE k 99 1 3600"), 20))
	for i := range 20 {
		if got, want := c.reply(), fmt.Sprintf("[0 100 %d ", 99-i); !strings.HasPrefix(got, want) {
			t.Errorf("call %d: got %s", i, got)
		}
	}
	n.Budget.Give(everything)
	expect.Equal(t, runs.taken(), fmt.Sprintf("[%d %d 4]", freeChecks, freeChecks), "runs")
	expect.Equal(t, n.Budget.Used(), 0, "bytes stay charged")
}

// What a long pipeline needed does not stay in the pool: the next small command
// would be charged for it.
func TestPipeline_LeavesLittle(t *testing.T) {
	t.Parallel()
	s := &Server{}
	ex := s.getExecution()
	for range maxRun {
		ex.next()
	}
	s.putBack(ex)
	if len(ex.checks) > freeChecks || ex.checks[:maxRun][freeChecks] != nil {
		t.Errorf("%d checks stay", len(ex.checks))
	}

	ex.out.b = append(make([]byte, 0, api.UnchargedBytes+1), "+OK\r\n"...)
	ex.fitOut()
	if size := cap(ex.out.b); size > api.UnchargedBytes {
		t.Errorf("a small reply has a buffer of %d bytes", size)
	}
}

// BenchmarkPipeline is the time of one check of as many as arrive together.
func BenchmarkPipeline(b *testing.B) {
	for _, depth := range []int{1, 16, 50, 100} {
		b.Run(strconv.Itoa(depth), func(b *testing.B) {
			n := startNode(b, nil)
			n.UseRules(`{"version":1,"rules":[{"name":"a","key":["user"],"limits":[{"limit":1000000000,"per":"1h"}]}]}`)
			c := dial(b, n)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			text := strings.Repeat(words("RL.CHECK a ann"), depth)
			b.ReportAllocs()
			for i := 0; i < b.N; i += depth {
				c.send(text)
				for range depth {
					c.reply()
				}
			}
		})
	}
}

// HELLO and AUTH act before what follows them in the same read.
func TestPipeline_AuthActsAtOnce(t *testing.T) {
	t.Parallel()
	n := startNode(t, apitest.TheirTokens)
	c := dial(t, n)
	c.send(words("PING") + words("HELLO 3 AUTH default "+apitest.SlotsToken) +
		words("CL.THROTTLE k 0 1 3600") + words("RESET") + words("CL.THROTTLE k 0 1 3600"))
	got := c.reply() + c.reply()[:1] + c.reply() + c.reply() + c.reply()
	if want := "-NOAUTH Authentication required.{[0 1 0 -1 3600]+RESET-NOAUTH Authentication required."; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// However a pipeline is cut, the replies are the same.
func TestPipeline_CutAnywhere(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	text := words("CL.THROTTLE %[1]s 9 1 3600") + words("PING") +
		words("CL.THROTTLE %[1]s 9 1 3600 2") + words("ECHO x")
	for at := 1; at < len(text); at += 3 {
		key := fmt.Sprintf("k%04d", at)
		all := strings.ReplaceAll(text, "%[1]s", key)
		all = strings.ReplaceAll(all, "$5\r\n"+key, "$5\r\n"+key)
		c := dial(t, n)
		c.send(all[:at])
		c.send(all[at:])
		expect.Equal(t, c.reply()+c.reply()+c.reply()+c.reply(),
			`[0 10 9 -1 3600]+PONG[0 10 7 -1 10800]"x"`, "cut at %d", at)
		_ = c.Close()
	}
}

// A command that is longer than what is read at once, and one that follows a long one.
func TestLongCommands(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	c := dial(t, n)
	for _, size := range []int{1, 512, headroom, headroom + 1, inputSize - 20, inputSize, 50_000, maxCommand - 100} {
		text := strings.Repeat("x", size)
		c.send(array("ECHO", text) + words("PING") + array("ECHO", text))
		if got, want := c.reply()+c.reply()+c.reply(), `"`+text+`"+PONG"`+text+`"`; got != want {
			t.Errorf("%d bytes: got %.50s…, %d bytes", size, got, len(got))
		}
	}
	apitest.Until(t, "nothing is charged", func() bool { return n.Budget.Used() == 0 })
	key := strings.Repeat("k", 5000)
	c.send(array("CL.THROTTLE", key, "1", "1", "3600") + array("CL.THROTTLE", key, "1", "1",
		"3600") + array("CL.THROTTLE", key+"x", "1", "1", "3600"))
	expect.Equal(t, c.reply()+c.reply()+c.reply(), "[0 2 1 -1 3600][0 2 0 -1 7200][0 2 1 -1 3600]", "long keys")
}

// A caller that sends far ahead takes turns with others.
func TestAheadTakesTurns(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	apitest.TakesTurns(t, n.server, dial(t, n), "PING\r\n")
}
