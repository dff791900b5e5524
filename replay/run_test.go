package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/replay/replaytest"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// compile compiles a rules file.
func compile(t testing.TB, src string) *rules.Set {
	t.Helper()
	doc, err := document.Parse([]byte(src))
	expect.NoError(t, err)
	set, err := rules.Compile(doc, 1)
	expect.NoError(t, err)
	return set
}

func replayText(t testing.TB, src string, change func(*Config), logs ...string) *Report {
	t.Helper()
	config := DefaultConfig(compile(t, src))
	if change != nil {
		change(&config)
	}
	var inputs []Input
	for i, log := range logs {
		inputs = append(inputs, Input{Name: fmt.Sprintf("log%d", i), Reader: strings.NewReader(log)})
	}
	report, err := Run(context.Background(), config, inputs...)
	expect.NoError(t, err)
	return report
}

func generate(t testing.TB, log replaytest.Log) string {
	t.Helper()
	var b strings.Builder
	if _, err := log.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// hit is what a naive reader finds in a generated line.
type hit struct {
	address string
	at      time.Time
}

func naiveHits(t *testing.T, log string) []hit {
	t.Helper()
	var hits []hit
	for line := range strings.Lines(log) {
		fields := strings.Fields(line)
		at, err := time.Parse("[02/Jan/2006:15:04:05 -0700]", fields[3]+" "+fields[4])
		expect.NoError(t, err)
		hits = append(hits, hit{fields[0], at})
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.at.Compare(b.at) })
	return hits
}

// TestAgainstNaive compares a replay with counting by hand, for the two
// algorithms that are easy to count.
func TestAgainstNaive(t *testing.T) {
	const limit, per = 10, time.Minute
	log := generate(t, replaytest.Small(20_000))
	hits := naiveHits(t, log)
	subjects := make(map[string]bool)
	for _, h := range hits {
		subjects[h.address] = true
	}
	fixed, span := 0, 0
	counts := make(map[string]int)
	admitted := make(map[string][]time.Time)
	for _, h := range hits {
		window := fmt.Sprint(h.address, h.at.Unix()/60)
		counts[window]++
		if counts[window] > limit {
			fixed++
		}
		recent := slices.DeleteFunc(admitted[h.address], func(at time.Time) bool { return !at.After(h.at.Add(-per)) })
		if len(recent) < limit {
			recent = append(recent, h.at)
		} else {
			span++
		}
		admitted[h.address] = recent
	}
	for algorithm, want := range map[string]int{"fixed-window": fixed, "sliding-window-log": span} {
		for _, memory := range []int64{256 << 20, minMemory} {
			src := fmt.Sprintf("version: 1\nrules:\n  - {name: r, key: [ip], limits: [{limit: %d, per: 1m, algorithm: %s}]}\n", limit, algorithm)
			have := replayText(t, src, func(c *Config) { c.Memory = memory }, log)
			r := have.Rules[0]
			if have.Checks != int64(len(hits)) || have.Refused != int64(want) ||
				r.Checks != have.Checks || r.Refused != have.Refused ||
				r.Subjects != int64(len(subjects)) || have.Skipped != 0 {
				t.Errorf("%s: have %+v, want %d checks, %d refused, %d subjects", algorithm, have,
					len(hits), want, len(subjects))
			}
			var quiet int64
			for _, n := range r.Headroom {
				quiet += n
			}
			if r.Headroom[10] == quiet || quiet == 0 || quiet > r.Subjects {
				t.Errorf("%s: headroom %v of %d subjects", algorithm, r.Headroom, r.Subjects)
			}
		}
	}
}

const twoRules = `version: 1
lists: {deny: [{ip: 192.0.2.66}], allow: [{ip: 192.0.2.99}]}
rules:
  - {name: by-ip, key: [ip], limits: [{limit: 2, per: 1m, algorithm: fixed-window}]}
  - {name: by-page, match: {endpoint: /a}, key: [method, endpoint], limits: [{limit: 3, per: 1m, algorithm: fixed-window}]}
  - {name: idea, shadow: true, key: [ip], limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}
  - {name: tokens, key: [tenant], limits: [{limit: 100, per: 1h, algorithm: fixed-window, unit: tokens}]}
`

func line(address, at, request string) string {
	return fmt.Sprintf("%s - - [01/Mar/2026:12:%s +0000] \"%s HTTP/1.1\" 200 1\n", address, at, request)
}

