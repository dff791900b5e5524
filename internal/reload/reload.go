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

// Files holds the value that load reads from some files. It reads a change
// within the last Interval only after a second look sees the same state, so
// that it reads no file that is being written. Invalid files leave the old
// value in force.
type Files[T any] struct {
	names  []string
	load   func() (T, error)
	report func(T, error) // called for each change

	mu          sync.Mutex // guards the rest
	value       T
	seen        []fileState // of the files in force, or of those found invalid
	pending     []fileState // of a change seen only once so far; nil: none
	lastChecked time.Time   // when Current last checked
}

// Open loads the files, which must be valid at first.
func Open[T any](load func() (T, error), report func(T, error), names ...string) (*Files[T], error) {
	f := &Files[T]{names: names, load: load, report: report, lastChecked: time.Now()}
	f.seen = f.states()
	var err error
	f.value, err = load()
	return f, err
}

// Current returns the value in force. It checks the files if it has not done so for Interval.
func (f *Files[T]) Current(now time.Time) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.lastChecked) >= Interval {
		f.lastChecked = now
		f.checkFiles()
	}
	return f.value
}

// Check checks the files.
func (f *Files[T]) Check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checkFiles()
}

func (f *Files[T]) checkFiles() {
	now := f.states()
	if sameStates(now, f.seen) {
		f.pending = nil
		return
	}
	if anyRecent(now) && !sameStates(now, f.pending) {
		f.pending = now
		return
	}

	value, err := f.load()
	after := f.states()
	if !sameStates(after, now) {
		f.pending = after // a file may still be being written
		return
	}

	f.seen = now
	f.pending = nil
	if err == nil {
		f.value = value
	}

	f.report(f.value, err)
}

// fileState identifies a version of a file.
type fileState struct {
	info os.FileInfo
	err  string // why info is missing
}

func (f *Files[T]) states() []fileState {
	all := make([]fileState, len(f.names))
	for i, name := range f.names {
		info, err := os.Stat(name)
		all[i].info = info
		if err != nil {
			all[i] = fileState{err: err.Error()}
		}
	}
	return all
}

// anyRecent reports whether one of the files changed so recently that a program
// may still be writing it.
func anyRecent(all []fileState) bool {
	return slices.ContainsFunc(all,
		func(s fileState) bool { return s.info != nil && time.Since(s.info.ModTime()) < Interval })
}

func sameStates(a, b []fileState) bool {
	return slices.EqualFunc(a, b, func(a, b fileState) bool {
		if a.info == nil || b.info == nil {
			return a.info == nil && b.info == nil && a.err == b.err
		}
		return os.SameFile(a.info, b.info) && a.info.ModTime().Equal(b.info.ModTime()) && a.info.Size() == b.info.Size()
	})
}
