// Package tick repeats work at intervals until a channel is closed.
package tick

import "time"

// Every yields each time d has passed, until stop is closed. While the loop's
// body runs, at most one tick waits.
func Every(stop <-chan struct{}, d time.Duration) func(yield func() bool) {
	return func(yield func() bool) {
		t := time.NewTicker(d)
		defer t.Stop()

		for {
			select {
			case <-stop:
				return
			case <-t.C:
			}
			if !yield() {
				return
			}
		}
	}
}