func TestReport(t *testing.T) {
	log := line("192.0.2.1", "00:00", "GET /a?x") +
		line("192.0.2.1", "00:02", "GET /a") + // later than the next line
		line("192.0.2.1", "00:01", "GET /b") +
		line("192.0.2.2", "00:03", "GET /a") +
		"garbage\n" +
		line("192.0.2.66", "00:04", "GET /a") +
		line("192.0.2.99", "00:04", "GET /a") +
		line("192.0.2.3", "00:05", "GET /a") +
		line("192.0.2.4", "00:06", "GET /a") + // the fourth of /a, but one was refused
		`{"time": "2026-03-01T12:00:07Z", "attributes": {"tenant": "acme"}, "costs": {"tokens": 80}}` + "\n" +
		`{"time": "2026-03-01T12:00:08Z", "attributes": {"tenant": "acme"}, "costs": {"tokens": 30}}` + "\n" +
		`{"time": 1772366409, "attributes": {"tenant": "acme"}}` + "\n" +
		`{"time": "2026-03-01T12:00:08Z"}` + "\n"
	var decisions bytes.Buffer
	have := replayText(t, twoRules, func(c *Config) { c.Decisions = &decisions }, log)
	text, err := json.Marshal(have)
	expect.NoError(t, err)
	// In order of time, 192.0.2.1 asks for /a, /b, /a. The third is refused by its
	// address and takes nothing of /a. For /a, 192.0.2.2 and .3 come second and
	// third, and .4 fourth.
	const want = `{"checks":11,"refused":4,"skipped":2,"rules":{` +
		`"by-ip":{"checks":6,"refused":1,"subjects":4},"by-page":{"checks":5,"refused":1,"subjects":1},` +
		`"idea":{"checks":6,"refused":2,"subjects":4},"tokens":{"checks":3,"refused":1,"subjects":1}},"top":[` +
		`{"rule":"tokens","key":"acme","refused":1,"checks":3},{"rule":"by-ip","key":"192.0.2.1","refused":1,"checks":3},` +
		`{"rule":"by-page","key":["GET","/a"],"refused":1,"checks":5}]}`
	if !slices.IsSortedFunc(have.Top, compareByRefusals) {
		t.Error("the top is not in order")
	}
	if got := sortedTop(t, string(text)); got != sortedTop(t, want) {
		t.Errorf("have %s\nwant %s", text, want)
	}
	if have.ByList != 1 || have.ByDefault != 0 || len(have.SkippedLines) != 2 ||
		have.SkippedLines[0].Line != 5 || have.SkippedLines[1].Line != 13 {
		t.Errorf("have %+v", have)
	}
	checkDecisions(t, decisions.String())
	var page strings.Builder
	expect.NoError(t, have.Print(&page))
	for _, want := range []string{"11 checks, from 2026-03-01 12:00:00Z", "4 refused (36.4%), 1 of them by the deny list", "2 lines skipped",
		`log0:5: the line does not begin with an address: "garbage"`, "idea (shadow: would have refused)", "by-page: GET, /a", "by-ip: the most"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, page.String())
		}
	}
}

// sortedTop normalises a report's JSON.
func sortedTop(t *testing.T, text string) string {
	t.Helper()
	var v map[string]any
	expect.NoError(t, json.Unmarshal([]byte(text), &v))
	slices.SortFunc(v["top"].([]any), func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return fmt.Sprint(v)
}

func checkDecisions(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != 11 {
		t.Fatalf("have %d decisions, want 11: %s", len(lines), text)
	}
	for i, want := range map[int]string{
		0: `{"line":1,"time":"2026-03-01T12:00:00Z","allowed":true,"decided_by":"owner","rule":"by-ip","key":"192.0.2.1","limit":"by-ip","unit":"requests","remaining":1,"retry_after_ms":0}`,
		1: `"line":3,`,
		2: `{"line":2,"time":"2026-03-01T12:00:02Z","allowed":false,"decided_by":"owner","rule":"by-ip","key":"192.0.2.1","limit":"by-ip","unit":"requests","remaining":0,"retry_after_ms":58000,"refused_by":["by-ip"]}`,
		4: `{"line":6,"time":"2026-03-01T12:00:04Z","allowed":false,"decided_by":"list","rule":""}`,
		7: `"key":["GET","/a"]`,
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("decision %d: have %s, want %s", i, lines[i], want)
		}
	}
}

