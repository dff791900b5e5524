package usage

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"
)

// Where the process that is to be killed counts.
const (
	childDir = "RLNODE_TEST_USAGE_DIR"
	childSHM = "RLNODE_TEST_USAGE_SHM"
)

// TestKilledChild is the process that is killed: it tells what it has counted, after it has.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("only as a child of TestKilled")
	}
	c, _ := config(dir)
	c.Rows, c.SharedMemory = 1_000_000, os.Getenv(childSHM)
	m := open(t, c)
	round := os.Getpid()
	for i := 0; ; i++ {
		m.count(november, "old", []string{"k"}, "requests", 1)
		m.count(november, "new", []string{fmt.Sprint(round, " subject ", i)}, "requests", 1)
		fmt.Println("counted", i+1)
	}
}

// killChild kills a process that counts, some time after it has begun, and returns what it told.
func killChild(t *testing.T, c Config, after time.Duration) (told int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledChild$")
	cmd.Env = append(os.Environ(), childDir+"="+c.Dir, childSHM+"="+c.SharedMemory)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	end := time.Time{}
	for lines.Scan() {
		var n int64
		if _, err := fmt.Sscanf(lines.Text(), "counted %d", &n); err != nil {
			continue
		}
		if told = n; end.IsZero() {
			end = time.Now().Add(after)
		}
		if time.Now().After(end) {
			_ = cmd.Process.Kill() // and what is in the pipe was told, too
		}
	}
	_ = cmd.Wait()
	if told == 0 {
		t.Fatal("the child counted nothing")
	}
	return told
}

// counted reads what is there of what children counted.
func counted(t *testing.T, c Config) (old, fresh int64) {
	t.Helper()
	for name, r := range rowsOf(t, c.Dir, "2026-11") {
		if name == "old[k]requestsfalse" {
			old = r[0]
		} else {
			fresh += r[0]
		}
	}
	return old, fresh
}

// A killed process has lost nothing that it had told, counts what it had not told at most once, and leaves no damage.
func TestKilled(t *testing.T) {
	everywhere(t, func(t *testing.T, c Config, _ *atomic.Int64) {
		c.Rows = 1_000_000
		told := int64(0)
		for kill := range 6 {
			told += killChild(t, c, time.Duration(1+kill*kill*11)*time.Millisecond)
			if kill%2 == 1 { // else the next child has to find it
				open(t, c).Close()
				old, fresh := counted(t, c)
				if old < told || old > told+int64(kill+1) || fresh < told || fresh > old {
					t.Fatalf("kill %d: have %d and %d, want %d, or one more for each kill", kill+1, old, fresh, told)
				}
			}
		}
		if s := open(t, c).Stats(); s.SetAside != 0 || s.Rows < told {
			t.Errorf("have %+v, want no damage", s)
		}
	})
}

// Where shared memory goes with the process, a kill costs what was not copied, and is no damage, whenever it comes.
func TestKilledWithItsMemory(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Rows = 1_000_000
	told := int64(0)
	for kill := range 6 {
		told += killChild(t, c, copyInterval*time.Duration(kill+2)/3)
		if err := os.RemoveAll(c.SharedMemory); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(c.SharedMemory, 0o700); err != nil {
			t.Fatal(err)
		}
		m := open(t, c)
		if s := m.Stats(); s.SetAside != 0 {
			t.Fatalf("kill %d: have %+v, want no damage", kill+1, s)
		}
		m.Close()
		if old, fresh := counted(t, c); old > told+int64(kill+1) || fresh > told+int64(kill+1) {
			t.Fatalf("kill %d: have %d and %d, want not more than %d", kill+1, old, fresh, told)
		}
	}
	if old, fresh := counted(t, c); old == 0 || fresh == 0 {
		t.Errorf("have %d and %d, want what was copied", old, fresh)
	}
}
