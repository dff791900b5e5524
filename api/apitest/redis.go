package apitest

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RedisVector is a conversation in the Redis protocol. A node alone and a
// cluster answer it alike, whichever node gets each command.
type RedisVector struct {
	Name  string
	Rules string // empty: none
	Steps []RedisStep
}

// RedisStep is a command and the reply that is wanted, as [ReadRedisReply]
// returns it. If Want ends with "…", it is only the beginning. In both, $slot
// and $reservation stand for the id that a reply had last.
type RedisStep struct {
	After   time.Duration // since the beginning
	Command string        // its words, separated by blanks
	Want    string
}

var redisID = regexp.MustCompile(`"(slot|reservation)" "([^"]+)"`)

// Run asks each command when it is due, which at brings about, and compares the replies.
func (v *RedisVector) Run(t testing.TB, at func(time.Duration), ask func(command string) (reply string)) {
	t.Helper()
	ids := map[string]string{}
	withIDs := func(text string) string {
		for name, id := range ids {
			text = strings.ReplaceAll(text, "$"+name, id)
		}
		return text
	}

	for _, step := range v.Steps {
		at(step.After)
		got := ask(withIDs(step.Command))
		for _, found := range redisID.FindAllStringSubmatch(got, -1) {
			ids[found[1]] = found[2]
		}

		want, isBeginning := strings.CutSuffix(withIDs(step.Want), "…")
		if isBeginning {
			got = got[:min(len(got), len(want))]
		}
		if got != want {
			t.Errorf("after %v: %s: got %s, want %s", step.After, step.Command, got, want)
		}
	}
}

// RedisArray returns a command as clients send it.
func RedisArray(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	return b.String()
}

// ReadRedisReply reads one reply of either version of the protocol, and returns
// it as text: numbers as they are, +OK, -ERR …, "text", [a b], {name value}.
func ReadRedisReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line, ok := strings.CutSuffix(line, "\r\n")
	if !ok || line == "" {
		return "", fmt.Errorf("%q is no line of a reply", line)
	}
	body := line[1:]
	switch line[0] {
	case '+', '-':
		return line, nil
	case ':':
		return body, nil
	case '_':
		return "nil", nil
	case '#':
		return map[string]string{"t": "true", "f": "false"}[body], nil
	}

	n, err := strconv.Atoi(body)
	if err != nil {
		return "", fmt.Errorf("%q has no length", line)
	}
	switch line[0] {
	case '$':
		if n < 0 {
			return "nil", nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil || string(b[n:]) != "\r\n" {
			return "", fmt.Errorf("a text of %d bytes: %w", n, err)
		}
		return strconv.Quote(string(b[:n])), nil
	case '*':
		return readRedisList(r, n, "[", "]")
	case '~':
		return readRedisList(r, n, "<", ">")
	case '%':
		return readRedisList(r, 2*n, "{", "}")
	}
	return "", fmt.Errorf("%q is no reply", line)
}

func readRedisList(r *bufio.Reader, n int, open, end string) (string, error) {
	list := make([]string, n)
	for i := range list {
		var err error
		list[i], err = ReadRedisReply(r)
		if err != nil {
			return "", err
		}
	}
	return open + strings.Join(list, " ") + end, nil
}
