package main

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// soakStall is how long the test, or a thread of a node, waits for a processor before the machine counts as one that
// stands still: nodes that are silent for little longer take each other for dead.
const soakStall = 150 * time.Millisecond

// soakStalls are the times at which the machine stood still.
type soakStalls struct {
	mu   sync.Mutex // guards the rest
	list [][2]time.Time
	seen int // how many of them since has reported
}

func (st *soakStalls) add(from, to time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n := len(st.list); n > st.seen && !from.After(st.list[n-1][1]) {
		st.list[n-1][1] = to
		return
	}
	st.list = append(st.list, [2]time.Time{from, to})
}

// since returns how many there were since it was last called.
func (st *soakStalls) since() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := len(st.list) - st.seen
	st.seen = len(st.list)
	return n
}

// about reports whether the machine stood still shortly before, or was about to.
func (st *soakStalls) about(at time.Time) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.ContainsFunc(st.list, func(s [2]time.Time) bool {
		return at.After(s[0].Add(-soakStall)) && at.Before(s[1].Add(3*time.Second))
	})
}

// started notes the nodes' processes after a start.
func (s *soak) started() {
	for i, m := range s.fleet.nodes {
		s.pids[i].Store(int64(m.cmd.Process.Pid))
		if !slices.Contains(s.logs, m.log) {
			s.logs = append(s.logs, m.log)
		}
	}
}

// watch notes when the machine stands still: the test itself is late, or a thread of a node waits for a processor.
func (s *soak) watch() {
	const each = 25
	waited := map[string]int64{} // by thread, in nanoseconds
	last, looked := time.Now(), time.Now()
	for n := 1; ; n++ {
		select {
		case <-s.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		now := time.Now()
		if now.Sub(last) > soakStall {
			s.stalls.add(last, now)
		}
		last = now
		if n%each != 0 {
			continue
		}
		before := waited
		waited = map[string]int64{}
		for i := range s.pids {
			dir := fmt.Sprintf("/proc/%d/task/", s.pids[i].Load())
			threads, _ := os.ReadDir(dir) // there are none while the node is away
			for _, thread := range threads {
				var ran, wait int64
				text, _ := os.ReadFile(dir + thread.Name() + "/schedstat")
				_, _ = fmt.Sscan(string(text), &ran, &wait)
				waited[thread.Name()] = wait
				if old, ok := before[thread.Name()]; ok && wait-old > int64(soakStall) {
					s.stalls.add(looked, now)
				}
			}
		}
		looked = now
	}
}
