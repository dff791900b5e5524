// Package tasks runs goroutines whose owner must wait for them before it ends.
package tasks

import "sync"

// Group runs tasks until it is closed.
type Group struct {
	// Most bounds how many tasks run at once; 0: any number may. It is set before the first task.
	Most int

	mu      sync.Mutex // guards the fields below
	running int
	ended   chan struct{} // made by Close, and closed once no task runs
}

// Go runs a task in a goroutine of its own. It returns false if as many as may
// are running, or if the group is closed.
func (g *Group) Go(task func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil || g.Most > 0 && g.running >= g.Most {
		return false
	}

	g.running++
	go func() {
		defer g.end()
		task()
	}()
	return true
}

// end notes that a task has ended.
func (g *Group) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.ended != nil && g.running == 0 {
		close(g.ended)
	}
}

// Running returns how many tasks are running.
func (g *Group) Running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

// Close refuses further tasks. The channel that it returns is closed once the last one has ended.
func (g *Group) Close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		g.ended = make(chan struct{})
		if g.running == 0 {
			close(g.ended)
		}
	}
	return g.ended
}
