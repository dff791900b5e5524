package resp

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// readAll reads the commands in pieces of b, which arrive in turn as a
// connection keeps them, and returns them and what ended it.
func readAll(r *reader, pieces ...[]byte) (commands []string, err error) {
	var kept []byte
	for _, piece := range pieces {
		kept = append(kept[:len(kept):len(kept)], piece...)
		for len(kept) > 0 {
			args, length, err := r.read(kept, nil)
			if err != nil {
				return commands, err
			}
			if length == 0 {
				break
			}
			if len(args) > 0 {
				commands = append(commands, fmt.Sprintf("%q", args))
			}
			kept = kept[length:]
		}
	}
	return commands, nil
}

func TestReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxCommand)
	for _, test := range []struct {
		name, input string
		stranger    bool
		want        string // the commands, and the error
	}{
		{name: "array", input: array("PING") + array("a", "", "b\r\nc\x00"), want: `["PING"] ["a" "" "b\r\nc\x00"]`},
		{name: "empty arrays", input: "*0\r\n*-1\r\n" + array("PING"), want: `["PING"]`},
		{name: "inline", input: "PING\r\nECHO  hi \t there\n\r\n\n" + array("PING"),
			want: `["PING"] ["ECHO" "hi" "there"] ["PING"]`},
		{name: "inline after array", input: array("PING") + "PING\r\n",
			want: `["PING"] Protocol error: expected '*', got 'P'`},
		{name: "inline after an empty array", input: "*0\r\nPING\r\n", want: "Protocol error: expected '*', got 'P'"},
		{name: "no dollar", input: "*1\r\n:1\r\n", want: "Protocol error: expected '$', got ':'"},
		{name: "no dollar but a control character", input: "*1\r\n\x01", want: "Protocol error: expected '$', got ' '"},
		{name: "no number", input: "*x\r\n", want: "Protocol error: invalid multibulk length"},
		{name: "leading zero", input: "*01\r\n", want: "Protocol error: invalid multibulk length"},
		{name: "plus", input: "*+1\r\n", want: "Protocol error: invalid multibulk length"},
		{name: "blank", input: "* 1\r\n", want: "Protocol error: invalid multibulk length"},
		{name: "huge number", input: "*9223372036854775808\r\n", want: "Protocol error: invalid multibulk length"},
		{name: "number of 33 bits", input: "*4294967297\r\n", want: "Protocol error: invalid multibulk length"},
		{name: "long number", input: "*" + strings.Repeat("1", maxHeader),
			want: "Protocol error: invalid multibulk length"},
		{name: "bare line feed", input: "*1\n$4\nPING\n" + strings.Repeat("x", maxHeader),
			want: "Protocol error: invalid multibulk length"},
		{name: "bare carriage return", input: "*1\rx", want: "Protocol error: invalid multibulk length"},
		{name: "negative length", input: "*1\r\n$-1\r\n", want: "Protocol error: invalid bulk length"},
		{name: "argument longer than announced", input: "*1\r\n$3\r\nPING\r\n",
			want: "Protocol error: an argument is longer than announced"},
		{name: "most arguments",
			input: array(strings.Split(strings.Repeat("x", maxArguments), "")...),
			want:  fmt.Sprintf("%q", strings.Split(strings.Repeat("x", maxArguments), ""))},
		{name: "too many arguments", input: fmt.Sprintf("*%d\r\n", maxArguments+1),
			want: "Protocol error: invalid multibulk length"},
		{name: "too long", input: array("ECHO", long), want: "Protocol error: invalid bulk length"},
		{name: "too long together", input: array("ECHO", long[:40_000], long[:40_000]),
			want: "Protocol error: invalid bulk length"},
		{name: "a stranger's arguments", stranger: true, input: "*11\r\n",
			want: "Protocol error: unauthenticated multibulk length"},
		{name: "a stranger's length", stranger: true,
			input: array("AUTH", long[:maxStrangerCommand]),
			want:  "Protocol error: unauthenticated bulk length"},
		{name: "a stranger's command", stranger: true, input: array("AUTH", "x"), want: `["AUTH" "x"]`},
		{name: "a stranger's words", stranger: true, input: "1 2 3 4 5 6 7 8 9 10 11\n",
			want: "Protocol error: too big inline request"},
		{name: "long line", input: long[:maxInline+1], want: "Protocol error: too big inline request"},
		{name: "control characters", input: "PING \x1b[A\n",
			want: "Protocol error: a control character in an inline request"},
		{name: "TLS", input: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
			want: "Protocol error: a control character in an inline request"},
		{name: "GET", input: "GET / HTTP/1.1\r\n", want: errHTTP.Error()},
		{name: "a method alone", input: "post /\r\n", want: errHTTP.Error()},
		{name: "an unfinished line", input: "DELETE ", want: errHTTP.Error()},
		{name: "Host", input: "host: example.org\r\n", want: errHTTP.Error()},
		{name: "a version", input: "x y http/1.0\n", want: errHTTP.Error()},
		{name: "a request after commands", input: array("PING") + "POST / HTTP/1.1\r\n",
			want: `["PING"] Protocol error: expected '*', got 'P'`},
		{name: "a name like a method", input: "GETX\nPOSTS 1\n", want: `["GETX"] ["POSTS" "1"]`},
	} {
		show := func(commands []string, err error) string {
			if err != nil {
				commands = append(commands, err.Error())
			}
			return strings.Join(commands, " ")
		}
		got := show(readAll(&reader{stranger: test.stranger}, []byte(test.input)))
		expect.Equal(t, got, test.want, "%s", test.name)
		// It is the same byte by byte.
		if len(test.input) < 2*maxInline {
			got := show(readAll(&reader{stranger: test.stranger}, bytes.SplitAfter([]byte(test.input), nil)...))
			expect.Equal(t, got, test.want, "%s, byte by byte", test.name)
		}
	}
}

