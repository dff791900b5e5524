package usage

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// childDirEnv is the environment variable that tells the child process where to count.
const childDirEnv = "RLNODE_TEST_USAGE_DIR"

// TestKilledChild is the process that TestKilled kills. It reports each write once it is done.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(childDirEnv)
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
		if i%64 == 0 { // many transactions, one of which the kill hits
			expect.NoError(t, m.Sync())
			fmt.Println("counted", i+1)
		}
	}
}

// killChild kills a counting process some time after its first report, and
// returns the count that it reported as written.
func killChild(t *testing.T, c Config, after time.Duration) (reported int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledChild$")
	cmd.Env = append(os.Environ(), childDirEnv+"="+c.Dir)
	out, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	end := time.Time{}
	for lines.Scan() {
		var n int64
		if _, err := fmt.Sscanf(lines.Text(), "counted %d", &n); err != nil {
			continue
		}
		reported = n
		if end.IsZero() {
			end = time.Now().Add(after)
		}
		if time.Now().After(end) {
			_ = cmd.Process.Kill() // counts already in the pipe were reported, too
		}
	}
	_ = cmd.Wait()
	if reported == 0 {
		t.Fatal("the child counted nothing")
	}
	return reported
}

// A killed process loses nothing it had written, counts nothing twice, and leaves no damage.
func TestKilled(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Rows = 1_000_000
	reported := int64(0)
	for kill := range 6 {
		reported += killChild(t, c, time.Duration(1+kill*kill*5)*time.Millisecond)
		if kill%2 == 0 {
			continue // the next child has to load it
		}
		m := open(t, c)
		old, fresh := int64(0), int64(0)
		for name, r := range m.rows(t, "2026-11") {
			if name == "old[k]requestsfalse" {
				old = r[0]
			} else {
				fresh += r[0]
			}
		}
		// Each row is right by itself, but writes between two Syncs may catch one row
		// later than another.
		most := reported + int64(64*(kill+1))
		if s := m.Stats(); s.SetAside != 0 || min(old, fresh) < reported || max(old, fresh) > most {
			t.Fatalf("kill %d: have %d and %d, %+v, want %d…%d", kill+1, old, fresh, s, reported, most)
		}
		m.Close()
	}
}
