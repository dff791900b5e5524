package limiter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
)

// task is work for an owner that could not be done at once.
type task interface {
	// try has the owner do the task, and returns false if the task must be tried
	// again. left is how much longer the task is of use.
	try(ctx context.Context, l *Limiter, left time.Duration) bool
	// countLost counts the task as dropped. late means that the task is no longer
	// of use; otherwise there was no room for it, or the limiter is closed. The
	// backlog calls countLost with its mutex held, so countLost must not use the
	// backlog.
	countLost(l *Limiter, late bool)
}

// maxTasksAtOnce bounds the tasks of a backlog that are tried at the same time.
const maxTasksAtOnce = 256

// backlog holds tasks that are tried again and again. Each kind of task has a
// backlog of its own, so that no kind holds up another.
type backlog struct {
	limiter *Limiter
	room    int           // bounds the tasks
	pause   time.Duration // between two attempts of a task
	wake    chan struct{} // capacity 1: tasks is no longer empty

	mu    sync.Mutex    // guards the fields below
	tasks []waitingTask // those that are not being tried
	// trying has the tasks that are being tried, and for one that was forgotten
	// meanwhile, what undoes it.
	trying map[task]func()
}

type waitingTask struct {
	task
	until time.Duration // by Boottime: when it is late
	next  time.Duration // by Boottime: when to try it again
}

// newBacklog returns a backlog whose tasks are tried until the limiter is closed.
func (l *Limiter) newBacklog(room int, pause time.Duration) *backlog {
	bl := &backlog{limiter: l, room: room, pause: pause, wake: make(chan struct{}, 1), trying: map[task]func(){}}
	l.cluster.maintenance.Go(bl.run)
	return bl
}

// keep keeps t until it is done, but no longer than for usefulFor.
func (bl *backlog) keep(t task, usefulFor time.Duration) {
	bl.put(waitingTask{task: t, until: bl.limiter.cluster.Boottime() + usefulFor})

	// A task that run puts back needs no signal: run then sets its timer.
	wake.Signal(bl.wake)
}

// put puts task in the backlog, unless that is full or the limiter is closed.
func (bl *backlog) put(task waitingTask) {
	cp := bl.limiter.cluster
	bl.mu.Lock()
	defer bl.mu.Unlock()

	// Once the context has ended, nothing is kept any more. run takes this mutex for
	// its last round only after that, so the last round finds every task.
	if len(bl.tasks) >= bl.room || cp.ctx.Err() != nil {
		task.countLost(bl.limiter, false)
		return
	}
	task.next = cp.Boottime() + bl.pause
	bl.tasks = append(bl.tasks, task)
}

// forget drops the tasks for which isOver returns true. One that is being tried
// may take effect all the same, so undo is called after the attempt.
func (bl *backlog) forget(isOver func(task) bool, undo func(task)) {
	bl.mu.Lock()
	defer bl.mu.Unlock()

	bl.tasks = slices.DeleteFunc(bl.tasks, func(task waitingTask) bool { return isOver(task.task) })
	for t := range bl.trying {
		if isOver(t) {
			bl.trying[t] = func() { undo(t) }
		}
	}
}

// run tries the tasks until the limiter is closed. Then it tries all of them
// once more, so that messages that need no answer still leave.
func (bl *backlog) run() {
	ctx := bl.limiter.cluster.ctx
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
			// Once the limiter is closed, no attempt waits for an answer. So the tasks,
			// which may be many then, need no goroutines.
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

// takeDue removes and returns the tasks that are to be tried now, or all tasks
// if the limiter is closed. It drops the tasks that are late, and returns how
// many stay.
func (bl *backlog) takeDue(closed bool) (due []waitingTask, waiting int) {
	now := bl.limiter.cluster.Boottime()
	bl.mu.Lock()
	defer bl.mu.Unlock()

	bl.tasks = slices.DeleteFunc(bl.tasks, func(task waitingTask) bool {
		switch {
		case now >= task.until:
			task.countLost(bl.limiter, true)
		case closed || now >= task.next && len(due) < maxTasksAtOnce:
			due = append(due, task)
			bl.trying[task.task] = nil
		default:
			return false
		}
		return true
	})
	return due, len(bl.tasks)
}

// attempt tries task, and keeps it for another attempt if need be.
func (bl *backlog) attempt(ctx context.Context, task waitingTask) {
	ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
	defer cancel()
	done := task.try(ctx, bl.limiter, task.until-bl.limiter.cluster.Boottime())

	bl.mu.Lock()
	undo := bl.trying[task.task]
	delete(bl.trying, task.task)
	bl.mu.Unlock()

	switch {
	case undo != nil:
		undo()
	case !done:
		bl.put(task)
	}
}
