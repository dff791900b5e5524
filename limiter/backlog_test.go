package limiter

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// slowTask is a task whose attempt takes a second.
type slowTask struct{ tries, undone atomic.Int64 }

func (task *slowTask) try(context.Context, *Limiter, time.Duration) bool {
	task.tries.Add(1)
	time.Sleep(time.Second)
	return false
}

func (task *slowTask) countLost(*Limiter, bool) {}

// The release of a slot that its owner has granted does not search the tasks that
// wait, however many they are.
func TestAReleaseDoesNotSearchTheBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, slotsText)
		n := w.nodes[0]
		n.cluster.slotTasks.keep(&slowTask{}, time.Hour) // a search would panic at it
		id := n.expectSlot("acquire", "render", "k", 1, true)
		held, err := n.ReleaseSlot(id)
		expect.NoError(t, err)
		expect.Equal(t, held, true, "held")
	})
}

// A task that is forgotten while it is being tried is undone after the attempt,
// and not tried again.
func TestATaskIsForgottenDuringItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, `rules: [{name: r, key: [k], limits: [{limit: 1, per: 1m}]}]`)
		bl := w.nodes[0].newBacklog(10, 100*time.Millisecond)
		slow := &slowTask{}
		bl.keep(slow, time.Hour)
		time.Sleep(500 * time.Millisecond) // it is being tried

		bl.forget(func(other task) bool { return other == slow }, func(task) { slow.undone.Add(1) })
		time.Sleep(10 * time.Second)

		expect.Equal(t, slow.tries.Load(), 1, "attempts")
		expect.Equal(t, slow.undone.Load(), 1, "times undone")
		bl.mu.Lock()
		defer bl.mu.Unlock()
		expect.Equal(t, len(bl.trying), 0, "tasks being tried")
	})
}
