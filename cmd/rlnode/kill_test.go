package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

var kills = flag.Int("kills", 0,
	"how many times TestG7_KillForgetsOnlySinceCheckpoint kills a node under each load; 0: once")

// killLimit is more than any test takes. No window turns during one.
const killLimit = 100_000_000

const killRules = `version: 1
rules:
  - {name: year, key: [ip], limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}]}
  - {name: log, key: [ip], limits: [{limit: 100000000, per: 8760h, algorithm: sliding-window-log}]}
`

// killLoad is the load under which a node is killed: checks of random subjects.
type killLoad struct {
	name, rule string
	subjects   int
	batch      int // checks in a request
	// of a lane after each request: more would only take the processor from other
	// tests; none with -kills
	pause time.Duration
}

// TestG7_KillForgetsOnlySinceCheckpoint kills a node under load repeatedly, in
// the middle of a checkpoint, or just before or after one.
func TestG7_KillForgetsOnlySinceCheckpoint(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, load := range []killLoad{
		{"hot", "year", 20, 10, 2 * time.Millisecond},
		{"random", "year", 20_000, 500, 15 * time.Millisecond},
		// a log has an entry for each distinct time of a check, so small batches fill it
		{"logs", "log", 2, 2, time.Millisecond},
	} {
		t.Run(load.name, func(t *testing.T) {
			t.Parallel()
			rounds := 1
			if *kills > 0 {
				rounds, load.pause = *kills, 0
			}
			killUnderLoad(t, load, rounds)
		})
	}
}

func killUnderLoad(t *testing.T, load killLoad, rounds int) {
	dir, file := t.TempDir(), file(t, "rules.yaml", killRules)
	l := &killedNode{killLoad: load, floor: make([]int64, load.subjects), sent: make([]atomic.Int64, load.subjects)}
	inside, forgotten, entries := 0, int64(0), 0.0
	for round := 0; ; round++ {
		l.runningNode = start(t, dir, "--rules", file)
		if strings.Contains(l.log.String(), "damaged") {
			t.Fatalf("round %d: something is damaged:\n%s", round, l.log)
		}
		forgotten += l.compare(round)
		entries = max(entries, l.metric("rlnode_counters_log_entries"))
		if round == rounds {
			break
		}
		if l.kill(time.Duration(500+rand.IntN(2000)) * time.Millisecond) {
			inside++
		}
	}
	l.stop()
	t.Logf("%d kills, of them %d in the middle of a checkpoint; %d hits forgotten of %d; at most %.0f entries of logs",
		rounds, inside, forgotten, l.total, entries)
}

// killedNode is a node that is killed under load.
type killedNode struct {
	*runningNode
	killLoad
	floor []int64        // by subject: the least use after the next start
	sent  []atomic.Int64 // by subject: the most
	total int64          // answered

	killed atomic.Bool

	mu    sync.Mutex // guards marks
	marks []killMark
}

// killMark is an answer that admitted a batch.
type killMark struct {
	at       time.Time
	subjects []int
}

// kill sends checks for a while, and kills the node about when its next
// checkpoint begins. It reports whether a checkpoint was in progress.
func (l *killedNode) kill(after time.Duration) bool {
	l.t.Helper()
	l.marks = nil
	l.killed.Store(false)
	var lanes sync.WaitGroup
	for range 4 {
		lanes.Go(l.ask)
	}
	<-time.After(after)
	began, age := l.lastCheckpoint()
	<-time.After(time.Second - age%time.Second + time.Duration(rand.IntN(100)-20)*time.Millisecond)
	inside := l.metric("rlnode_checkpoint_age_seconds") > 1 // the next one begins a second after the last one began
	l.killed.Store(true)
	l.signal(syscall.SIGKILL)
	l.awaitExit()
	lanes.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.marks {
		l.total += int64(len(m.subjects))
		if m.at.Before(began) {
			for _, s := range m.subjects {
				l.floor[s]++
			}
		}
	}
	return inside
}

