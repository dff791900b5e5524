package limiter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// slowTask is a task whose attempt takes a second.
type slowTask struct{ tries, undone int }

func (task *slowTask) try(context.Context, *Limiter, time.Duration) bool {
	task.tries++
	time.Sleep(time.Second)
	return false
}

func (task *slowTask) giveUp(*Limiter, bool) {}

// A task that is forgotten while it is being tried is undone after the attempt,
// and not tried again.
func TestATaskIsForgottenDuringItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, `rules: [{name: r, key: [k], limits: [{limit: 1, per: 1m}]}]`)
		bl := w.nodes[0].newBacklog(10, 100*time.Millisecond)
		slow := &slowTask{}
		bl.keep(slow, time.Hour)
		time.Sleep(500 * time.Millisecond) // it is being tried

		bl.forget(func(other task) bool { return other == slow }, func(task) { slow.undone++ })
		time.Sleep(10 * time.Second)

		expect.Equal(t, slow.tries, 1, "attempts")
		expect.Equal(t, slow.undone, 1, "times undone")
		expect.Equal(t, len(bl.trying), 0, "tasks being tried")
	})
}