const anyRule = "version: 1\nrules:\n  - {name: r, key: [ip], limits: [{limit: 2, per: 1m}]}\n"

// TestBounds: if MaxCounters is too low, totals are still right, and the report
// says what is missing.
func TestBounds(t *testing.T) {
	var log strings.Builder
	for i := range 3000 {
		log.WriteString(line(fmt.Sprintf("10.0.%d.%d", i/250, i%250), "00:00", "GET /"))
	}
	have := replayText(t, anyRule, func(c *Config) { c.MaxCounters = 1000 }, log.String())
	if have.Checks != 3000 || have.Rules[0].Checks != 3000 || have.Rules[0].Subjects != 1000 || have.Untallied != 2000 {
		t.Errorf("have %+v", have)
	}
	many := strings.Repeat("garbage\n", 1000)
	if have := replayText(t, anyRule, nil, many); have.Skipped != 1000 ||
		len(have.SkippedLines) != maxSkippedLines || have.Checks != 0 {
		t.Errorf("have %+v", have)
	}
	if have := replayText(t, anyRule, nil); have.Checks != 0 {
		t.Errorf("without a log: have %+v", have)
	}
	long := `192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET /` + strings.Repeat("x", 3*maxLine)
	if have := replayText(t, anyRule, nil,
		long+"\n"+line("192.0.2.1", "00:01", "GET /")); have.Checks != 2 || have.Skipped != 0 {
		t.Errorf("a very long line: have %+v", have)
	}
	if have := replayText(t, anyRule, nil,
		`{"time":1,"attributes":{"x":"`+strings.Repeat("x", 3*maxLine)+`"}}`); have.Skipped != 1 ||
		!strings.Contains(have.SkippedLines[0].Reason,
			"longer") {
		t.Errorf("a very long JSON line: have %+v", have)
	}
}

// TestManyInputs: records of several logs, one of them compressed, are merged by time.
func TestManyInputs(t *testing.T) {
	first, second := line("192.0.2.1", "00:00", "GET /")+line("192.0.2.1", "00:02",
		"GET /"), line("192.0.2.1", "00:01", "GET /")
	var decisions bytes.Buffer
	replayText(t, anyRule, func(c *Config) { c.Decisions = &decisions }, first, string(zipped(t, second)))
	var order []string
	for line := range strings.Lines(decisions.String()) {
		var d decision
		expect.NoError(t, json.Unmarshal([]byte(line), &d))
		order = append(order, fmt.Sprint(d.Input, ":", d.Line, " ", d.Allowed))
	}
	expect.Equal(t, fmt.Sprint(order), "[log0:1 true log1:1 true log0:2 false]", "fmt.Sprint(order)")
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }
func (f failing) Read([]byte) (int, error)  { return 0, f.error }

func TestRunFails(t *testing.T) {
	set := compile(t, anyRule)
	log := line("192.0.2.1", "00:00", "GET /")
	bad := errors.New("bad")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	config := func(change func(*Config)) Config {
		c := DefaultConfig(set)
		change(&c)
		return c
	}
	for _, test := range []struct {
		name   string
		ctx    context.Context
		config Config
		in     io.Reader
		want   string
	}{
		{"no rules", context.Background(), config(func(c *Config) { c.Rules = nil }), strings.NewReader(log), "Rules"},
		{"no counters", context.Background(), config(func(c *Config) { c.MaxCounters = 0 }),
			strings.NewReader(log), "MaxCounters"},
		{"no memory", context.Background(), config(func(c *Config) { c.Memory = 1 }), strings.NewReader(log), "Memory"},
		{"top below 0", context.Background(), config(func(c *Config) { c.Top = -1 }), strings.NewReader(log), "Top"},
		{"unreadable", context.Background(), DefaultConfig(set), failing{bad}, "read it: bad"},
		{"half a gzip", context.Background(), DefaultConfig(set),
			bytes.NewReader(zipped(t, strings.Repeat(log, 100))[:60]), "unexpected EOF"},
		{"not gzip", context.Background(), DefaultConfig(set), strings.NewReader("\x1f\x8bxxxxxxxxxxxxxxx"), "gzip"},
		{"unwritable", context.Background(), config(func(c *Config) { c.Decisions = failing{bad} }),
			strings.NewReader(log), "write decisions: bad"},
		{"interrupted", ended, DefaultConfig(set), strings.NewReader(strings.Repeat(log, progressEvery)), "canceled"},
		{"nowhere to sort", context.Background(),
			config(func(c *Config) { c.Memory, c.TempDir = minMemory, "/nowhere" }),
			strings.NewReader(strings.Repeat(log, 100_000)), "nowhere"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Run(test.ctx, test.config,
				Input{Name: "it", Reader: test.in}); err == nil || !strings.Contains(err.Error(),
				test.want) {
				t.Errorf("have %v, want %q", err, test.want)
			}
		})
	}
}