// ask sends batches until the node is dead.
func (l *killedNode) ask() {
	for {
		subjects := make([]int, l.batch)
		for i := range subjects {
			subjects[i] = rand.IntN(l.subjects)
			l.sent[subjects[i]].Add(1)
		}
		status, text, err := l.call("POST", l.data+"/v1/check/batch", "", l.checks(subjects, ""))
		if err != nil && l.killed.Load() {
			return
		}
		if err != nil || status != http.StatusOK || strings.Contains(text, `"allowed":false`) {
			l.t.Errorf("a batch is answered with %d: %v, %.300s", status, err, text)
			return
		}
		l.mu.Lock()
		l.marks = append(l.marks, killMark{time.Now(), subjects})
		l.mu.Unlock()
		time.Sleep(l.pause)
	}
}

// checks is a batch with one check of each of the subjects.
func (l *killedNode) checks(subjects []int, more string) string {
	checks := make([]string, len(subjects))
	for i, s := range subjects {
		checks[i] = fmt.Sprintf(`{"rule":%q,"key":"s%d"%s}`, l.rule, s, more)
	}
	return `{"checks":[` + strings.Join(checks, ",") + `]}`
}

// lastCheckpoint returns the latest time at which the last completed checkpoint
// may have begun, and its age.
func (l *killedNode) lastCheckpoint() (began time.Time, age time.Duration) {
	l.t.Helper()
	asked := time.Now()
	var health struct {
		Checkpoint struct {
			AgeMS int64 `json:"age_ms"`
		} `json:"checkpoint"`
	}
	if text, err := l.get("/healthz", &health); err != nil {
		l.t.Fatalf("%v: %s", err, text)
	}
	if health.Checkpoint.AgeMS < 0 {
		return time.Time{}, 0 // no checkpoint yet
	}
	// The age is rounded down to a millisecond, and read after asked.
	age = time.Duration(health.Checkpoint.AgeMS) * time.Millisecond
	return asked.Add(-age - time.Millisecond), age
}

// compare compares the use after a start with its bounds, and makes it the next
// lower bound. It returns how much was forgotten.
func (l *killedNode) compare(round int) (forgotten int64) {
	l.t.Helper()
	const each = 500
	for from := 0; from < l.subjects; from += each {
		var subjects []int
		for s := from; s < min(from+each, l.subjects); s++ {
			subjects = append(subjects, s)
		}
		for i, have := range l.usedBy(subjects) {
			s := subjects[i]
			if most := l.sent[s].Load(); have < l.floor[s] || have > most {
				l.t.Fatalf("round %d: subject %d has used %d after the kill, want %d to %d", round,
					s, have, l.floor[s], most)
			}
			forgotten += l.sent[s].Swap(have) - have
			l.floor[s] = have
		}
	}
	return forgotten
}

// usedBy returns how much each of the subjects has used.
func (l *killedNode) usedBy(subjects []int) []int64 {
	l.t.Helper()
	_, text, err := l.call("POST", l.data+"/v1/check/batch", "", l.checks(subjects, `,"peek":true`))
	var answer struct {
		Results []struct {
			Remaining int64 `json:"remaining"`
		} `json:"results"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	if err != nil || len(answer.Results) != len(subjects) {
		l.t.Fatalf("%v: %.300s", err, text)
	}
	used := make([]int64, len(subjects))
	for i, r := range answer.Results {
		used[i] = killLimit - 1 - r.Remaining // the answer to a peek includes its cost
	}
	return used
}

// metric returns a metric without labels; 0 if the node has none of that name.
func (s *runningNode) metric(name string) float64 {
	s.t.Helper()
	_, text, err := s.call("GET", s.admin+"/metrics", "", "")
	expect.NoError(s.t, err)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			expect.NoError(s.t, err)
			return v
		}
	}
	return 0
}
