package history

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/ring"
)

// Config configures a History.
type Config struct {
	// Self is this node's ID.
	Self ring.NodeID
	// Now returns the wall time in Unix nanoseconds. It numbers the steps, so that
	// those of several nodes can be added up.
	Now func() int64
	// Read returns what this node has counted since its process began. The result
	// must not change afterwards.
	Read func() *Reading
	// Events keeps what the node logs.
	Events *Events
	// File returns the file of a name; nil if the history is only in memory.
	File func(name string) File
	// HasRoom reports whether the disk has room for files that the node can do without.
	HasRoom func() bool
	// Peers carries messages to other nodes, and Others returns those that can be
	// reached; nil for a standalone node.
	Peers  Peers
	Others func() []ring.NodeID
	Logger *slog.Logger
}

// File is a small file that is replaced as a whole. persist.SmallFile is one.
type File interface {
	// Read returns what was last written; nil if nothing was.
	Read() ([]byte, error)
	Write(content []byte) error
}

// Peers carries messages to other nodes. *peer.Peers implements it.
type Peers interface {
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
}

// History keeps what a node decided.
type History struct {
	config Config

	mu      sync.Mutex // guards the fields below
	minutes track
	hours   track
	minute  int64    // the current minute
	isFirst bool     // the process began in the current minute
	before  *Reading // at the beginning of the current minute
	atHour  *Reading // at the beginning of the current hour, or when the process began
	busiest []string // the rules with most checks in the hour before, which get counts of their own

	reports round[Query, NodeReport]
	lines   round[struct{}, NodeEvents]

	saving  sync.Mutex // held while files are written; guards failing
	failing bool       // the last attempt to write them failed

	calls tasks.Group // of other nodes, being answered
}

// Open reads the files. Damaged ones count as missing.
func Open(config Config) *History {
	h := &History{
		config: config, minutes: newTrack("minutes", minutesInHour, minuteSegments),
		hours:  newTrack("hours", hoursInDay, hourSegments),
		before: &Reading{}, atHour: &Reading{}, isFirst: true, calls: tasks.Group{Most: maxServing},
	}
	h.minute = config.Now() / int64(time.Minute)

	if config.File == nil {
		return h
	}

	for _, t := range []*track{&h.minutes, &h.hours} {
		for i := range t.slots {
			b, err := config.File(t.file(i)).Read()
			if err == nil && unpack(b) != nil {
				t.slots[i] = slot{packed: b, saved: true}
			}
		}
	}

	h.restoreHours()
	if b, err := config.File(eventsFile).Read(); err == nil {
		config.Events.restore(b)
	}

	return h
}

// restoreHours adds up hours whose minutes are there: a kill may have lost the file of the hours.
func (h *History) restoreHours() {
	for hour := h.minute/minutesInHour - minuteSegments + 1; hour <= h.minute/minutesInHour; hour++ {
		if hour >= 0 {
			h.sumHour(hour)
		}
	}
}

// sumHour stores what was decided in an hour, as far as its minutes are known.
func (h *History) sumHour(hour int64) {
	g := h.minutes.open
	if g == nil || g.first != hour*minutesInHour {
		g = h.minutes.segment(hour * minutesInHour)
	}
	if g == nil {
		return
	}
	h.hours.begin(hour)
	h.hours.put(hour, g.sum(), false)
}

// eventSeconds is how often new events are written, in seconds.
const eventSeconds = 10

// Follow stores each minute that has ended, until stop is closed. Then it
// stores the part of the minute that has passed.
func (h *History) Follow(stop <-chan struct{}) {
	seconds := 0
	for range tick.Every(stop, time.Second) {
		seconds++
		if h.Tick() || seconds%eventSeconds == 0 {
			h.save()
		}
	}
	h.end()
	h.save()
}

// Tick stores what was decided in the minute that has ended, if one has, and
// reports whether it stored anything. Call it each second.
func (h *History) Tick() bool {
	now := h.config.Now() / int64(time.Minute)
	h.mu.Lock()
	defer h.mu.Unlock()
	if now == h.minute {
		return false
	}

	reading := h.config.Read()
	// If more than one minute has passed, the clock was set or the process was
	// suspended: nobody knows what was decided in which minute, so nothing is
	// stored.
	isNext := now == h.minute+1
	if isNext {
		h.storeLocked(reading)
	}

	if now/minutesInHour != h.minute/minutesInHour {
		h.busiest = busiestRules(reading.since(h.atHour))
		h.atHour = reading
	}

	h.minute = now
	h.before = reading
	h.isFirst = false
	return isNext
}

// end stores what was decided in the current minute so far. It is the last call: the process ends.
func (h *History) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.config.Now()/int64(time.Minute) == h.minute {
		h.storeLocked(h.config.Read())
	}
}

// storeLocked stores what was decided in the current minute. The caller must hold h.mu.
func (h *History) storeLocked(reading *Reading) {
	if h.minutes.begin(h.minute) {
		h.minutes.open.names = slices.Clone(h.busiest)
	}
	h.minutes.put(h.minute, reading.since(h.before), h.isFirst)
	h.sumHour(h.minute / minutesInHour)
}

// busiestRules names the rules with most checks.
func busiestRules(r *Reading) (names []string) {
	for i := range r.Rules {
		name := r.Rules[i].Name
		if len(names) < MaxRules && len(name) <= maxName {
			names = append(names, name)
		}
	}
	return names
}

// unsavedFile is a file to be written.
type unsavedFile struct {
	track   *track
	at      int
	content []byte
}

// save writes what has changed to disk, unless the disk is nearly full. The
// next call tries again to write what failed.
func (h *History) save() {
	if h.config.File == nil {
		return
	}

	h.saving.Lock()
	defer h.saving.Unlock()

	var list []unsavedFile
	h.mu.Lock()
	for _, t := range []*track{&h.minutes, &h.hours} {
		for i := range t.slots {
			s := &t.slots[i]
			if len(s.packed) > 0 && !s.saved {
				list = append(list, unsavedFile{t, i, s.packed})
			}
		}
	}
	h.mu.Unlock()

	var err error
	// h.mu is free meanwhile: the disk may be slow, and packed bytes never change
	// in place.
	for _, f := range list {
		err = h.write(f)
		if err != nil {
			break
		}
	}

	if err == nil {
		err = h.saveEvents()
	}

	switch {
	case err != nil && !h.failing:
		h.config.Logger.Warn("the history is kept in memory only", "error", err)
	case err == nil && h.failing:
		h.config.Logger.Info("the history is written to disk again")
	}
	h.failing = err != nil
}

func (h *History) saveEvents() error {
	content := h.config.Events.unsaved()
	if content == nil {
		return nil
	}
	if !h.config.HasRoom() {
		h.config.Events.saveFailed()
		return errNoRoom
	}

	err := h.config.File(eventsFile).Write(content)
	if err != nil {
		h.config.Events.saveFailed()
	}

	return err
}

// errNoRoom means that the disk is nearly full. The rest is for files that the
// node can't do without.
var errNoRoom = errors.New("the disk is nearly full")

func (h *History) write(f unsavedFile) error {
	if !h.config.HasRoom() {
		return errNoRoom
	}
	if err := h.config.File(f.track.file(f.at)).Write(f.content); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &f.track.slots[f.at]
	if &s.packed[0] == &f.content[0] { // it may have changed since
		s.saved = true
	}
	return nil
}
