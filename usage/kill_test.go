package usage

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// childDir is where the process that is to be killed counts.
const childDir = "RLNODE_TEST_USAGE_DIR"

// TestKilledChild is the process that is killed: it tells what it has counted, after it has.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("only as a child of TestKilled")
	}
	c, _ := config(dir)
	c.Rows = 1_000_000
	m := open(t, c)
	round := os.Getpid()
	for i := 0; ; i++ {
		m.count(november, "old", []string{"k"}, "requests", 1)
		m.count(november, "new", []string{fmt.Sprint(round, " subject ", i)}, "requests", 1)
		fmt.Println("counted", i+1)
	}
}

// A killed process has lost nothing that it had told, counts what it had not told at most once, and leaves no damage.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	told := int64(0)
	const kills = 6
	for kill := range kills {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledChild$")
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		last, end := int64(0), time.Time{}
		for lines.Scan() {
			var n int64
			if _, err := fmt.Sscanf(lines.Text(), "counted %d", &n); err != nil {
				continue
			}
			if last = n; end.IsZero() {
				end = time.Now().Add(time.Duration(1+kill*7) * time.Millisecond)
			}
			if time.Now().After(end) {
				_ = cmd.Process.Kill() // and what is in the pipe was told, too
			}
		}
		_ = cmd.Wait()
		if last == 0 {
			t.Fatal("the child counted nothing")
		}
		told += last
		var old, fresh int64
		for name, r := range rowsOf(t, dir, "2026-11") {
			if name == "old[k]requestsfalse" {
				old = r[0]
			} else {
				fresh += r[0]
			}
		}
		if old < told || old > told+int64(kill+1) || fresh < told || fresh > old {
			t.Fatalf("kill %d: have %d and %d, want %d, or one more for each kill", kill+1, old, fresh, told)
		}
	}
	c, _ := config(dir)
	c.Rows = 1_000_000
	m := open(t, c)
	if s := m.Stats(); s.SetAside != 0 || s.Rows < told {
		t.Errorf("have %+v after %s kills, want no damage", s, strconv.Itoa(kills))
	}
}
