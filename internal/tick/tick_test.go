package tick

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		began, n := time.Now(), 0
		for range Every(stop, time.Second) {
			n++
			if time.Since(began) != time.Duration(n)*time.Second {
				t.Errorf("tick %d came after %v", n, time.Since(began))
			}
			if n == 3 {
				close(stop)
			}
		}
		for range Every(nil, time.Second) {
			n++
			break
		}
		expect.Equal(t, n, 4, "ticks")
	})
}
