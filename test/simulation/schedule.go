package simulation

import (
	"container/heap"
	"sync"
	"time"
)

// schedule runs tasks one after another. A goroutine and a timer for each of a run's hundreds of thousands of messages
// would take longer than everything else.
type schedule struct {
	start time.Time
	wake  chan struct{} // capacity 1: a task precedes the one that the loop waits for
	stop  chan struct{}
	done  sync.WaitGroup
	ran   int64 // written only by the loop, until done

	mu     sync.Mutex // guards the fields below
	queue  taskQueue
	serial uint64
	next   time.Duration // when the next task is due
}

// task is a function to run at a time. Tasks of the same time run in the order in which they were scheduled.
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

// at schedules run, which must not block.
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

// due removes and returns the next task that is due, or nil.
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

// close stops the schedule; later tasks do not run.
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

// workerPool runs functions that may block. Its goroutines' stacks have already grown.
type workerPool struct {
	work chan func()
	done sync.WaitGroup
}

// poolSize exceeds the number of concurrent checks. If it did not, checks would start late.
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
