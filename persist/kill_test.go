package persist

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

const killCounters = 3000

// child is the process that is killed: it works until then, and reports each thing that is safe on its output.
func child(job string) {
	kind, dir, _ := strings.Cut(job, ":")
	var err error
	switch kind {
	case "counters":
		err = childCounters(dir)
	case "raft":
		err = childRaft(dir)
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

// wallClock is for tests that live in several processes.
func wallClock() algorithms.Now { return algorithms.At(time.Now()) }

// killRecord is counter i as round n leaves it. Its bucket changes with the round.
func killRecord(i, n int) counters.Record {
	now := wallClock()
	return counters.Record{
		Key: counters.Key{Hi: mix(uint64(i))}, Kind: algorithms.TokenBucket, Level: 3,
		State:   algorithms.State{Count: int64(n), At: now.Steady},
		FreshAt: now.Steady/1e9 + 600 + int64(n%7)*300,
	}
}

func childCounters(dir string) error {
	src := newTable()
	src.batch = 500
	cfg := testConfig(dir, src, wallClock)
	c, err := OpenCounters(cfg)
	if err != nil {
		return err
	}
	if _, err := c.Load(wallClock()); err != nil {
		return err
	}
	round := 0
	for _, r := range src.all {
		round = max(round, int(r.State.Count))
	}
	for {
		round++
		for i := range killCounters {
			src.set(killRecord(i, round))
		}
		if err := c.Checkpoint(context.Background()); err != nil {
			return err
		}
		fmt.Println(round)
	}
}

// killed runs a child, kills it after life, and returns the last number that it reported.
func killed(t *testing.T, job string, life time.Duration) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+job)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	last := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("child: %s", lines.Text())
		}
		last = n
	}
	_ = cmd.Wait() // killed, as it should be
	return last
}

func killRounds() int {
	if testing.Short() {
		return 5
	}
	return 40
}

// TestG7_KilledWhileCheckpointing: after a kill at any moment the file opens, is whole, and has at least the last
// completed checkpoint.
func TestG7_KilledWhileCheckpointing(t *testing.T) {
	dir, done, newest := t.TempDir(), 0, 0
	// A slow machine gets nothing done in that time; then the next child lives longer.
	for life, round := 150, 0; round < killRounds() || done == 0 && life < 20_000; round++ {
		done = max(done, killed(t, "counters:"+dir, time.Duration(20+rand.IntN(life))*time.Millisecond))
		if done == 0 {
			life += life / 2
		}
		src := newTable()
		c, stats := openLoaded(t, testConfig(dir, src, wallClock))
		if s := c.Status(); s.SetAside != 0 || stats.Bad != 0 {
			t.Fatalf("a kill damaged the file: %+v, %+v", s, stats)
		}
		if done > 0 && src.len() != killCounters {
			t.Fatalf("%d counters, want %d", src.len(), killCounters)
		}
		// A child goes on after the newest that it finds, be it of a checkpoint that was not completed.
		most := max(done, newest) + 1
		for _, r := range src.all {
			n := int(r.State.Count)
			if n < done || n > most {
				t.Fatalf("a counter is of round %d, after round %d was reported and %d begun", n, done, most)
			}
			newest = max(newest, n)
		}
		mustClose(t, c)
	}
	if done == 0 {
		t.Error("no child completed a checkpoint")
	}
}
