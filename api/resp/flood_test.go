package resp

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
)

// hostileCommands is the number of commands that TestHostile sends; make hostile sends a million.
var hostileCommands = flag.Int("hostile", 0, "commands that TestHostile sends; 0: 4,000")

// hostile draws commands that are right, almost right, or no commands at all.
type hostile struct {
	*rand.Rand
	names []string
	slots []string // ids of slots and reservations, of this node and forged ones
}

func (h *hostile) pick(list ...string) string { return list[h.IntN(len(list))] }

// word returns a word of a command.
func (h *hostile) word() string {
	switch h.IntN(4) {
	case 0:
		return h.pick("0", "1", "-1", "5", "60", "+3", "007", "-0", "1e9", "9007199254740991",
			"9007199254740992", "9223372036854775807",
			"-9223372036854775808", "99999999999999999999", "10000", "86400000", "")
	case 1:
		return h.pick("COST", "UNIT", "TTL", "N", "WHO", "LIMIT", "REQUESTID", "PEEK", "COUNT",
			"BYINT", "UBOUND", "LBOUND", "SATURATE", "EX", "PX",
			"ENX", "PERSIST", "AUTH", "SETNAME", "GET", "ID", "INFO", "DOCS", "tokens", "requests")
	case 2:
		return h.pick("render", "a", "model", "nope", "acme", "u", "k", "\x00", "\xff\xfe", "%",
			"*", "k\r\n", strings.Repeat("é", h.IntN(2000)), "\x1b[2J")
	}
	return h.pick(h.slots...)
}

// command returns a command, which may have been damaged.
func (h *hostile) command() string {
	name := h.pick(h.names...)
	words := []string{name}
	switch name {
	case "rl.acquire", "rl.check", "rl.reserve", "rl.usage", "rl.reset":
		words = append(words, h.pick("render", "a", "model"), h.pick("acme", "u", h.word()))
	case "increx":
		words = append(words, h.pick("k", "m"), "UBOUND", h.word(), "BYINT", h.word(),
			h.pick("EX", "PX"), h.word(), "ENX")
	case "cl.throttle", "throttle", "rl.throttle":
		words = append(words, "k", h.word(), h.word(), h.word())
	}
	for range h.IntN(4) {
		words = append(words, h.word())
	}
	if h.IntN(50) == 0 {
		words = append(words, make([]string, h.IntN(maxArguments))...)
	}

	text := array(words...)
	switch h.IntN(12) {
	case 0:
		at := h.IntN(len(text))
		text = text[:at] + h.pick("\r\n", "*", "$", "-", "\x00", "$3\r\n", "*2\r\n", "HTTP/") +
			text[at+h.IntN(len(text)-at):]
	case 1:
		text = strings.Join(words, " ") + "\r\n"
	case 2:
		text = text[:h.IntN(len(text))]
	}
	return text
}

// attack sends commands over one connection, all at once, and returns how many.
// What comes back must be replies.
func (h *hostile) attack(t *testing.T, n *node) (sent int) {
	c := dial(t, n)
	defer c.Close()
	var text strings.Builder
	for range 1 + h.IntN(40) {
		text.WriteString(h.command())
		sent++
	}

	go func() {
		_, _ = io.WriteString(c, text.String()) // the node may close the connection
		time.AfterFunc(50*time.Millisecond, func() { _ = c.Conn.SetReadDeadline(time.Unix(1, 0)) })
	}()
	for {
		reply, err := readReply(c.r)
		switch {
		case err == nil:
			h.learn(reply)
		case isOfTheConnection(err):
			return sent
		default:
			t.Errorf("%.2000q: the node sends what is no reply: %v", text.String(), err)
			return sent
		}
	}
}

// learn keeps ids that a reply has, and forges others like them.
func (h *hostile) learn(reply string) {
	id := slotOf(reply)
	if id == "" || len(h.slots) > 100 {
		return
	}
	forged := []byte(id)
	forged[h.IntN(len(forged))] ^= byte(1 + h.IntN(3))
	h.slots = append(h.slots, id, string(forged), id[:h.IntN(len(id))])
}

// isOfTheConnection reports whether an error says no more than that the connection is over.
func isOfTheConnection(err error) bool {
	var number *strconv.NumError
	return !errors.As(err, &number) &&
		(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded) ||
			strings.Contains(err.Error(), "connection reset"))
}

// Whatever callers send, what comes back is replies. The node goes on, and keeps nothing of them.
func TestHostile(t *testing.T) {
	commands := cmp.Or(*hostileCommands, 4_000)
	n := startNode(t, func(c *apitest.Config) { c.Timeout = time.Second })
	n.UseRules(slotRules)

	all := make([]string, 0, len(specs)+4)
	all = append(all, names()...)
	all = append(all, "nope", "", "multi", "subscribe")
	var left, done atomic.Int64
	left.Store(int64(commands))
	var callers sync.WaitGroup
	goroutines := runtime.NumGoroutine()
	for seed := range uint64(16) {
		callers.Go(func() {
			h := &hostile{Rand: rand.New(rand.NewPCG(seed, 1)), names: all,
				slots: []string{"x", "", "AQ", fmt.Sprint(seed)}}
			for left.Load() > 0 {
				sent := int64(h.attack(t, n))
				left.Add(-sent)
				done.Add(sent)
			}
		})
	}
	callers.Wait()
	t.Logf("%d commands", done.Load())

	if got := n.Panics.Load(); got != 0 {
		t.Errorf("%d panics", got)
	}
	dial(t, n).askAll(step{"PING", "+PONG"}, step{"CL.THROTTLE another 1 1 3600", "[0 2 1 -1 3600]"})
	apitest.Until(t, "nothing is charged", func() bool { return n.Budget.Used() == 0 })
	apitest.Until(t, "goroutines have ended",
		func() bool { return runtime.NumGoroutine() <= goroutines+goroutines/10+4 })
}
