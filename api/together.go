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
// each may wait for another node. Once ask has returned false, it begins no
// other. It returns when all have ended. If there is no room for the
// goroutines, it asks one after another. A panic in ask is the caller's.
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

	// This goroutine asks, too.
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

	defer group.Wait() // even if this goroutine panics: the helpers use what is its caller's
	work()
	group.Wait()

	if v := panicked.Load(); v != nil {
		panic(v) // the caller's goroutine handles it
	}
}
