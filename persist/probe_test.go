package persist

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestProbe: a disk that hangs or fails is detected while nothing else is
// written, and so is its recovery.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, workers := filepath.Join(t.TempDir(), probeFile), newWorkers()
		p, err := openProbe(path, time.Second, workers, slog.New(slog.DiscardHandler))
		expect.NoError(t, err)
		if err := p.check(); err != nil {
			t.Fatalf("have %v", err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != probeSize {
			t.Errorf("have %v, %v", info, err)
		}
		works := p.write
		held := make(chan struct{})
		p.write = func() error {
			<-held
			return works()
		}
		began := time.Now()
		if err := p.check(); !errors.Is(err, errHung) || time.Since(began) != time.Second {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
		if err := p.check(); !errors.Is(err, errHung) || time.Since(began) != time.Second {
			t.Errorf("have %v after %v from a second one", err, time.Since(began))
		}
		time.Sleep(time.Millisecond)
		if hung, _, _ := p.health.report(time.Second); hung.IsZero() {
			t.Error("the status does not say that the disk hangs")
		}
		close(held)
		synctest.Wait()
		if err := p.check(); err != nil {
			t.Errorf("have %v from a disk that responds again", err)
		}
		p.write = func() error { return syscall.EIO }
		expect.ErrorIs(t, p.check(), syscall.EIO, "p.check()")
		if _, failing, err := p.health.report(time.Second); failing.IsZero() || !errors.Is(err, syscall.EIO) {
			t.Errorf("have %v, %v", failing, err)
		}
		p.write = works
		if err := p.check(); err != nil {
			t.Errorf("have %v", err)
		}
		if hung, failing, _ := p.health.report(time.Second); !hung.IsZero() || !failing.IsZero() {
			t.Errorf("have %v, %v from a healthy disk", hung, failing)
		}
		ended := make(chan struct{})
		workers.closeAfter(func() { close(ended) })
		<-ended
		expect.ErrorIs(t, errors.Join(p.close(), p.check()), ErrClosed, "after Close")
	})
}
