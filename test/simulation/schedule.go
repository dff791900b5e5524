package simulation

import (
	"container/heap"
	"sync"
	"time"
)

// schedule runs what is to happen, one after another: a goroutine and a timer for each of the hundred thousands of
// messages of a run would take longer than all the rest.
type schedule struct {
	start time.Time
	wake  chan struct{} // capacity 1: something comes before what is waited for
	stop  chan struct{}
	done  sync.WaitGroup
	ran   int64 // written by the goroutine alone until done

	mu     sync.Mutex // guards what follows
	queue  taskQueue
	serial uint64
	next   time.Duration // what is waited for
}

// task is something that happens at a time; of two at the same time the one that was planned first comes first.
type task struct {
	at     time.Duration
	serial uint64
	run    func()
}

func newSchedule(start time.Time) *schedule {
	s := &schedule{start: start, wake: make(chan struct{}, 1), stop: make(chan struct{}), next: forever}
	s.done.Go(s.loop)
	return s
}

// at has run called at a time. It must not block.
func (s *schedule) at(at time.Duration, run func()) {
	s.mu.Lock()
	s.serial++
	heap.Push(&s.queue, task{at, s.serial, run})
	early := at < s.next
	if early {
		s.next = at
	}
	s.mu.Unlock()
	if early {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *schedule) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Since(s.start)
		for run := s.due(now); run != nil; run = s.due(now) {
			run()
			s.ran++
		}
		s.mu.Lock()
		next := s.next
		s.mu.Unlock()
		timer.Reset(next - now)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.stop:
			return
		}
	}
}

// due takes what is to run now; nil without any.
func (s *schedule) due(now time.Duration) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = forever
	if len(s.queue) == 0 {
		return nil
	}
	if s.next = s.queue[0].at; s.next > now {
		return nil
	}
	return heap.Pop(&s.queue).(task).run
}

// close ends it; what has not happened does not.
func (s *schedule) close() {
	close(s.stop)
	s.done.Wait()
}

type taskQueue []task

func (h taskQueue) Len() int { return len(h) }
func (h taskQueue) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h taskQueue) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *taskQueue) Push(x any)   { *h = append(*h, x.(task)) }
func (h *taskQueue) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = task{}
	*h = (*h)[:len(*h)-1]
	return last
}

// workerPool are goroutines that do work that may wait. Their stacks have grown already.
type workerPool struct {
	work chan func()
	done sync.WaitGroup
}

// poolSize is more than the checks that are ever under way at once: where it is not, checks come late.
const poolSize = 256

func newWorkerPool() *workerPool {
	c := &workerPool{work: make(chan func())}
	for range poolSize {
		c.done.Go(func() {
			for f := range c.work {
				f()
			}
		})
	}
	return c
}

func (c *workerPool) do(f func()) { c.work <- f }

func (c *workerPool) close() {
	close(c.work)
	c.done.Wait()
}
