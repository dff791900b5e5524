package gossip

import (
	"context"
	"log"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/ring"
)

const (
	repeatAfter = time.Hour        // a recurring event is logged again after this
	quietPeriod = 10 * time.Minute // and a line of memberlist's after this
	maxLogged   = 1024             // keys remembered; beyond that, new ones are not logged until some expire
)

// logLimiter remembers when each key was logged. It has no lock of its own.
type logLimiter[K comparable] struct {
	when  map[K]time.Time
	every time.Duration
}

// shouldLog reports whether to log key now. If so, it remembers that.
func (l *logLimiter[K]) shouldLog(key K, now time.Time) bool {
	if t, ok := l.when[key]; ok && now.Sub(t) < l.every {
		return false
	}

	if len(l.when) >= maxLogged {
		maps.DeleteFunc(l.when, func(_ K, t time.Time) bool { return now.Sub(t) >= l.every })
		if len(l.when) >= maxLogged {
			return false
		}
	}

	if l.when == nil {
		l.when = make(map[K]time.Time)
	}
	l.when[key] = now
	return true
}

// eventKey identifies a recurring event, which is logged at most once per
// repeatAfter.
type eventKey struct {
	text string
	id   ring.NodeID
	boot uint64
	name string // what else tells events apart: a node's name in memberlist, an address or a reason
}

// logOnce logs a recurring event. The caller must hold g.mu.
func (g *Gossip) logOnce(key eventKey, level slog.Level, args ...any) {
	if g.logged.shouldLog(key, time.Now()) {
		g.config.Logger.Log(context.Background(), level, key.text, args...)
	}
}

// adapter writes memberlist's log lines to a slog.Logger.
type adapter struct {
	logger  *slog.Logger
	mu      sync.Mutex
	limiter logLimiter[string] // guarded by mu
}

func newAdapter(l *slog.Logger) *log.Logger {
	return log.New(&adapter{logger: l, limiter: logLimiter[string]{every: quietPeriod}}, "", 0)
}

// quietPrefixes are the beginnings of lines about events that this package logs
// itself, once and in more detail, or that every restart causes.
var quietPrefixes = [...]string{
	"ignoring alive message for ", "Conflicting address for ", "Failed push/pull merge: ", "Refuting a",
	"Updating address for ", "Failed fallback TCP ping: ",
	"failed to receive and remove the stream label header: refused: ",
	"discarding stream with unacceptable label ", // nothing was sent on it
}

// Write logs one line: an optional level in brackets, "memberlist: ", text, and
// often " from=" and an address. memberlist's errors are problems of the
// network or of other nodes, never of this node, so they become warnings. Its
// info lines are about suspicions, which are internals, so they become debug
// lines. So does a line that was written recently.
func (a *adapter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelDebug
	if tag, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(tag, "[") {
		text = rest
		if tag == "[ERR" || tag == "[ERROR" || tag == "[WARN" {
			level = slog.LevelWarn
		}
	}

	text = strings.TrimPrefix(text, "memberlist: ")
	for _, prefix := range quietPrefixes {
		if strings.HasPrefix(text, prefix) {
			level = slog.LevelDebug
		}
	}

	if strings.Contains(text, net.ErrClosed.Error()) {
		level = slog.LevelDebug // this node has closed the connection itself
	}

	if level > slog.LevelDebug && !a.isNew(text) {
		level = slog.LevelDebug
	}

	a.logger.Log(context.Background(), level, text, "by", "memberlist")
	return len(line), nil
}

// connectionEnds are the ends of a connection, in an error.
var connectionEnds = regexp.MustCompile(`\S+->(\S+):\d+`)

// isNew reports whether text was not written recently. Lines that differ only
// in ports that change with each connection count as the same.
func (a *adapter) isNew(text string) bool {
	key := connectionEnds.ReplaceAllString(text, "$1")
	if head, from, ok := strings.Cut(key, " from="); ok {
		i := strings.LastIndexByte(from, ':')
		if i >= 0 {
			from = from[:i]
		}
		key = head + from
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limiter.shouldLog(key, time.Now())
}