// An incomplete command is not looked at again: to send one byte by byte costs
// the node no more than its length.
func TestReader_ReadsNothingTwice(t *testing.T) {
	t.Parallel()
	input := []byte(array(strings.Split(strings.Repeat("x", 1000), "")...))
	var r reader
	steps := 0
	for end := range input {
		before := r.incomplete
		args, length, err := r.read(input[:end+1], nil)
		if err != nil || length > 0 != (end+1 == len(input)) || length > 0 && len(args) != 1000 {
			t.Fatalf("after %d bytes: got %d arguments, %d bytes, %v", end+1, len(args), length, err)
		}
		if length == 0 && r.incomplete.at < before.at {
			t.Fatalf("after %d bytes: it reads again from %d, and had come to %d", end+1, r.incomplete.at, before.at)
		}
		steps++
	}
	if r.incomplete.args != nil {
		t.Error("the reader keeps the places of 1,000 arguments")
	}
}

func FuzzReader(f *testing.F) {
	for _, seed := range []string{array("PING"), "PING\r\n",
		array("CL.THROTTLE", "k", "1", "2", "3"), "*1\r\n$3\r\n", "GET / HTTP/1.1\r\n\r\n",
		"*0\r\n", "$1\r\n"} {
		f.Add([]byte(seed+array("PING")), uint16(3), true)
	}
	f.Fuzz(func(t *testing.T, input []byte, at uint16, stranger bool) {
		checkReader(t, input, int(at), stranger)
	})
}

// checkReader fails if the reader exceeds a bound on input, or depends on where it was cut.
func checkReader(t testing.TB, input []byte, at int, stranger bool) {
	t.Helper()
	whole := reader{stranger: stranger}
	want, wantErr := readAll(&whole, input)
	at = min(at, len(input))
	got, err := readAll(&reader{stranger: stranger}, input[:at], input[at:])
	if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
		t.Errorf("%q cut at %d: got %v, %v; want %v, %v", input, at, got, err, want, wantErr)
	}
	if n := len(whole.incomplete.args); n > 2*whole.mostArguments() {
		t.Errorf("%q: the reader holds %d places", input, n)
	}
}

var mutations = flag.Int("mutations", 20_000, "how many mutated messages TestMutatedMessages sends to the reader")

// Whatever is changed in a message, the reader stays within its bounds, and
// reads the same however it arrives.
func TestMutatedMessages(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	seeds := []string{
		array("PING") + array("HELLO", "3", "AUTH", "default", "secret"),
		array("CL.THROTTLE", "key", "15", "30", "60", "1"),
		"PING\r\nECHO a\r\n" + array("RL.CHECK", "rule", "key", "COST", "3"), "*0\r\n*-1\r\n*1\r\n$0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + array("DEL", "a"),
	}
	extra := []string{"\r\n", "*", "$", "-", "0", "9999999999", "\x00", "\xff", " ", "HTTP/", "$3\r\n", "*2\r\n"}
	for range *mutations {
		input := []byte(seeds[random.IntN(len(seeds))] + seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(4) {
			at := random.IntN(len(input))
			switch random.IntN(4) {
			case 0:
				input[at] = byte(random.UintN(256))
			case 1:
				input = append(input[:at:at], append([]byte(extra[random.IntN(len(extra))]), input[at:]...)...)
			case 2:
				end := min(len(input), at+1+random.IntN(5))
				input = append(input[:at:at], input[end:]...)
			case 3:
				input = input[:at+1]
			}
			if len(input) == 0 {
				break
			}
		}
		checkReader(t, input, random.IntN(len(input)+1), random.IntN(2) == 0)
	}
}

func TestKeyText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 600)
	seen := map[string]string{}
	for _, test := range []struct{ key, want string }{
		{"", ""},
		{"user:1", "user:1"},
		{"é✓", "é✓"},
		{"100%", "100%25"},
		{"a\xffb", "a%FFb"},
		{"a%FFb", "a%25FFb"},
		{"\xc3\x28\x00", "%C3(\x00"},
		{strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		{strings.Repeat("x", 1025), strings.Repeat("x", 480) + "~"},
		{strings.Repeat("\xff", 400), strings.Repeat("%FF", 160) + "~"},
		{strings.Repeat("\xff", 341), strings.Repeat("%FF", 341)},
		{long, strings.Repeat("é", 240) + "~"},
		{"x" + long, "x" + strings.Repeat("é", 239) + "~"},
		{"x" + long + "y", "x" + strings.Repeat("é", 239) + "~"},
	} {
		got := keyText([]byte(test.key))
		if strings.HasSuffix(test.want, "~") {
			if !strings.HasPrefix(got, test.want) || len(got) != len(test.want)+64 {
				t.Errorf("%.20q: got %q", test.key, got)
			}
		} else if got != test.want {
			t.Errorf("%.20q: got %q, want %q", test.key, got, test.want)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%.20q and %.20q have the same text", test.key, other)
		}
		seen[got] = test.key
	}
}

// An empty line may stand between arrays: redis-cli --pipe sends one. Nothing else may.
func TestEmptyLines(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.send(words("PING") + "\r\n" + words("PING") + "\r\n\r\n" + words("PING") + "\r")
	expect.Equal(t, c.reply()+c.reply()+c.reply(), "+PONG+PONG+PONG", "c.reply() + c.reply() + c.reply()")
	c.send("\n" + words("PING"))
	expect.Equal(t, c.reply(), "+PONG", "a line that arrives in parts")
	c.send("\rPING\r\n")
	if got := c.reply(); !strings.HasPrefix(got, "-ERR Protocol error") || !c.ended() {
		t.Errorf("have %s", got)
	}
}
