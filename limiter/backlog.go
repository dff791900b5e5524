package limiter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
)

// task is something that an owner must do for this node, and that could not be done at once.
type task interface {
	// try has the owner do it. It returns false if it must be tried again. It is of
	// use for another left.
	try(ctx context.Context, l *Limiter, left time.Duration) bool
	// giveUp counts the task as dropped: there was no room for it, or it has been
	// late, and is of no use any more.
	giveUp(l *Limiter, late bool)
}

// maxTasksAtOnce bounds the tasks of a backlog that are tried at the same time.
const maxTasksAtOnce = 256

// backlog holds tasks that are tried again and again. Each kind of task has its
// own, so that none holds up another.
type backlog struct {
	limiter *Limiter
	room    int           // bounds the tasks
	pause   time.Duration // between two attempts of a task
	wake    chan struct{} // capacity 1: tasks is no longer empty

	mu    sync.Mutex
	tasks []waitingTask // those that are not being tried; guarded by mu
}

// waitingTask is a task in a backlog.
type waitingTask struct {
	task
	until time.Duration // on the lease clock: when it is late
	next  time.Duration // likewise: when to try it again
}

// newBacklog returns a backlog whose tasks are tried until the limiter is closed.
func (l *Limiter) newBacklog(room int, pause time.Duration) *backlog {
	b := &backlog{limiter: l, room: room, pause: pause, wake: make(chan struct{}, 1)}
	l.membership.maintenance.Go(b.run)
	return b
}

// keep keeps t for as long as it is of use.
func (b *backlog) keep(t task, life time.Duration) {
	b.put(waitingTask{task: t, until: b.limiter.membership.Boottime() + life})
}

// put puts t in the backlog, unless that is full or the limiter is closed.
func (b *backlog) put(t waitingTask) {
	m := b.limiter.membership
	defer wake.Signal(b.wake)

	b.mu.Lock()
	defer b.mu.Unlock()

	// After run's last round, which takes this mutex once the context has
	// ended, a task would wait for ever.
	if len(b.tasks) >= b.room || m.ctx.Err() != nil {
		t.giveUp(b.limiter, false)
		return
	}
	t.next = m.Boottime() + b.pause
	b.tasks = append(b.tasks, t)
}

// forget drops the waiting tasks for which isOver returns true.
func (b *backlog) forget(isOver func(task) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks = slices.DeleteFunc(b.tasks, func(t waitingTask) bool { return isOver(t.task) })
}

// run tries the tasks, and once more when the limiter is closed: what can be
// sent without an answer still leaves.
func (b *backlog) run() {
	ctx := b.limiter.membership.ctx
	timer := time.NewTimer(0)
	defer timer.Stop()

	for closed := false; !closed; {
		select {
		case <-timer.C:
		case <-b.wake:
		case <-ctx.Done():
		}

		closed = ctx.Err() != nil // if so, nothing more is kept
		due, waiting := b.takeDue(closed)

		var all sync.WaitGroup
		for i := range due {
			// Nothing waits for answers any more when the limiter is closed,
			// so the tasks, which may be many then, need no goroutines.
			if closed {
				b.attempt(ctx, due[i])
			} else {
				all.Go(func() { b.attempt(ctx, due[i]) })
			}
		}
		all.Wait()

		if waiting+len(due) > 0 {
			// Shorter than the pause, so that no task waits much longer than
			// that.
			timer.Reset(b.pause / 4)
		}
	}
}

// takeDue removes and returns the tasks that are to be tried now, or all of
// them if the limiter is closed, and how many wait. It drops those that are
// late.
func (b *backlog) takeDue(closed bool) (due []waitingTask, waiting int) {
	now := b.limiter.membership.Boottime()
	b.mu.Lock()
	defer b.mu.Unlock()

	b.tasks = slices.DeleteFunc(b.tasks, func(t waitingTask) bool {
		switch {
		case now >= t.until:
			t.giveUp(b.limiter, true)
		case closed || now >= t.next && len(due) < maxTasksAtOnce:
			due = append(due, t)
		default:
			return false
		}
		return true
	})
	return due, len(b.tasks)
}

// attempt tries t, and keeps it for another attempt if need be.
func (b *backlog) attempt(ctx context.Context, t waitingTask) {
	ctx, cancel := context.WithTimeout(ctx, homeTimeout)
	defer cancel()
	if !t.try(ctx, b.limiter, t.until-b.limiter.membership.Boottime()) {
		b.put(t)
	}
}
