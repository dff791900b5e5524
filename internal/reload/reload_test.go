package reload

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A change is read once it has settled, an invalid file leaves the old value,
// and each change is reported once.
func TestFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	write := func(text string, age time.Duration) {
		t.Helper()
		at := time.Now().Add(-age)
		expect.NoError(t, errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chtimes(name, at, at)))
	}
	load := func() (string, error) {
		text, err := os.ReadFile(name)
		if err == nil && string(text) == "bad" {
			err = errors.New("invalid")
		}
		return string(text), err
	}
	write("one", time.Hour)
	reports, failures := 0, 0
	f, err := Open(load, func(_ string, err error) {
		reports++
		if err != nil {
			failures++
		}
	}, name)
	expect.NoError(t, err)
	now := time.Now()
	look := func(want string, wantReports, wantFailures int) {
		t.Helper()
		now = now.Add(2 * Interval)
		if have := f.Current(now); have != want || reports != wantReports || failures != wantFailures {
			t.Errorf("have %q, %d reports, %d failures; want %q, %d, %d", have, reports, failures,
				want, wantReports, wantFailures)
		}
	}
	look("one", 0, 0)
	write("three", time.Minute) // no longer being written
	expect.Equal(t, f.Current(now), "one", "looked at too early")
	look("three", 1, 0)
	write("being written", -time.Hour)
	look("three", 1, 0)
	look("being written", 2, 0)
	write("bad", time.Hour)
	look("being written", 3, 1)
	look("being written", 3, 1)
	expect.NoError(t, os.Remove(name))
	look("being written", 4, 2)
	if _, err := Open(load, nil, name); err == nil {
		t.Error("opened a missing file")
	}
}
