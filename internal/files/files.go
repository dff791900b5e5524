// Package files follows files that others write: certificates, keys, what must be read again when it has changed.
package files

import (
	"os"
	"slices"
	"sync"
	"time"
)

// Interval is how often files are looked at, at most.
const Interval = time.Second

// Followed is what was made of some files, and is made anew when one of them has changed.
type Followed[T any] struct {
	load     func() (T, error)
	reloaded func(error)
	names    []string

	mu     sync.Mutex // guards what follows
	value  T
	seen   []mark // of the files that value was made of, or of those that were no good
	looked time.Time
}

// mark tells a file from what it was before.
type mark struct {
	changed time.Time
	size    int64
	err     string
}

// Follow loads from the files with these names, which must be good to begin with. Later, what was loaded last stays where they
// are no good; reloaded hears each time whether they were.
func Follow[T any](load func() (T, error), reloaded func(error), names ...string) (*Followed[T], error) {
	f := &Followed[T]{load: load, reloaded: reloaded, names: names, looked: time.Now()}
	f.seen = f.marks()
	var err error
	f.value, err = load()
	return f, err
}

// At gives what is in use, made anew if the files have changed by now.
func (f *Followed[T]) At(now time.Time) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.looked) < Interval {
		return f.value
	}
	f.looked = now
	marks := f.marks()
	if slices.Equal(marks, f.seen) {
		return f.value
	}
	f.seen = marks
	value, err := f.load()
	if err == nil {
		f.value = value
	}
	f.reloaded(err)
	return f.value
}

func (f *Followed[T]) marks() []mark {
	marks := make([]mark, len(f.names))
	for i, name := range f.names {
		if info, err := os.Stat(name); err != nil {
			marks[i].err = err.Error()
		} else {
			marks[i] = mark{changed: info.ModTime(), size: info.Size()}
		}
	}
	return marks
}
