// Package reload keeps what was made of files, and makes it anew when the files have changed.
package reload

import (
	"os"
	"slices"
	"sync"
	"time"
)

// Interval is how often Current looks at the files, at most.
const Interval = time.Second

// Files is what load makes of some files. A change within the last Interval is read when a second look sees the same, so that no
// file is read while somebody writes it. Files that are no good leave the old value in force.
type Files[T any] struct {
	names  []string
	load   func() (T, error)
	report func(T, error) // is told of each change that was read

	mu      sync.Mutex // guards what follows
	value   T
	seen    []state   // of what is in force, or of what was no good
	pending []state   // of a change that was seen once; nil: none was
	looked  time.Time // last, by Current
}

// Open loads the files, which must be good to begin with.
func Open[T any](load func() (T, error), report func(T, error), names ...string) (*Files[T], error) {
	f := &Files[T]{names: names, load: load, report: report, looked: time.Now()}
	f.seen = f.states()
	var err error
	f.value, err = load()
	return f, err
}

// Current is what is in force. It looks at the files if it has not done so for Interval.
func (f *Files[T]) Current(now time.Time) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.looked) >= Interval {
		f.looked = now
		f.look()
	}
	return f.value
}

// Look looks at the files.
func (f *Files[T]) Look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
}

func (f *Files[T]) look() {
	now := f.states()
	if same(now, f.seen) {
		f.pending = nil
		return
	}
	if recent(now) && !same(now, f.pending) {
		f.pending = now
		return
	}
	value, err := f.load()
	if after := f.states(); !same(after, now) {
		f.pending = after // somebody writes
		return
	}
	f.seen, f.pending = now, nil
	if err == nil {
		f.value = value
	}
	f.report(f.value, err)
}

// state tells a file from what it was before.
type state struct {
	info os.FileInfo
	err  string // why there is no info
}

func (f *Files[T]) states() []state {
	all := make([]state, len(f.names))
	for i, name := range f.names {
		info, err := os.Stat(name)
		if all[i].info = info; err != nil {
			all[i] = state{err: err.Error()}
		}
	}
	return all
}

// recent reports whether one of the files may still be written.
func recent(all []state) bool {
	return slices.ContainsFunc(all, func(s state) bool { return s.info != nil && time.Since(s.info.ModTime()) < Interval })
}

func same(a, b []state) bool {
	return slices.EqualFunc(a, b, func(a, b state) bool {
		if a.info == nil || b.info == nil {
			return a.info == nil && b.info == nil && a.err == b.err
		}
		return os.SameFile(a.info, b.info) && a.info.ModTime().Equal(b.info.ModTime()) && a.info.Size() == b.info.Size()
	})
}
