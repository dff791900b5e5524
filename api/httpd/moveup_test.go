package httpd

import (
	"bufio"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
)

// minutesHeld returns when those that wait go on, in minutes from now, rounded up.
func (n *node) minutesHeld() (list []int) {
	n.server.held.mu.Lock()
	defer n.server.held.mu.Unlock()
	for w := range n.server.held.all {
		list = append(list, int((time.Until(w.due)+w.delayAfterDue)/time.Minute)+1)
	}
	slices.Sort(list)
	return list
}

// A caller that hangs up leaves its place: those behind it move up, and the end
// of the queue with them. One that has closed only its sending side keeps it,
// because it has its answer.
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
		apitest.Until(t, "the answer is held", func() bool { return n.server.held.count() == i+1 })
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
	if f, _ := readHeldAnswer(t, bufio.NewReader(callers[0])); fieldInt(t, f, "delay_ms") < 590_000 {
		t.Errorf("closed for sending: have %v", f)
	}
	expect("those behind one that has its answer stay", 40, 20, 30)
	_ = callers[2].Close()
	_ = callers[3].Close()
	expect("nobody waits", 20)
}

// One that moves up is held no longer than it was to be.
func TestMoveUpKeepsTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type sent struct{ after, left time.Duration }
		began := time.Now()
		answers := make(chan sent, 3)
		var ha *heldAnswers
		ha = newHeldAnswers(3, nil, func(_ *heldAnswer, left time.Duration) {
			ha.freeRoom()
			answers <- sent{time.Since(began), left}
		})
		for _, want := range []sent{{time.Hour, 2 * time.Hour}, {time.Minute, 0}, {0, 0}} {
			ha.takeRoom()
			w := &heldAnswer{fd: -1, due: began.Add(time.Hour), delayAfterDue: 4 * time.Hour}
			ha.keep(w)
			ha.moveUp(w, began.Add(want.after+want.left))
			if got := <-answers; got != want {
				t.Errorf("moved up to %v: got an answer after %v with %v left, want %v with %v",
					want.after+want.left, got.after, got.left, want.after, want.left)
			}
			began = time.Now()
		}
		ha.releaseAll()
		ha.close()
	})
}

// A reservation with a request_id stays reserved when its caller hangs up: the
// caller may ask again, and gets the same answer.
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
		apitest.Until(t, "the answer is held", func() bool { return n.server.held.count() == 1 })
		_ = c.Close()
		apitest.Until(t, "it is no longer held", func() bool { return n.server.held.count() == 0 })
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
