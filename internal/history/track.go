package history

import "fmt"

const (
	// A day of minutes takes 24 segments, and a month of hours 30; each has one
	// more, for the one that is not full yet.
	minuteSegments, hourSegments = 25, 31
	minutesInHour, hoursInDay    = 60, 24
	maxSegment                   = 60 // steps
)

// track is a series of steps of one length.
type track struct {
	name  string // of its files
	size  int64  // steps in a segment
	slots []slot // segment n is in slot n mod len(slots)
	open  *segment
}

// slot holds a segment.
type slot struct {
	packed []byte // what was packed last; never changed in place
	saved  bool   // the file has it
}

func newTrack(name string, size int64, slots int) track {
	return track{name: name, size: size, slots: make([]slot, slots)}
}

// at returns the index of the slot of a step.
func (t *track) at(number int64) int { return int(number / t.size % int64(len(t.slots))) }

// file returns the name of a slot's file.
func (t *track) file(at int) string { return fmt.Sprintf("%s-%02d", t.name, at) }

// begin opens the segment of a step, and reports whether it is a new one.
func (t *track) begin(number int64) bool {
	first := number / t.size * t.size
	if t.open != nil && t.open.first == first {
		return false
	}
	t.open = t.segment(number)
	if t.open != nil {
		return false
	}
	t.open = &segment{first: first, size: t.size}
	return true
}

// segment returns the segment of a step, or nil if there is none.
func (t *track) segment(number int64) *segment {
	first := number / t.size * t.size
	g := unpack(t.slots[t.at(number)].packed)
	if g == nil || g.first != first || g.size != t.size {
		return nil
	}
	return g
}

// put stores what was decided in a step of the open segment.
func (t *track) put(number int64, delta *Reading, adds bool) {
	t.open.put(t.open.stepOf(number, delta), adds)
	t.slots[t.at(number)] = slot{packed: t.open.pack()}
}
