package httpd

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
)

// minutesHeld returns when those that wait go on, in minutes from now, rounded up.
func (n *node) minutesHeld() (list []int) {
	n.server.waiting.mu.Lock()
	defer n.server.waiting.mu.Unlock()
	for w := range n.server.waiting.held {
		list = append(list, int(time.Until(w.place.goesOn)/time.Minute)+1)
	}
	slices.Sort(list)
	return list
}

// A caller that hangs up leaves its place: those behind it move up, and the end of the queue with them. One that has closed only its
// sending side keeps it, because it has its answer.
func TestThoseBehindACallerThatHangsUpMoveUp(t *testing.T) {
	if !canSeeHangUps {
		t.Skip("on this system a node sees a hang-up only when it sends the answer")
	}
	t.Parallel()
	n := startWaiting(t, nil)
	time.Sleep(1500 * time.Millisecond) // until the rates of buckets are known to be as they were
	n.Check(waitOn("slow"))
	var callers []net.Conn
	for i := range 4 {
		c := n.dial(t)
		if _, err := io.WriteString(c, post("/v1/check", waitOn("slow"))); err != nil {
			t.Fatal(err)
		}
		apitest.Until(t, "the answer is held", func() bool { return n.server.waiting.count() == i+1 })
		callers = append(callers, c)
	}
	expect := func(what string, end int64, want ...int) {
		t.Helper()
		apitest.Until(t, what, func() bool { return slices.Equal(n.minutesHeld(), want) })
		peek := strings.Replace(waitOn("slow"), `"wait"`, `"peek":true,"wait"`, 1)
		apitest.Until(t, what+", and the queue ends earlier", func() bool {
			_, f := n.Check(peek)
			return (fieldInt(t, f, "delay_ms")+59_999)/60_000 == end
		})
	}
	expect("all wait", 50, 10, 20, 30, 40)

	_ = callers[1].Close()
	expect("those behind the second move up", 40, 10, 20, 30)
	if err := callers[0].(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if f, _ := heldAnswer(t, bufio.NewReader(callers[0])); fieldInt(t, f, "delay_ms") < 590_000 {
		t.Errorf("closed for sending: have %v", f)
	}
	expect("those behind one that has its answer stay", 40, 20, 30)
	_ = callers[2].Close()
	_ = callers[3].Close()
	expect("nobody waits", 20)
}

// Nobody goes on later because another one leaves, and the places of those that wait are the earliest.
func TestMoveUpKeepsPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ws := newHeldAnswers(1000, nil, func(*waiter, time.Duration) {})
		defer ws.close()
		random, now, given := rand.New(rand.NewPCG(1, 2)), time.Now(), map[time.Time]int{}
		var mu sync.Mutex // guards given
		var all []*waiter
		for i := range 200 {
			at := now.Add(time.Duration(i/3+1) * time.Hour)
			kind := []string{"a", "b", ""}[i%3]
			w := &waiter{fd: -1, due: at, place: place{goesOn: at, kind: kind, giveBack: func() { mu.Lock(); defer mu.Unlock(); given[at]++ }}}
			if random.IntN(2) == 0 { // held for less than its delay
				w.due, w.delayAfterDue = at.Add(-time.Minute), time.Minute
			}
			ws.hold(w)
			all = append(all, w)
		}

		gone := 0
		for len(all) > 20 {
			before := map[*waiter]time.Time{}
			for _, w := range all {
				before[w] = w.place.goesOn
			}
			for range 1 + random.IntN(10) {
				i := random.IntN(len(all))
				ws.release(all[i], true)
				ws.leave(all[i])
				all = slices.Delete(all, i, i+1)
				gone++
			}
			time.Sleep(gatherPause)
			synctest.Wait()
			ws.mu.Lock()
			for _, w := range all {
				if at := w.place.goesOn; at.After(before[w]) || w.place.kind == "" && !at.Equal(before[w]) || !w.due.Add(w.delayAfterDue).Equal(at) {
					t.Fatalf("%q: have %v, due %v and %v more; before, %v", w.place.kind, at, w.due, w.delayAfterDue, before[w])
				}
			}
			ws.mu.Unlock()
		}

		mu.Lock()
		defer mu.Unlock()
		sum := 0
		for _, n := range given {
			sum += n
		}
		if sum != gone {
			t.Errorf("have %d places given back of %d", sum, gone)
		}
		for _, kind := range []string{"a", "b"} {
			var list []time.Time
			for _, w := range all {
				if w.place.kind == kind {
					list = append(list, w.place.goesOn)
				}
			}
			slices.SortFunc(list, time.Time.Compare)
			for i, at := range list {
				if want := now.Add(time.Duration(i+1) * time.Hour); !at.Equal(want) {
					t.Errorf("%s: place %d is at %v, want %v", kind, i, at.Sub(now), want.Sub(now))
				}
			}
		}
		ws.releaseAll()
	})
}

// A reservation with a request_id stays reserved when its caller hangs up: the caller may ask again, and gets the same answer.
func TestAReservationThatMayBeAskedForAgainStays(t *testing.T) {
	if !canSeeHangUps {
		t.Skip("on this system a node sees a hang-up only when it sends the answer")
	}
	t.Parallel()
	n := startWaiting(t, nil)
	n.Check(waitOn("slow"))
	hangUp := func(body string) {
		t.Helper()
		c := n.dial(t)
		if _, err := io.WriteString(c, post("/v1/reserve", body)); err != nil {
			t.Fatal(err)
		}
		apitest.Until(t, "the answer is held", func() bool { return n.server.waiting.count() == 1 })
		_ = c.Close()
		apitest.Until(t, "it is no longer held", func() bool { return n.server.waiting.count() == 0 })
	}
	again := strings.Replace(waitOn("slow"), `"wait":true`, `"request_id":"r"`, 1)
	hangUp(strings.Replace(again, `"request_id"`, `"wait":true,"request_id"`, 1))
	hangUp(waitOn("slow")) // its place is given back later than the first one would be

	peek := strings.Replace(waitOn("slow"), `"wait"`, `"peek":true,"wait"`, 1)
	apitest.Until(t, "the second place is given back", func() bool {
		_, f := n.Check(peek)
		return fieldInt(t, f, "delay_ms") <= 1_200_000
	})
	if _, f := n.Check(peek); fieldInt(t, f, "delay_ms") < 1_100_000 {
		t.Errorf("the first place was given back, too: have %v", f)
	}
	_, reserved := n.post("/v1/reserve", again)
	id, _ := apitest.Fields(t, reserved)["reservation"].(string)
	status, settled := n.post("/v1/settle", `{"reservation":"`+id+`","costs":{"requests":1}}`)
	if status != 200 || !strings.Contains(settled, `"repeated":false`) {
		t.Errorf("asked again, have %s, and settled it: %d %s", reserved, status, settled)
	}
}
