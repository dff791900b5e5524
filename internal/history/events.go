package history

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// eventsFile is the name of the file of events.
	eventsFile = "events"
	// maxEvents bounds the events of a node, and eventAge how long they are kept.
	maxEvents = 256
	eventAge  = 24 * time.Hour
	// maxText bounds a line's text and each of its values, in bytes, and maxFields the values.
	maxText, maxFields = 256, 8
	// repeatedAmong is how many of the latest events a line is compared with, so
	// that one that repeats does not push out the rest.
	repeatedAmong = 8
)

// Event is a line of the log.
type Event struct {
	At     int64 // Unix milliseconds
	Level  slog.Level
	Text   string
	Fields []Field
	Count  int64 // how often it was logged; At is the last time
}

// Field is a value of an event.
type Field struct{ Name, Value string }

// outcomes are the ends of lines about members. An operator looks for these the
// day after: they are not joined with earlier ones, whose times would be lost,
// and other lines do not push them out.
var outcomes = [...]string{" has failed", " is back", " has joined", " has left", " has restarted", " leads"}

// lasts reports whether e is about a member. Such events are kept when others
// are dropped.
func (e *Event) lasts() bool {
	return slices.ContainsFunc(outcomes[:], func(end string) bool { return strings.HasSuffix(e.Text, end) })
}

// isLike reports whether e says the same as other.
func (e *Event) isLike(other *Event) bool {
	return e.Text == other.Text && e.Level == other.Level && slices.Equal(e.Fields, other.Fields)
}

// eventList is a list of events, the oldest first.
type eventList []Event

// Code implements wire.Message.
func (l *eventList) Code(c *wire.Coder) {
	wire.List(c, (*[]Event)(l), maxEvents, 5, func(e *Event) {
		wire.Number(c, &e.At, maxCount)
		level := int64(e.Level)
		wire.Varint(c, &level)
		e.Level = slog.Level(level)
		c.Text(&e.Text, maxText)
		wire.List(c, &e.Fields, maxFields, 2, func(f *Field) {
			c.Text(&f.Name, maxText)
			c.Text(&f.Value, maxText)
		})
		wire.Number(c, &e.Count, maxCount)
		c.Require(e.Count > 0)
	})
}

// Events keeps what a node logged in the last day, at INFO and above. Lines
// about single subjects are left out.
type Events struct {
	mu      sync.Mutex // guards the fields below
	list    eventList
	changed bool // since it was last written
}

// Handler returns a log handler that passes lines on to next, and keeps them.
func (es *Events) Handler(next slog.Handler) slog.Handler {
	return &eventHandler{events: es, next: next}
}

// add adds a line.
func (es *Events) add(event Event) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.changed = true
	for i := len(es.list) - 1; i >= max(0, len(es.list)-repeatedAmong) && !event.lasts(); i-- {
		have := es.list[i]
		if have.isLike(&event) {
			event.Count += have.Count
			es.list = slices.Delete(es.list, i, i+1)
			break
		}
	}
	es.list = append(es.list, event).bounded(maxEvents)
}

// bounded returns the latest events of the list, at most n. Events that last
// are dropped only while they are more than half of n.
func (l eventList) bounded(n int) eventList {
	lasting := 0
	for i := range l {
		if l[i].lasts() {
			lasting++
		}
	}

	for len(l) > n {
		isTooMany := lasting > n/2
		i := slices.IndexFunc(l, func(e Event) bool { return e.lasts() == isTooMany })
		if isTooMany {
			lasting--
		}
		l = slices.Delete(l, i, i+1)
	}
	return l
}

// since returns the events from a time on, in Unix milliseconds.
func (es *Events) since(from int64) eventList {
	es.mu.Lock()
	defer es.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(es.list), func(e Event) bool { return e.At < from })
}

// restore puts events of an earlier process before those of this one.
func (es *Events) restore(b []byte) {
	var list eventList
	content, err := wire.Inflate(b, maxUnpacked)
	if err != nil || wire.Decode(content, &list, "events") != nil {
		return
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	es.list = append(list, es.list...).bounded(maxEvents)
}

// unsaved returns what to write to the file; nil if it has everything.
func (es *Events) unsaved() []byte {
	es.mu.Lock()
	defer es.mu.Unlock()

	if !es.changed {
		return nil
	}

	// The flag is cleared before the list is written: a line that comes
	// meanwhile sets it again.
	es.changed = false

	for {
		b := wire.Deflate(nil, wire.Encode(nil, &es.list))
		if len(b) <= maxPacked {
			return b
		}
		es.list = es.list.bounded(len(es.list) / 2)
	}
}

// saveFailed has the file written again later.
func (es *Events) saveFailed() {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.changed = true
}

// eventHandler is a slog.Handler that keeps lines in Events.
type eventHandler struct {
	events *Events
	next   slog.Handler
	attrs  []slog.Attr // added by With, with their groups in their names
	group  string      // prefix of further names
}

// Enabled implements slog.Handler.
func (eh *eventHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || eh.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (eh *eventHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		eh.keep(&r)
	}
	if !eh.next.Enabled(ctx, r.Level) {
		return nil
	}
	return eh.next.Handle(ctx, r)
}

func (eh *eventHandler) keep(r *slog.Record) {
	e := Event{At: r.Time.UnixMilli(), Level: r.Level, Text: cut(r.Message), Count: 1}
	isAboutSubject := false
	add := func(name string, v slog.Value) {
		isAboutSubject = isAboutSubject || name == "subject"
		if len(e.Fields) < maxFields {
			e.Fields = append(e.Fields, Field{cut(name), cut(v.Resolve().String())})
		}
	}
	for _, a := range eh.attrs {
		add(a.Key, a.Value)
	}

	r.Attrs(func(a slog.Attr) bool {
		add(eh.group+a.Key, a.Value)
		return true
	})
	if !isAboutSubject {
		eh.events.add(e)
	}
}

// cut bounds a text.
func cut(s string) string {
	if len(s) <= maxText {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	const ellipsis = "…"
	return strings.ToValidUTF8(s[:maxText-len(ellipsis)], "") + ellipsis
}

// WithAttrs implements slog.Handler.
func (eh *eventHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *eh
	next.attrs = slices.Clone(eh.attrs)
	for _, a := range attrs {
		next.attrs = append(next.attrs, slog.Attr{Key: eh.group + a.Key, Value: a.Value})
	}
	next.next = eh.next.WithAttrs(attrs)
	return &next
}

// WithGroup implements slog.Handler.
func (eh *eventHandler) WithGroup(name string) slog.Handler {
	next := *eh
	next.group += name + "."
	next.next = eh.next.WithGroup(name)
	return &next
}
