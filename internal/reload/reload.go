// Package reload keeps a value loaded from files, and loads it again when the files change.
package reload

import (
	"os"
	"slices"
	"sync"
	"time"
)

// Interval is the minimum time between two checks of the files by Current.
const Interval = time.Second

// Files holds the value that load reads from some files. It reads a change within the last Interval only after a second
// look sees the same state, so that it reads no file that is being written. Invalid files leave the old value in force.
type Files[T any] struct {
	names  []string
	load   func() (T, error)
	report func(T, error) // called for each change

	mu      sync.Mutex // guards the rest
	value   T
	seen    []state   // of the files in force, or of those found invalid
	pending []state   // of a change seen only once so far; nil: none
	looked  time.Time // when Current last checked
}

// Open loads the files, which must be valid at first.
func Open[T any](load func() (T, error), report func(T, error), names ...string) (*Files[T], error) {
	f := &Files[T]{names: names, load: load, report: report, looked: time.Now()}
	f.seen = f.states()
	var err error
	f.value, err = load()
	return f, err
}

// Current returns the value in force. It checks the files if it has not done so for Interval.
func (f *Files[T]) Current(now time.Time) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.looked) >= Interval {
		f.looked = now
		f.look()
	}
	return f.value
}

// Look checks the files.
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
		f.pending = after // a file may still be being written
		return
	}
	f.seen, f.pending = now, nil
	if err == nil {
		f.value = value
	}
	f.report(f.value, err)
}

// state identifies a version of a file.
type state struct {
	info os.FileInfo
	err  string // why info is missing
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

// recent reports whether one of the files changed so recently that a program may still be writing it.
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
