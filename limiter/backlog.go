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
	// try has the owner do the task, and returns false if the task must be tried
	// again. left is how much longer the task is of use.
	try(ctx context.Context, l *Limiter, left time.Duration) bool
	// giveUp counts the task as dropped. late means that it is no longer of use;
	// otherwise there was no room for it, or the limiter is closed.
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
	until time.Duration // by Boottime: when it is late
	next  time.Duration // likewise: when to try it again
}

// newBacklog returns a backlog whose tasks are tried until the limiter is closed.
func (l *Limiter) newBacklog(room int, pause time.Duration) *backlog {
	bl := &backlog{limiter: l, room: room, pause: pause, wake: make(chan struct{}, 1)}
	l.membership.maintenance.Go(bl.run)
	return bl
}

// keep keeps t until it is done, but no longer than it is of use.
func (bl *backlog) keep(t task, usefulFor time.Duration) {
	bl.put(waitingTask{task: t, until: bl.limiter.membership.Boottime() + usefulFor})

	// A task that run puts back needs no signal: run then sets its timer.
	wake.Signal(bl.wake)
}

// put puts task in the backlog, unless that is full or the limiter is closed.
func (bl *backlog) put(task waitingTask) {
	m := bl.limiter.membership
	bl.mu.Lock()
	defer bl.mu.Unlock()

	// A task that came after run's last round would wait for ever. None does: that
	// round takes this mutex only after the context has ended.
	if len(bl.tasks) >= bl.room || m.ctx.Err() != nil {
		task.giveUp(bl.limiter, false)
		return
	}
	task.next = m.Boottime() + bl.pause
	bl.tasks = append(bl.tasks, task)
}

// forget drops the waiting tasks for which isOver returns true.
func (bl *backlog) forget(isOver func(task) bool) {
	bl.mu.Lock()
	defer bl.mu.Unlock()
	bl.tasks = slices.DeleteFunc(bl.tasks, func(task waitingTask) bool { return isOver(task.task) })
}

// run tries the tasks until the limiter is closed, and then all of them once
// more, so that messages that need no answer still leave.
func (bl *backlog) run() {
	ctx := bl.limiter.membership.ctx
	timer := time.NewTimer(0)
	defer timer.Stop()

	for closed := false; !closed; {
		select {
		case <-timer.C:
		case <-bl.wake:
		case <-ctx.Done():
		}

		closed = ctx.Err() != nil // if so, nothing more is kept
		due, waiting := bl.takeDue(closed)

		var pending sync.WaitGroup
		for i := range due {
			// Nothing waits for answers any more when the limiter is closed,
			// so the tasks, which may be many then, need no goroutines.
			if closed {
				bl.attempt(ctx, due[i])
			} else {
				pending.Go(func() { bl.attempt(ctx, due[i]) })
			}
		}
		pending.Wait()

		if waiting+len(due) > 0 {
			// The timer is shorter than the pause, so that no task waits much longer
			// than the pause.
			timer.Reset(bl.pause / 4)
		}
	}
}

// takeDue removes and returns the tasks that are to be tried now, or all of
// them if the limiter is closed, and how many wait. It drops those that are
// late.
func (bl *backlog) takeDue(closed bool) (due []waitingTask, waiting int) {
	now := bl.limiter.membership.Boottime()
	bl.mu.Lock()
	defer bl.mu.Unlock()

	bl.tasks = slices.DeleteFunc(bl.tasks, func(task waitingTask) bool {
		switch {
		case now >= task.until:
			task.giveUp(bl.limiter, true)
		case closed || now >= task.next && len(due) < maxTasksAtOnce:
			due = append(due, task)
		default:
			return false
		}
		return true
	})
	return due, len(bl.tasks)
}

// attempt tries task, and keeps it for another attempt if need be.
func (bl *backlog) attempt(ctx context.Context, task waitingTask) {
	ctx, cancel := context.WithTimeout(ctx, homeTimeout)
	defer cancel()
	if !task.try(ctx, bl.limiter, task.until-bl.limiter.membership.Boottime()) {
		bl.put(task)
	}
}
