package api

import (
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	// AsksAtOnce bounds the questions that one request asks at the same time.
	AsksAtOnce = 16
	// askMemory is roughly what a goroutine that asks takes, in bytes.
	askMemory = 8 << 10
)

// AskAll calls ask with each number below n, several at the same time, because
// each call may wait for another node. After ask has returned false, AskAll
// begins no further call. It returns when all calls have ended. If the budget
// has no room for the goroutines, it makes one call after another. A panic in
// ask becomes a panic of AskAll.
func (b *Budget) AskAll(n int, ask func(i int) bool) {
	var next atomic.Int64
	var failed atomic.Bool
	work := func() {
		for !failed.Load() {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if !ask(i) {
				failed.Store(true)
			}
		}
	}

	// This goroutine also asks.
	helpers := min(n, AsksAtOnce) - 1
	memory := int64(helpers) * askMemory
	if helpers <= 0 || !b.Take(memory) {
		helpers, memory = 0, 0
	}
	defer b.Give(memory)

	var group sync.WaitGroup
	var panicked atomic.Value
	for range helpers {
		group.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					panicked.Store(fmt.Sprint(v))
				}
			}()
			work()
		})
	}

	defer group.Wait() // even if this goroutine panics, because the helpers use its caller's variables
	work()
	group.Wait()

	if v := panicked.Load(); v != nil {
		panic(v) // the caller's goroutine handles it
	}
}