// TestLeavesNothing: a replay removes its temporary file, however it ends.
func TestLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	log := strings.Repeat(line("192.0.2.1", "00:00", "GET /"), 100_000)
	for _, w := range []io.Writer{io.Discard, failing{errors.New("bad")}} {
		c := DefaultConfig(compile(t, anyRule))
		c.Memory, c.TempDir, c.Decisions = minMemory, dir, w
		_, err := Run(context.Background(), c, Input{Name: "it", Reader: strings.NewReader(log)})
		if (err == nil) != (w == io.Discard) {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestGeneratorIsDeterministic: tests elsewhere depend on it.
func TestGeneratorIsDeterministic(t *testing.T) {
	if a, b := generate(t, replaytest.Small(1000)), generate(t, replaytest.Small(1000)); a != b ||
		strings.Count(a, "\n") != 1000 {
		t.Error("two logs of one seed differ")
	}
}

func BenchmarkReplay(b *testing.B) {
	log := replaytest.Small(200_000)
	log.Addresses, log.Span = 20_000, 24*time.Hour
	text := generate(b, log)
	set := compile(b,
		"version: 1\nrules:\n  - {name: r, key: [ip], limits: [{limit: 10, per: 1m}]}\n  - {name: s, key: [endpoint], limits: [{limit: 100, per: 1m}]}\n")
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Run(context.Background(), DefaultConfig(set),
			Input{Name: "log", Reader: strings.NewReader(text)}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRun_Against: two documents on one log, with counters of their own: who is
// newly refused, and who no longer.
func TestRun_Against(t *testing.T) {
	var log strings.Builder
	for i := range 10 {
		fmt.Fprintf(&log, `{"time": %d, "attributes": {"ip": "192.0.2.1", "user": "ann"}}`+"\n", 1_700_000_000+i)
		fmt.Fprintf(&log, `{"time": %d, "attributes": {"ip": "192.0.2.%d"}}`+"\n", 1_700_000_000+i, 10+i)
	}
	compiled := func(text string) *rules.Set {
		doc, err := document.Parse([]byte(text))
		expect.NoError(t, err)
		set, err := rules.Compile(doc, 1)
		expect.NoError(t, err)
		return set
	}
	c := DefaultConfig(compiled("rules:\n  - {name: user, key: [user], limits: [{limit: 3, per: day}]}"))
	c.Against = compiled("lists: {deny: [{ip: 192.0.2.10}]}\nrules:\n  - {name: ip, key: [ip], limits: [{limit: 5, per: day}]}")
	report, err := Run(t.Context(), c, Input{Name: "log", Reader: strings.NewReader(log.String())})
	expect.NoError(t, err)
	got := report.Against
	if report.Refused != 7 || got.Refused != 6 || got.Newly.Checks != 2 ||
		got.Newly.Subjects != 1 || got.NoLonger.Checks != 1 {
		t.Errorf("got %d refused, and %+v", report.Refused, got)
	}
	if s := got.Newly.Top[0]; s.Rule != "user" || s.Key.String() != "ann" || s.Refused != 2 {
		t.Errorf("newly refused: got %+v", s)
	}
	if s := got.NoLonger.Top[0]; s.Rule != "(list)" {
		t.Errorf("no longer refused: got %+v", s)
	}
	var text strings.Builder
	if err := report.Print(&text); err != nil ||
		!strings.Contains(text.String(), "Newly refused: 2 checks of 1 subjects") {
		t.Errorf("got %s", text.String())
	}
	out, err := json.Marshal(report)
	if err != nil || !strings.Contains(string(out), `"against":{"refused":6,"newly_refused":{"checks":2,`) {
		t.Errorf("got %s, %v", out, err)
	}
}
