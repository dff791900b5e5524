package tasks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A group runs as many tasks as it may, none once it is closed, and says when
// the last one has ended.
func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Group{Most: 2}
		task := func() { time.Sleep(time.Minute) }
		expect.Equal(t, g.Go(task), true, "the first task starts")
		expect.Equal(t, g.Go(task), true, "and the second")
		expect.Equal(t, g.Go(task), false, "a third starts beside them")
		expect.Equal(t, g.Running(), 2, "tasks running")

		time.Sleep(2 * time.Minute)
		expect.Equal(t, g.Go(task), true, "another starts when they have ended")
		began := time.Now()
		ended := g.Close()
		expect.Equal(t, g.Go(task), false, "one starts after Close")
		<-ended
		expect.Equal(t, time.Since(began), time.Minute, "time until the last one has ended")
		<-g.Close() // closed again, without a task: at once
	})
}
